"""Intervals and tests of significance against known values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from trainsets.stats import mcnemar, mean_interval, paired_bootstrap, percentile, stability


def test_the_interval_holds_the_mean_narrows_with_n_and_is_seeded() -> None:
    few, many = [0.0, 1.0] * 10, [0.0, 1.0] * 200
    small, large = mean_interval(few), mean_interval(many)
    assert small.low < small.value == 0.5 < small.high
    assert large.high - large.low < small.high - small.low
    assert mean_interval(few) == small
    assert mean_interval(few, seed=1) != small
    assert small.n == 20


def test_the_interval_agrees_with_the_normal_one_where_that_holds() -> None:
    data = np.random.default_rng(7).normal(0.6, 0.2, 400)
    interval = mean_interval(data.tolist(), n_resamples=4000)
    half = 1.96 * data.std(ddof=1) / 20
    assert interval.low == pytest.approx(data.mean() - half, abs=0.003)
    assert interval.high == pytest.approx(data.mean() + half, abs=0.003)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        interval = mean_interval(rng.binomial(1, 0.4, 60).tolist(), n_resamples=400)
        covered += interval.low <= 0.4 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_pairing_finds_a_small_steady_gain_that_hard_and_easy_cases_would_hide() -> None:
    first = [0.0, 1.0] * 30
    second = [x + 0.05 for x in first]
    gain = paired_bootstrap(first, second)
    assert gain.value == pytest.approx(0.05)
    assert gain.low > 0
    assert paired_bootstrap(second, first).high < 0
    assert paired_bootstrap(first, first).low == paired_bootstrap(first, first).high == 0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_is_the_exact_binomial_test_on_the_disagreements(pairs: list[tuple[bool, bool]]) -> None:
    result = mcnemar([a for a, _ in pairs], [b for _, b in pairs])
    assert result.only_first == sum(a and not b for a, b in pairs)
    assert result.only_second == sum(b and not a for a, b in pairs)
    n = result.only_first + result.only_second
    assert result.p_value == pytest.approx(binomtest(result.only_first, n).pvalue if n else 1.0)


def test_mcnemar_stands_thousands_of_disagreements() -> None:
    assert mcnemar([True] * 3000, [False] * 3000).p_value < 1e-300


def test_stability_is_the_share_of_pairs_of_runs_that_agree() -> None:
    assert stability([["a", "b"], ["a", "b"]]) == 1
    assert stability([["a", "b"], ["a", "c"], ["a", "b"]]) == pytest.approx((3 + 1) / 6)
    for wrong in ([["a"]], [[], []], [["a"], ["a", "b"]]):
        with pytest.raises(ValueError, match="expected two over the same"):
            stability(wrong)


def test_percentiles_lie_between_values() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([5], 95) == 5


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_no_number_is_no_result(values: list[float]) -> None:
    with pytest.raises(ValueError, match="score"):
        mean_interval(values)


def test_lengths_that_differ_are_an_error() -> None:
    with pytest.raises(ValueError, match="one pair a case"):
        paired_bootstrap([1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="one pair a case"):
        mcnemar([True], [True, False])
