"""Several indexes searched apart or together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from retrievers.fusion import fuse_ranks
from retrievers.records import Hit, Retriever


@dataclass(frozen=True, slots=True)
class Collections:
    """Named retrievers that answer as one.

    Scores of different indexes do not compare, so their rankings are fused by rank: the first of each, then the
    second of each. A passage that stands in several counts once, for all of them.
    """

    retrievers: Mapping[str, Retriever]

    def search(
        self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None, only: Iterable[str] | None = None
    ) -> list[Hit]:
        """Rank at most `k` passages of all collections, or of those named in `only`, best first.

        Raises:
            ValueError: A name is unknown.
        """
        names = list(self.retrievers) if only is None else list(only)
        if unknown := [name for name in names if name not in self.retrievers]:
            raise ValueError(f"unknown collection {unknown[0]!r}; known are {', '.join(self.retrievers)}")
        rankings = [self.retrievers[name].search(query, k, filters) for name in names]
        passages = list({hit.passage.passage_id: hit.passage for hits in rankings for hit in hits}.values())
        places = {passage.passage_id: place for place, passage in enumerate(passages)}
        totals = fuse_ranks([[places[hit.passage.passage_id] for hit in hits] for hits in rankings])
        best = sorted(totals, key=lambda place: -totals[place])[:k]
        return [Hit(passages[place], totals[place], rank) for rank, place in enumerate(best, start=1)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the collections."""
        return self
