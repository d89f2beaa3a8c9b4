"""A cross-encoder on top of a retriever: reads query and passage together; off by default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from retrievers.embedders import EmbedderError
from retrievers.passages import embedding_text
from retrievers.records import Hit, Retriever


class Reranker(Protocol):
    """Scores passages against a query; higher is better."""

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score each text, in order."""
        ...


class CrossEncoderReranker:
    """A `sentence_transformers.CrossEncoder` by hub name or local path, on the GPU when there is one."""

    def __init__(self, name: str, device: str | None = None, batch_size: int = 32) -> None:
        """Load the model.

        Raises:
            EmbedderError: There is no such model here or on the hub.
        """
        from sentence_transformers import CrossEncoder

        self.name = name
        self._batch_size = batch_size
        try:
            self._model = CrossEncoder(name, device=device, num_labels=1)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise EmbedderError(f"reranker {name!r} is no cross-encoder: {reason}") from None

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score each text, in order."""
        if not texts:
            return []
        pairs = [(query, text) for text in texts]
        return [float(x) for x in self._model.predict(pairs, batch_size=self._batch_size, show_progress_bar=False)]


@dataclass(frozen=True, slots=True)
class RerankingRetriever:
    """Takes `n_candidates` hits of a retriever, keeps those that the reranker scores at `threshold` or more."""

    retriever: Retriever
    reranker: Reranker
    n_candidates: int = 50
    threshold: float | None = None

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        """Rank at most `k` passages for `query` by the reranker's score, best first; equal scores keep their order."""
        hits = self.retriever.search(query, max(k, self.n_candidates), filters)
        scores = self.reranker.score(query, [embedding_text(hit.passage) for hit in hits])
        pairs = sorted(zip(scores, hits, strict=True), key=lambda pair: (-pair[0], pair[1].rank))
        kept = [(score, hit) for score, hit in pairs if self.threshold is None or score >= self.threshold][:k]
        return [Hit(hit.passage, score, rank) for rank, (score, hit) in enumerate(kept, start=1)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the retriever and the model."""
        return self
