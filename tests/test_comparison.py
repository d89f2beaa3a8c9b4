from dataclasses import replace

import pytest
from predictions import hop, numbered_case, numbered_prediction, results_with

from trainsets.comparison import (
    Comparison,
    compare,
    compare_programs,
    describe_comparison,
    measure_stability,
)
from trainsets.outcomes import OutcomeName
from trainsets.records import RecordError, Scored, scored_of
from trainsets.results import CaseResult


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (
            (1.0,) * 20,
            (0.0,) * 20,
            "new − old: +1.000, 95 % interval +1.000 … +1.000 (paired bootstrap, 20 cases) → new is better",
        ),
        ((0.0,) * 20, (1.0,) * 20, "new is WORSE"),
        ((1.0,) * 19, (0.0,) * 19, "19 cases) → new is better here, but fewer than 20 cases prove nothing"),
        ((1.0, 0.0) * 5, (0.0, 1.0) * 5, "no difference is proven"),
        ((1.0,) * 3 + (None,), (0.0, None, 0.0, 0.0), "(paired bootstrap, 2 cases; 2 left out)"),
        ((None, 1.0), (1.0, None), "new against old: no case was scored in both"),
    ],
)
def test_a_comparison_says_how_sure_it_is(
    ours: tuple[float | None, ...], theirs: tuple[float | None, ...], verdict: str
) -> None:
    assert verdict in compare("new", results_with(*ours), "old", results_with(*theirs))


def test_a_comparison_is_the_same_each_time() -> None:
    ours, theirs = results_with(0.2, 0.9, 0.4, 1.0), results_with(0.1, 1.0, 0.3, 0.2)
    assert compare("a", ours, "b", theirs) == compare("a", ours, "b", theirs)


def scored(outcomes: str, kinds: str = "", first: int = 0) -> list[Scored]:
    """One case a letter: Right, ranked Low, Errored; kinds by letter."""
    names: dict[str, tuple[OutcomeName, float | None]] = {
        "R": ("right", 1.0),
        "L": ("ranked_too_low", 0.0),
        "E": ("errored", None),
    }
    return [
        Scored(f"c{n}", f"question {n}", kinds[n] if kinds else "k", "en", *names[letter])
        for n, letter in enumerate(outcomes, start=first)
    ]


def against(new: str, old: str, kinds: str = "") -> Comparison:
    return compare_programs("new", scored(new, kinds), "old", scored(old, kinds))


def test_mcnemar_counts_the_cases_that_only_one_got_right_and_errors_count_for_neither() -> None:
    found = against("RRLLE", "RLRLR")
    assert (found.n, found.n_left_out) == (4, 1)
    assert (found.mcnemar.only_first, found.mcnemar.only_second, found.mcnemar.p_value) == (1, 1, 1.0)
    assert against("R" * 10, "L" * 10).mcnemar.p_value == pytest.approx(2 / 2**10)


def test_transitions_hold_every_pair_of_cases_and_name_them() -> None:
    found = against("RRLRE", "LLRRR")
    assert [(one.before, one.after, one.n, one.ids) for one in found.transitions] == [
        ("ranked_too_low", "right", 2, ("c0", "c1")),
        ("right", "ranked_too_low", 1, ("c2",)),
        ("right", "right", 1, ("c3",)),
        ("right", "errored", 1, ("c4",)),
    ]
    assert [move.n for move in found.moves] == [2, 1, 1]
    lines = describe_comparison(found)
    assert lines[1].strip() == "right only in new: 2, only in old: 1 (McNemar, p = 1.000)"
    assert lines[2:] == [
        "  2 cases moved from ranked_too_low to right",
        "  1 case moved from right to ranked_too_low",
        "  1 case moved from right to errored",
    ]


def test_slices_tell_where_the_difference_is() -> None:
    by_kind = {one.value: one for one in against("RRLL", "LLRL", "aabb").slices if one.by == "kind"}
    assert (by_kind["a"].baseline, by_kind["a"].program, by_kind["a"].difference) == (0.0, 1.0, 1.0)
    assert (by_kind["b"].n, by_kind["b"].difference) == (2, -0.5)
    assert by_kind["b"].interval.low == -1.0


@pytest.mark.parametrize(
    ("new", "old", "is_regression"), [("L" * 9, "R" * 9, True), ("RL" * 9, "LR" * 9, False), ("R", "L", False)]
)
def test_worse_beyond_chance_is_a_regression(new: str, old: str, is_regression: bool) -> None:
    assert against(new, old).is_regression is is_regression


def test_only_cases_of_both_are_compared_and_the_others_counted() -> None:
    found = compare_programs("new", scored("RRR"), "old", scored("RR", first=2))
    assert (found.n, found.n_left_out) == (1, 3)


def test_another_gold_set_is_refused() -> None:
    with pytest.raises(RecordError, match="old: no case in common with these"):
        compare_programs("new", scored("R"), "old", scored("R", first=1))
    other = [replace(scored("R")[0], question="something else")]
    with pytest.raises(RecordError, match="old: case c0 asks something else"):
        compare_programs("new", scored("R"), "old", other)


def said(*runs: tuple[str, str | None, str]) -> list[CaseResult]:
    """One case a triple: an answer, the judge's first verdict, an outcome."""
    return [
        CaseResult(
            numbered_case(n),
            numbered_prediction(answer=answer, hops=(hop("d0#0", verdict=verdict), hop("d0#0", verdict="sufficient"))),
            {"combined": 1.0},
            outcome,  # type: ignore[arg-type]
        )
        for n, (answer, verdict, outcome) in enumerate(runs)
    ]


def test_an_answer_is_the_same_if_it_says_and_cites_the_same() -> None:
    was = said(("yes", None, "right"), ("yes", None, "right"), ("36 months", None, "right"), ("", None, "right"))
    now = said(("yes", None, "right"), ("Yes", None, "right"), ("36 months", None, "right"), ("", None, "right"))
    now[2] = replace(now[2], prediction=numbered_prediction(answer="36 months", citations=("d9#0",)))
    found = compare_programs("new", scored_of(now), "old", scored_of(was))
    assert (found.n_answered, found.n_same_answers) == (3, 1)
    assert describe_comparison(found)[-1] == "  the same answer, citing the same passages, in 1 of 3 cases"


def test_stability_is_the_share_of_cases_on_which_two_runs_agree() -> None:
    first = said(("36 months", "sufficient", "right"), ("yes", "insufficient", "right"))
    second = said(("36  Months", "insufficient", "right"), ("no", "insufficient", "wrong_with_evidence"))
    found = measure_stability([first, second])
    assert (found.n_repeats, found.n, found.scores) == (2, 2, (1.0, 1.0))
    assert (found.right, found.answer, found.verdict) == (0.5, 0.5, 0.5)


def test_a_case_that_errored_in_one_run_is_in_no_agreement() -> None:
    found = measure_stability([results_with(1.0, None, 0.5), results_with(1.0, 1.0, 0.5)])
    assert (found.n, found.right, found.verdict) == (2, 1.0, None)
    nothing = measure_stability([results_with(None), results_with(1.0)])
    assert (nothing.n, nothing.right, nothing.scores) == (0, None, (None, 1.0))


def test_results_and_records_are_compared_alike() -> None:
    results = results_with(0.5, None)
    assert [(one.id, one.score, one.outcome) for one in scored_of(results)] == [
        ("c0", 0.5, "right"),
        ("c1", None, "errored"),
    ]
