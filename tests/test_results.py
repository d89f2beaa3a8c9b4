import json
from dataclasses import asdict, replace

import pytest
from predictions import numbered_case, results_with

from trainsets.results import Summary, explain_errors, running_remark, slice_results, summarise


def test_the_summary_of_nothing_is_empty_not_a_failure() -> None:
    summary = summarise([])
    assert (summary.n, summary.n_errors, summary.lm_calls, summary.seconds_p50) == (0, 0, 0.0, None)


def test_totals_are_means_a_case_and_sums_where_they_say_so() -> None:
    summary = summarise(results_with(1.0, 0.5, None))
    assert summary.scores["combined"] == 0.75
    assert (summary.lm_calls, summary.tokens, summary.cost_usd, summary.parse_failures) == (2.0, 100.0, 1.0, 2)
    assert (summary.seconds_p50, summary.seconds_p95) == (1.0, 1.0)


def test_times_are_not_told_when_answers_came_from_the_cache() -> None:
    summary = summarise(results_with(1.0, 0.5, cached=1))
    assert (summary.n_cached_calls, summary.seconds_p50, summary.seconds_p95) == (2, None, None)


def test_a_summary_is_plain_data_for_machines() -> None:
    assert Summary(**json.loads(json.dumps(asdict(summarise(results_with(1.0)))))).n == 1


@pytest.mark.parametrize(("n_errors", "fails"), [(0, False), (2, False), (3, True)])
def test_more_than_two_in_a_hundred_errors_are_too_many_and_said_in_one_line(n_errors: int, fails: bool) -> None:
    results = results_with(*[None] * n_errors, *[1.0] * (100 - n_errors))
    said = explain_errors("naive", results)
    assert (said is not None) == fails
    if said:
        assert said == "naive: 3 of 100 cases errored, more than 2%; the first is c0: ValueError: x"


def test_errors_are_no_part_of_the_running_score() -> None:
    assert running_remark(results_with(1.0, 0.5, None)) == "score 0.750 · 1 errors"
    assert running_remark(results_with(None)) == "score 0.000 · 1 errors"


def test_slices_count_by_kind_and_by_language_and_score_what_did_not_error() -> None:
    kinds = [("lookup", "en"), ("lookup", "zh"), ("temporal", ""), ("temporal", "zh")]
    results = [
        replace(one, case=numbered_case(n, kind=kind, lang=lang))
        for n, (one, (kind, lang)) in enumerate(zip(results_with(1.0, 0.5, None, 0.0), kinds, strict=True))
    ]
    found = {(one.by, one.value): (one.n, one.n_errors, one.n_right, one.score) for one in slice_results(results)}
    assert found == {
        ("kind", "lookup"): (2, 0, 2, 0.75),
        ("kind", "temporal"): (2, 1, 1, 0.0),
        ("lang", "en"): (1, 0, 1, 1.0),
        ("lang", "zh"): (2, 0, 2, 0.25),
    }
