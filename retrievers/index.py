"""An index, open for searching: two sides, fused."""

import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from retrievers.balance import choose_weight
from retrievers.dense import CollectionGone, DenseHome, DenseIndex
from retrievers.embedders import Embedder, Vectors, load_embedder
from retrievers.filters import Condition, parse_filters, to_where
from retrievers.fusion import fuse_ranks
from retrievers.generation import Generation, name_outdated
from retrievers.lexical import LexicalIndex, Scores, top_rows
from retrievers.manifest import IndexMismatch, IndexNotFound, Manifest, find_generation, is_address
from retrievers.ranking import Query, rank_candidates, split_clauses
from retrievers.records import Hit, Passage, Scalar
from retrievers.store import NotInIndex
from retrievers.tables import TABLES, TableInfo, list_tables
from retrievers.tokenizer import load_tokenizer, query_tokens

Mode = Literal["hybrid", "keyword", "dense"]
Fusion = Literal["scores", "ranks"]
MODES: tuple[Mode, ...] = get_args(Mode)
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)
N_CANDIDATES = 100
# Up to so many passages that a filter leaves, all are compared: approximate search among few of many finds little.
N_EXACT = 20_000
_CACHE_SIZE = 1024

Rows = NDArray[np.int64]

_log = logging.getLogger(__name__)


class IndexTorn(OSError):  # noqa: N818
    """An index of whose files one is shorter than it was written."""


def open_index(path: Path | str, embedder: Embedder | None = None) -> "Index":
    """Open an index for searching; its embedder is loaded by name at the first query that needs it.

    Args:
        path: The index folder, or the address of a Chroma server: `http://HOST:PORT/COLLECTION`.
        embedder: The one that built the index, when it cannot be loaded by its name.

    Raises:
        IndexNotFound: There is no index at the path.
        IndexMismatch: `embedder` is not the one that the index was built with.
    """
    folder, home = locate(path)
    generation = _open_generation(folder, home)
    try:
        if embedder is not None:
            check_embedder(embedder, generation.manifest, path)
    except IndexMismatch:
        generation.close()
        raise
    if outdated := name_outdated(generation.manifest):
        _log.warning("%s: %s", path, outdated)
    return Index(generation, embedder)


def check_embedder(embedder: Embedder, manifest: Manifest, path: Path | str) -> None:
    """Refuse an embedder that did not build the index.

    Raises:
        IndexMismatch: It is another model, or another version of it.
    """
    if embedder.fingerprint != manifest.embedder_fingerprint:
        raise IndexMismatch(
            f"{path}: built with embedder {manifest.embedder!r} ({manifest.embedder_fingerprint}), not with "
            f"{embedder.name!r} ({embedder.fingerprint}); open it with that one or build the index again"
        )


def locate(path: Path | str) -> tuple[Path, DenseHome | None]:
    """Find the folder of an index, and where its collections are when not in it; a server's index is mirrored.

    Raises:
        IndexNotFound: The server has no such index.
        ServerError: It cannot be reached.
        AddressError: The address is none of a collection.
    """
    if not is_address(path):
        return Path(path), None
    from retrievers.server import ChromaServer, parse_address

    server = ChromaServer(parse_address(str(path)))
    return server.fetch(), server


def locate_target(path: Path | str) -> tuple[Path, DenseHome | None, bool]:
    """Find the folder to write to, and the server that holds the collections, its present index mirrored.

    Returns:
        Both, and whether what the folder holds may be gone on from: not what a server has lost, or holds in a format
        that is not read any more.
    """
    if not is_address(path):
        return Path(path), None, True
    from retrievers.server import ChromaServer, CollectionTaken, parse_address

    server = ChromaServer(parse_address(str(path)))
    try:
        server.fetch()
    except CollectionTaken:
        raise
    except (IndexNotFound, IndexMismatch):
        return server.mirror, server, False
    return server.mirror, server, True


def _open_generation(path: Path, home: DenseHome | None) -> Generation:
    """Open the current generation, again if a writer replaces it in between."""
    while True:
        folder = find_generation(path)
        try:
            generation = Generation(folder, home)
            if torn := generation.find_torn():
                generation.close()
                reason = f"{path}: {' and '.join(torn)} hold less than was written"
                raise IndexTorn(f"{reason}; mend it: python -m retrievers doctor --fix --index {path}")
            return generation
        except FileNotFoundError as error:
            if find_generation(path) == folder:
                raise IndexNotFound(f"{path}: the index is damaged ({error}); build it again") from None


