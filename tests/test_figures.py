from evaluations import case_of, errored, ladder, record_of, result_of

from trainsets.figures import (
    MIN_FOR_INTERVAL,
    OUTCOME_COLORS,
    SLICED_BY,
    compare_pairs,
    ink_on,
    points_of,
    slice_of,
    slices_of,
    summaries_of,
    tabulate_moves,
)
from trainsets.outcomes import OUTCOMES
from trainsets.recorded import Record
from trainsets.results import CaseResult, slice_results, summarise


def recorded(results: list[CaseResult]) -> list[Record]:
    return [Record.model_validate(record_of(result)) for result in results]


LADDER = {name: recorded(results) for name, results in ladder().items()}


def test_totals_of_records_are_those_of_the_results_they_were_written_from() -> None:
    assert summaries_of(LADDER) == {name: summarise(results) for name, results in ladder().items()}


def test_slices_are_those_of_the_evaluation() -> None:
    ours = {
        (by, value, parts["agentic"].n, parts["agentic"].n_right, parts["agentic"].score)
        for by, key in (("kind", SLICED_BY["kind"]), ("lang", SLICED_BY["language"]))
        for value, parts in slices_of(LADDER, key).items()
    }
    assert ours == {(one.by, one.value, one.n, one.n_right, one.score) for one in slice_results(ladder()["agentic"])}


def test_an_interval_needs_enough_scored_cases() -> None:
    few = [result_of(case_of(number)) for number in range(MIN_FOR_INTERVAL - 1)]
    assert slice_of(recorded([*few, errored(case_of(90))])).interval is None
    enough = slice_of(recorded([*few, result_of(case_of(90), "no")]))
    assert enough.interval is not None
    assert enough.interval.low < (enough.score or 0) < enough.interval.high
    assert slice_of(recorded([errored(case_of(1))])).score is None


def test_any_two_programs_are_compared_the_lower_one_as_the_baseline() -> None:
    three = LADDER | {"other": LADDER["naive"]}
    pairs = [(one.baseline, one.name) for one in compare_pairs(three)]
    assert pairs == [("naive", "agentic"), ("naive", "other"), ("agentic", "other")]


def test_moves_count_what_became_right_and_what_no_longer_is() -> None:
    up, _, down = [tabulate_moves(one) for one in compare_pairs(LADDER | {"other": LADDER["naive"]})]
    assert (up.n, up.n_gained, up.n_lost) == (12, 7, 0)
    assert (down.n, down.n_gained, down.n_lost) == (12, 0, 7)
    assert up.outcomes == ["right", "stopped_early", "errored"]


def test_a_point_has_what_a_question_costs() -> None:
    naive, agentic = points_of(LADDER)
    assert (naive.name, naive.tokens, naive.usd, naive.seconds) == ("naive", 110, 0, 1.5)
    assert agentic.tokens == 310
    paid = recorded([result_of(case_of(number), cost_usd=0.002) for number in range(4)])
    assert abs(points_of({"paid": paid})[0].usd - 2) < 1e-9


def test_every_outcome_has_a_colour_of_its_own_that_text_can_be_read_on() -> None:
    assert OUTCOME_COLORS.keys() == set(OUTCOMES)
    assert len(set(OUTCOME_COLORS.values())) == len(OUTCOMES)
    assert (ink_on("#ffffff"), ink_on("#000000"), ink_on("#99ddff"), ink_on("#332288")) == (
        "#000000",
        "#ffffff",
        "#000000",
        "#ffffff",
    )
