"""Several rankings of one query to one: convex combination of scores, or reciprocal ranks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]


def scale(scores: Scores) -> Scores:
    """Bring scores to 0..1 (min-max); scores that are all the same become 0: they tell nothing apart."""
    if len(scores) == 0:
        return scores
    spread = scores.max() - scores.min()
    return np.asarray((scores - scores.min()) / spread if spread > 0 else np.zeros(len(scores)), dtype=np.float32)


def combine_scores(sides: Sequence[Scores], weights: Sequence[float]) -> Scores:
    """Add up the sides' scaled scores, weighted.

    Every side scores the same candidates in the same order; a side that cannot tell them apart adds nothing.

    Source: Bruch, Gai, Ingber: An Analysis of Fusion Functions for Hybrid Retrieval. TOIS 2023.
    """
    total = np.zeros(len(sides[0]), np.float32)
    for scores, weight in zip(sides, weights, strict=True):
        total += weight * scale(scores)
    return total


def fuse_ranks(
    rankings: Sequence[Sequence[int]], weights: Sequence[float] | None = None, c: float = 60
) -> dict[int, float]:
    """Add up 1 / (c + rank) over any number of rankings of rows, ranks from 1.

    Source: Cormack, Clarke, Büttcher: Reciprocal Rank Fusion outperforms Condorcet. SIGIR 2009.
    """
    totals: dict[int, float] = {}
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        for rank, row in enumerate(ranking, start=1):
            totals[row] = totals.get(row, 0.0) + weight / (c + rank)
    return totals
