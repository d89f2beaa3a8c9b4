from dataclasses import replace

import pytest
from predictions import numbered_case, results_with

from trainsets.comparison import compare_programs, measure_stability
from trainsets.records import scored_of
from trainsets.results import Summary, slice_results, summarise
from trainsets.tables import (
    COLUMNS,
    Table,
    outcome_table,
    quality_table,
    retrieval_table,
    slice_table,
    stability_table,
    table_row,
)

NOTHING = summarise([])


def test_a_row_has_a_cell_for_every_column() -> None:
    row = dict(zip(COLUMNS, table_row("seed", summarise(results_with(1.0, 0.5, None))), strict=True))
    assert (row["program"], row["score"], row["LM calls"], row["tokens"]) == ("seed", "0.750", "2.0", "100")
    assert (row["errors"], row["unparsed"], row["answer"], row["s P50"]) == ("1", "2", "–", "1.0")


def with_scores(**scores: float) -> Summary:
    return replace(NOTHING, scores=scores)


def cells(table: Table) -> dict[str, dict[str, str]]:
    """The rows by their first cell, each by column."""
    columns, rows = table
    assert all(len(row) == len(columns) for row in rows)
    return {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows}


def test_nothing_measured_is_a_dash_in_every_table() -> None:
    assert table_row("x", NOTHING)[1:6] == ("–",) * 5
    assert set(list(cells(quality_table({"x": NOTHING}))["x"].values())[:-1]) == {"–"}
    assert set(list(cells(retrieval_table({"x": NOTHING}))["x"].values())[:-1]) == {"–"}


def test_grades_have_columns_only_where_something_was_graded() -> None:
    plain, graded = with_scores(faithfulness=0.5), with_scores(faithfulness=0.5, graded_faithfulness=0.25)
    assert "LM faith" not in quality_table({"a": plain})[0]
    rows = cells(quality_table({"a": plain, "b": graded}))
    assert (rows["a"]["LM faith"], rows["b"]["LM faith"]) == ("–", "0.250")
    assert rows["b"]["faith"] == "0.500"


def test_searches_are_timed_in_milliseconds() -> None:
    row = cells(retrieval_table({"dense": replace(with_scores(mrr=0.5), seconds_p50=0.0123)}))["dense"]
    assert (row["MRR"], row["ms P50"]) == ("0.500", "12")


def test_outcomes_that_occurred_are_counted_for_every_program() -> None:
    table = outcome_table({"a": summarise(results_with(1.0, None)), "b": summarise(results_with(1.0, 1.0))})
    assert cells(table) == {"right": {"a": "1", "b": "2"}, "errored": {"a": "1", "b": "0"}}


def test_slices_show_both_scores_and_how_far_they_are_apart() -> None:
    ours, theirs = (
        [replace(one, case=numbered_case(n, lang="en")) for n, one in enumerate(results_with(*scores))]
        for scores in ((1.0, 0.5), (0.5, 0.5))
    )
    comparison = compare_programs("new", scored_of(ours), "old", scored_of(theirs))
    table = slice_table({"old": slice_results(theirs), "new": slice_results(ours)}, [comparison])
    assert cells(table) == {"lang en": {"n": "2", "old": "0.500", "new": "0.750", "new − old": "+0.250"}}


def test_stability_shows_the_score_of_every_run() -> None:
    row = cells(stability_table({"x": measure_stability([results_with(1.0), results_with(0.5)])}))["x"]
    assert (row["repeats"], row["score of each"], row["same verdict"]) == ("2", "1.000 0.500", "–")


@pytest.mark.parametrize("table", [quality_table, retrieval_table], ids=["quality", "retrieval"])
def test_tables_fit_into_120_columns(table: object) -> None:
    columns, [row] = table({"runs/export": with_scores(graded_faithfulness=0.5)})  # type: ignore[operator]
    assert sum(max(len(column), len(cell)) + 3 for column, cell in zip(columns, row, strict=True)) <= 120
