"""An index, open for searching: two sides, fused."""

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from retrievers.dense import DenseIndex
from retrievers.embedders import Embedder, Vectors, load_embedder
from retrievers.fusion import combine_scores
from retrievers.lexical import LexicalIndex, Scores, top_rows
from retrievers.locks import Lease
from retrievers.manifest import IndexMismatch, IndexNotFound, Manifest, find_generation, read_manifest
from retrievers.records import Hit, Passage
from retrievers.store import Store
from retrievers.tokenizer import load_tokenizer
from retrievers.vectors import VectorFile

Mode = Literal["hybrid", "dense", "lexical"]
MODES: tuple[Mode, ...] = get_args(Mode)
N_CANDIDATES = 100


def open_index(path: Path | str, embedder: Embedder | None = None) -> "Index":
    """Open an index for searching; its embedder is loaded by name at the first query that needs it.

    Raises:
        IndexNotFound: There is no index at the path.
        IndexMismatch: `embedder` is not the one that the index was built with.
    """
    generation, lease = _lease_generation(Path(path))
    try:
        manifest = read_manifest(generation)
        if embedder is not None:
            _check_embedder(embedder, manifest, Path(path))
    except ValueError:
        lease.release()
        raise
    return Index(generation, manifest, lease, embedder)


def _lease_generation(path: Path) -> tuple[Path, Lease]:
    """Take a lease of the current generation, again if a writer replaces it in between."""
    while True:
        generation = find_generation(path)
        try:
            return generation, Lease(generation)
        except FileNotFoundError:
            if find_generation(path) == generation:
                raise IndexNotFound(f"{path}: the index is damaged; build it again") from None


def _check_embedder(embedder: Embedder, manifest: Manifest, path: Path) -> None:
    if embedder.fingerprint != manifest.embedder_fingerprint:
        raise IndexMismatch(
            f"{path}: built with embedder {manifest.embedder!r} ({manifest.embedder_fingerprint}), not with "
            f"{embedder.name!r} ({embedder.fingerprint}); open it with that one or build the index again"
        )


class Index:
    """One generation of an index. Safe to share between threads; `__deepcopy__` returns self."""

    def __init__(self, generation: Path, manifest: Manifest, lease: Lease, embedder: Embedder | None = None) -> None:
        """Take a finished generation and the lease that keeps it; `open_index` finds them."""
        weakref.finalize(self, lease.release)
        self.manifest = manifest
        self._generation = generation
        self._embedder = embedder
        self._store = Store(generation / "store.sqlite")
        self._lock = threading.RLock()
        self._embed_query = lru_cache(maxsize=1024)(self._embed_query_anew)

    @property
    def path(self) -> Path:
        """The index folder."""
        return self._generation.parent

    def search(
        self, query: str, k: int = 10, mode: Mode = "hybrid", filters: Mapping[str, Any] | None = None
    ) -> list[Hit]:
        """Rank at most `k` passages for `query`, best first.

        Raises:
            ValueError: `k` is below 1, or the mode is unknown.
            IndexMismatch: The embedder of this name is not the one that built the index.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; known are {', '.join(MODES)}")
        if filters:
            raise ValueError("this index has no filters")
        if not query.strip():
            return []
        rows, scores = self._rank(query, k, mode)
        passages = self._store.passages_at([int(row) for row in rows])
        pairs = zip(passages, scores, strict=True)
        return [Hit(passage, float(score), rank) for rank, (passage, score) in enumerate(pairs, start=1)]

    def retriever(self, mode: Mode = "hybrid") -> "IndexRetriever":
        """Bind a mode: a `Retriever` for programs."""
        return IndexRetriever(self, mode)

    def passage(self, passage_id: str) -> Passage:
        """Read one passage.

        Raises:
            KeyError: The index has no such passage.
        """
        row = self._store.find_row(passage_id)
        if row is None:
            raise KeyError(f"no passage {passage_id!r} in the index")
        return self._store.passages_at([row])[0]

    def passages_of(self, doc_id: str) -> list[Passage]:
        """Read the passages of a document in order; empty when the index has no such document."""
        return self._store.passages_of(doc_id)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the index: a Chroma client cannot be copied, and DSPy's optimizers deep-copy programs."""
        return self

    def _rank(self, query: str, k: int, mode: Mode) -> tuple[NDArray[np.int64], Scores]:
        n = max(N_CANDIDATES, k)
        if mode == "lexical":
            scores = self._score_lexical(query)
            rows = top_rows(scores, k)
            return rows, scores[rows]
        vector = self._embed_query(query)
        nearest = self._find_nearest(vector, k if mode == "dense" else n)
        if mode == "dense":
            return nearest, self._vectors.score(vector, nearest)
        lexical = self._score_lexical(query)
        candidates = np.union1d(nearest, top_rows(lexical, n))
        fused = combine_scores([self._vectors.score(vector, candidates), lexical[candidates]], [0.5, 0.5])
        order = np.lexsort((candidates, -fused))[:k]
        return candidates[order], fused[order]

    def _score_lexical(self, query: str) -> Scores:
        return self._lexical.score(load_tokenizer(self.manifest.words)(query))

    def _find_nearest(self, vector: Vectors, n: int) -> NDArray[np.int64]:
        found = (self._store.find_row(passage_id) for passage_id, _ in self._dense.query(vector, n))
        rows = np.fromiter((row for row in found if row is not None), dtype=np.int64)
        return rows[np.lexsort((rows, -self._vectors.score(vector, rows)))]

    def _embed_query_anew(self, query: str) -> Vectors:
        return self.embedder.embed_queries([query])[0]

    @property
    def embedder(self) -> Embedder:
        """The embedder that built the index, loaded by name at first use.

        Raises:
            IndexMismatch: What is loaded by that name now is another model.
            EmbedderError: It cannot be loaded.
        """
        with self._lock:
            if self._embedder is None:
                embedder = load_embedder(self.manifest.embedder)
                _check_embedder(embedder, self.manifest, self.path)
                self._embedder = embedder
            return self._embedder

    @cached_property
    def _dense_now(self) -> DenseIndex:
        return DenseIndex(self._generation / "chroma")

    @cached_property
    def _lexical_now(self) -> LexicalIndex:
        return LexicalIndex(self._generation / "lexical")

    @property
    def _dense(self) -> DenseIndex:
        with self._lock:
            return self._dense_now

    @property
    def _lexical(self) -> LexicalIndex:
        with self._lock:
            return self._lexical_now

    @cached_property
    def _vectors(self) -> VectorFile:
        return VectorFile(self._generation / "vectors.f32", self.manifest.dimension)


@dataclass(frozen=True, slots=True)
class IndexRetriever:
    """An index with its mode bound."""

    index: Index
    mode: Mode = "hybrid"

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        """Rank at most `k` passages for `query`, best first."""
        return self.index.search(query, k, self.mode, filters)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the retriever."""
        return self