class Index:
    """One generation of an index. Safe to share between threads; `__deepcopy__` returns self."""

    def __init__(self, generation: Generation, embedder: Embedder | None = None) -> None:
        """Take an open generation; `open_index` opens it."""
        weakref.finalize(self, generation.close)
        self._generation = generation
        self._store = generation.store
        self._vectors = generation.vectors
        self._embedder = embedder
        self._lock = threading.RLock()
        self._cached_vectors = lru_cache(_CACHE_SIZE)(lambda text: self.embedder.embed_queries([text])[0])
        self._cached_allowed = lru_cache(32)(self._store.select_rows)
        self._cached_rows = lru_cache(_CACHE_SIZE)(self._rank)

    @property
    def path(self) -> Path:
        """The index folder."""
        return self._generation.folder.parent

    @property
    def manifest(self) -> Manifest:
        """What the index holds and what built it."""
        return self._generation.manifest

    def search(
        self,
        query: str,
        k: int = 10,
        mode: Mode = "hybrid",
        filters: Mapping[str, Any] | None = None,
        *,
        exact: bool = False,
        fusion: Fusion = "scores",
    ) -> list[Hit]:
        """Rank at most `k` passages for `query`, best first.

        Args:
            query: What to search for.
            k: How many hits at most.
            mode: Which sides.
            filters: Conditions on metadata, see `filters.parse_filters`; only passages that meet them are ranked.
            exact: Compare the query with every passage, not approximately with near ones.
            fusion: How hybrid fuses: by scores, or by reciprocal ranks.

        Raises:
            ValueError: `k` is below 1, or mode or fusion is unknown.
            FilterError: The filter names an unknown key, or a value of another type.
            IndexMismatch: The embedder of this name is not the one that built the index.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}; known are {', '.join(MODES)}")
        if fusion not in FUSIONS:
            raise ValueError(f"unknown fusion {fusion!r}; known are {', '.join(FUSIONS)}")
        conditions = parse_filters(filters or {}, self.manifest.schema)
        if not query.strip():
            return []
        rows, scores = self._cached_rows(query, k, mode, conditions, exact, fusion)
        pairs = zip(self._store.passages_at(rows), scores, strict=True)
        return [Hit(passage, score, rank) for rank, (passage, score) in enumerate(pairs, start=1)]

    def retriever(self, mode: Mode = "hybrid", *, exact: bool = False, fusion: Fusion = "scores") -> "IndexRetriever":
        """Bind how to search: a `Retriever` for programs."""
        return IndexRetriever(self, mode, exact, fusion)

    def passage(self, passage_id: str) -> Passage:
        """Read one passage.

        Raises:
            NotInIndex: The index has no such passage; a KeyError.
        """
        row = self._store.find_row(passage_id)
        if row is None:
            raise NotInIndex(f"no passage {passage_id!r} in the index")
        return self._store.passages_at([row])[0]

    def passages_of(self, doc_id: str) -> list[Passage]:
        """Read the passages of a document in order; empty when the index has no such document."""
        return self._store.passages_of(doc_id)

    def __contains__(self, id_: object) -> bool:
        """Tell whether a document, or a passage `doc_id#n`, is in the index."""
        known = isinstance(id_, str) and (self._store.find_row(id_) is not None or self._store.find_document(id_))
        return bool(known)

    def field_values(self, key: str, limit: int = 200) -> list[Scalar]:
        """List the different values that documents have of a metadata key, ascending; at most `limit`."""
        return self._store.values_of(key, limit)

    @property
    def tables_path(self) -> Path:
        """The SQLite file of the corpus's tables; there is none when the corpus has no tables."""
        return self._generation.folder / TABLES

    def tables(self) -> list[TableInfo]:
        """List the tables of the corpus: names, columns with types, numbers of rows."""
        return list_tables(self.tables_path)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the index: a Chroma client cannot be copied, and DSPy's optimizers deep-copy programs."""
        return self

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
                check_embedder(embedder, self.manifest, self.path)
                self._embedder = embedder
            return self._embedder

    def _rank(
        self, query: str, k: int, mode: Mode, conditions: tuple[Condition, ...], exact: bool, fusion: Fusion
    ) -> tuple[list[int], list[float]]:
        allowed = self._cached_allowed(conditions) if conditions else None
        if allowed is not None and not len(allowed):
            return [], []
        if mode == "keyword":
            rows, scores = self._rank_lexical(query, k, allowed)
        elif mode == "dense":
            rows, scores = self._rank_dense(query, k, allowed, conditions, exact)
        else:
            rows, scores = self._rank_hybrid(query, k, allowed, conditions, exact, fusion)
        return rows.tolist(), scores.tolist()

    def _rank_lexical(self, query: str, k: int, allowed: Rows | None) -> tuple[Rows, Scores]:
        scores = self._score_lexical(self._tokenize(query))
        rows = _pick(scores, k, allowed)
        return rows, scores[rows]

    def _rank_dense(
        self, query: str, k: int, allowed: Rows | None, conditions: Sequence[Condition], exact: bool
    ) -> tuple[Rows, Scores]:
        vector = self._cached_vectors(query)
        rows = self._find_nearest(vector, k, allowed, conditions, exact)
        return rows, self._vectors.score(vector, rows)

    def _rank_hybrid(
        self,
        query: str,
        k: int,
        allowed: Rows | None,
        conditions: Sequence[Condition],
        exact: bool,
        fusion: Fusion,
    ) -> tuple[Rows, Scores]:
        n = max(N_CANDIDATES, k)
        weight = choose_weight(self.manifest.dense_weights, query)
        vector = self._cached_vectors(query)
        nearest = self._find_nearest(vector, n, allowed, conditions, exact) if weight else np.empty(0, np.int64)
        tokens = self._tokenize(query)
        lexical = self._score_lexical(tokens)
        matching = _pick(lexical, n, allowed)
        if fusion == "ranks":
            totals = fuse_ranks([nearest.tolist(), matching.tolist()], [2 * weight, 2 * (1 - weight)])
            rows = np.asarray(sorted(totals, key=lambda row: (-totals[row], row))[:k], dtype=np.int64)
            return rows, np.asarray([totals[row] for row in rows.tolist()], dtype=np.float32)
        rows = np.union1d(nearest, matching)
        if not len(rows):
            return rows, np.empty(0, np.float32)
        clauses = split_clauses(query)
        vectors = np.stack([vector, *map(self._cached_vectors, clauses)])
        parts = Query(vectors, [tokens, *map(self._tokenize, clauses)])
        scores = rank_candidates(parts, rows, self._vectors.read(rows), self._score_lexical, weight)
        order = np.lexsort((rows, -scores))[:k]
        return rows[order], scores[order]

    def _tokenize(self, query: str) -> list[str]:
        return query_tokens(query, load_tokenizer(self.manifest.words))

    def _score_lexical(self, tokens: Sequence[str]) -> Scores:
        return self._lexical.score(tokens)

    def _find_nearest(
        self, vector: Vectors, n: int, allowed: Rows | None, conditions: Sequence[Condition], exact: bool
    ) -> Rows:
        """Find the `n` nearest rows, best first: exactly where asked to or where a filter leaves few passages."""
        where = to_where(conditions) if conditions else None
        if exact or (allowed is not None and (len(allowed) <= N_EXACT or where is None)):
            return self._compare_all(vector, n, allowed)
        dense = self._dense
        if dense is None:
            return self._compare_all(vector, n, allowed)
        try:
            ids = dense.query(vector, n, where)
        except CollectionGone:
            return self._compare_all(vector, n, allowed)
        found = (self._store.find_row(passage_id) for passage_id in ids)
        rows = np.fromiter((row for row in found if row is not None), dtype=np.int64)
        if allowed is not None:
            rows = rows[np.isin(rows, allowed)]
            if len(rows) < min(n, len(allowed)):
                return self._compare_all(vector, n, allowed)
        return rows[np.lexsort((rows, -self._vectors.score(vector, rows)))]

    def _compare_all(self, vector: Vectors, n: int, allowed: Rows | None) -> Rows:
        scores = self._vectors.score(vector, allowed) + 2  # above 0, as `top_rows` asks
        best = top_rows(scores, n)
        return best if allowed is None else allowed[best]

    @cached_property
    def _dense_now(self) -> DenseIndex | None:
        """The collection; without one, search is exact, in the vectors file."""
        return self._generation.find_dense()

    @cached_property
    def _lexical_now(self) -> LexicalIndex:
        return LexicalIndex(self._generation.folder / "lexical")

    @property
    def _dense(self) -> DenseIndex | None:
        with self._lock:
            return self._dense_now

    @property
    def _lexical(self) -> LexicalIndex:
        with self._lock:
            return self._lexical_now


def _pick(scores: Scores, n: int, allowed: Rows | None) -> Rows:
    if allowed is None:
        return top_rows(scores, n)
    return np.asarray(allowed[top_rows(scores[allowed], n)])


@dataclass(frozen=True, slots=True)
class IndexRetriever:
    """An index with the way to search it bound."""

    index: Index
    mode: Mode = "hybrid"
    exact: bool = False
    fusion: Fusion = "scores"

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        """Rank at most `k` passages for `query`, best first."""
        return self.index.search(query, k, self.mode, filters, exact=self.exact, fusion=self.fusion)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the retriever."""
        return self
