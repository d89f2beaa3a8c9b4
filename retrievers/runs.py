"""Rankings of whole documents, and TREC run lines."""

import re
from collections.abc import Iterator, Sequence

from retrievers.index import Index, Mode

_SPACE = re.compile(r"\s")


def rank_documents(index: Index, query: str, k: int, mode: Mode = "hybrid") -> list[tuple[str, float]]:
    """Rank at most `k` documents by their best passage, best first: ids with scores."""
    n = 2 * k
    while True:
        hits = index.search(query, n, mode)
        best: dict[str, float] = {}
        for hit in hits:
            best.setdefault(hit.passage.doc_id, hit.score)
        if len(best) >= k or len(hits) < n:
            return list(best.items())[:k]
        n *= 4


def format_ranking(query_id: str, ranking: Sequence[tuple[str, float]], tag: str) -> Iterator[str]:
    """Format a ranking as TREC run lines, ranks from 1.

    The format separates by white space, so a white space inside an id becomes `%20`.
    """
    for rank, (doc_id, score) in enumerate(ranking, start=1):
        yield f"{_escape(query_id)} Q0 {_escape(doc_id)} {rank} {score:.6f} {tag}"


def _escape(identifier: str) -> str:
    return _SPACE.sub("%20", identifier)
