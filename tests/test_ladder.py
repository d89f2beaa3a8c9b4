from dataclasses import asdict
from typing import Any

import pytest
from predictions import results_with

from trainsets.ladder import Rung, compare_rungs, compare_with, describe_rung, find_failures
from trainsets.records import scored_of
from trainsets.results import summarise


def rung(name: str, *runs: tuple[float | None, ...]) -> Rung:
    return Rung(name, f"runs/{name}", [results_with(*scores) for scores in runs])


def test_each_further_program_is_compared_with_the_first() -> None:
    rungs = [rung(name, (score,) * 4) for name, score in (("a", 0.0), ("b", 0.5), ("c", 1.0))]
    found = [(one.name, one.baseline, one.interval.value) for one in compare_rungs(rungs) if one.interval]
    assert found == [("b", "a", 0.5), ("c", "a", 1.0)]
    assert compare_rungs(rungs[:1]) == []


def test_every_program_is_compared_with_the_records_of_a_baseline() -> None:
    rungs = [rung("a", (1.0,)), rung("b", (0.0,))]
    found = compare_with(rungs, "old.jsonl", scored_of(results_with(0.5)))
    assert [(one.name, one.baseline, one.interval.value) for one in found if one.interval] == [
        ("a", "old.jsonl", 0.5),
        ("b", "old.jsonl", -0.5),
    ]


def test_a_program_is_described_by_its_first_run_and_all_runs_by_their_likeness() -> None:
    described = describe_rung(rung("a", (1.0, None), (0.0, 1.0)))
    assert (described["name"], described["spec"], described["records"]) == ("a", "runs/a", "a.jsonl")
    assert described["summary"] == asdict(summarise(results_with(1.0, None)))
    assert described["score_interval"] == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 1}
    assert described["stability"]["scores"] == (1.0, 0.5)
    alone = describe_rung(rung("a", (None,)))
    assert (alone["score_interval"], alone["stability"]) == (None, None)


ALL_ERRORED = "1 of 1 cases errored, more than 2%; the first is c0: ValueError: x"


@pytest.mark.parametrize(
    ("runs", "fail_under", "said"),
    [
        ([(1.0, 0.5)], None, []),
        ([(1.0, 0.5)], 0.75, []),
        ([(1.0, 0.5)], 0.8, ["a: score 0.750, below 0.8"]),
        ([(1.0,), (None,)], None, ["a, repeat 2: 1 of 1 cases errored, more than 2%; the first is c0: ValueError: x"]),
        (
            [(None,)],
            0.1,
            ["a: 1 of 1 cases errored, more than 2%; the first is c0: ValueError: x", "a: no score, below 0.1"],
        ),
    ],
)
def test_why_an_evaluation_fails_is_one_line_each(runs: Any, fail_under: float | None, said: list[str]) -> None:
    assert list(find_failures([rung("a", *runs)], [], fail_under)) == said


def test_worse_than_the_baseline_fails_only_beyond_chance() -> None:
    old = scored_of(results_with(*[1.0] * 8))
    worse, same = rung("a", (0.5,) * 8), rung("b", (1.0,) * 8)
    assert list(find_failures([worse, same], compare_with([worse, same], "old.jsonl", old), None)) == [
        "a: worse than old.jsonl by 0.500, 95 % interval -0.500 … -0.500"
    ]
