"""Intervals and paired tests, so that a difference is not taken for a change when it is chance. Seeded, numpy only."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the range that holds it at the given confidence."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class McNemar:
    """How many cases only one of two programs got right, and how likely so uneven a split is by chance."""

    only_first: int
    only_second: int
    p_value: float


def mean_interval(
    values: Sequence[float], confidence: float = 0.95, n_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Give the mean and its percentile bootstrap interval.

    Raises:
        ValueError: no values, or one that is not a number.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.
    """
    data = _numbers(values)
    means = _resampled_means(data, n_resamples, seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(data.mean()), float(low), float(high), len(data))


def paired_bootstrap(
    first: Sequence[float],
    second: Sequence[float],
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Give the mean of second − first over the same cases, with its interval: above 0 means second is better.

    Cases are resampled, not scores, so what makes a case hard for both cancels out.

    Raises:
        ValueError: no values, lengths that differ, or a value that is not a number.

    Source: Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation (W04-3250).
    """
    a, b = _numbers(first), _numbers(second)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} scores, expected one pair a case")
    return mean_interval((b - a).tolist(), confidence, n_resamples, seed)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> McNemar:
    """Test with McNemar's exact test whether two programs are right on the same share of the same cases.

    Only the cases on which they disagree count; under chance each goes either way with probability one half.

    Returns:
        The two counts and the two-sided binomial p-value; 1.0 without a disagreement.

    Raises:
        ValueError: lengths that differ.

    Source: McNemar 1947; the exact form as in Dietterich 1998, Approximate Statistical Tests.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} results, expected one pair a case")
    only_first = sum(bool(a) and not b for a, b in zip(first, second, strict=True))
    only_second = sum(bool(b) and not a for a, b in zip(first, second, strict=True))
    n = only_first + only_second
    # Whole numbers until the one division: 2.0**n would underflow past a thousand disagreements.
    tail = sum(comb(n, i) for i in range(min(only_first, only_second) + 1))
    return McNemar(only_first, only_second, min(1.0, 2 * tail / 2**n))


def stability(repeats: Sequence[Sequence[Hashable]]) -> float:
    """Give the chance that two repeats agree on a case: 1 if every run said the same of every case.

    Args:
        repeats: one sequence a run, all over the same cases in the same order: verdicts, answers, right or wrong.

    Raises:
        ValueError: fewer than two runs, no cases, or lengths that differ.

    Source: the observed agreement of Fleiss 1971, Measuring nominal scale agreement among many raters.
    """
    if len(repeats) < 2 or not repeats[0] or len({len(run) for run in repeats}) != 1:
        raise ValueError(f"{len(repeats)} runs over {[len(run) for run in repeats]} cases, expected two over the same")
    pairs = [list(combinations(values, 2)) for values in zip(*repeats, strict=True)]
    agreements = [one == other for case in pairs for one, other in case]
    return sum(agreements) / len(agreements)


def percentile(values: Sequence[float], q: float) -> float:
    """Give the q-th percentile (0..100), linearly between two values.

    Raises:
        ValueError: no values, or one that is not a number.
    """
    return float(np.percentile(_numbers(values), q))


def _numbers(values: Sequence[float]) -> np.ndarray:
    data = np.asarray(values, dtype=float)
    if data.ndim != 1 or not len(data):
        raise ValueError("no scores, expected at least one")
    if not np.isfinite(data).all():
        raise ValueError("a score that is not a finite number")
    return data


def _resampled_means(data: np.ndarray, n_resamples: int, seed: int) -> np.ndarray:
    picks = np.random.default_rng(seed).integers(0, len(data), size=(n_resamples, len(data)))
    return data[picks].mean(axis=1)
