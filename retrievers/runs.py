"""Rankings of whole documents, and TREC run lines."""

import re
from collections.abc import Callable, Iterator, Sequence

from retrievers.records import Hit

_SPACE = re.compile(r"\s")


def rank_documents(search: Callable[[str, int], list[Hit]], query: str, k: int) -> list[tuple[str, float]]:
    """Rank at most `k` documents by their best passage, best first: ids with scores.

    Args:
        search: Ranks at most so many passages for a query.
        query: What to search for.
        k: How many documents at most.
    """
    n = 2 * k
    while True:
        hits = search(query, n)
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
