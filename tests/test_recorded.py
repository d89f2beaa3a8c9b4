import json
from pathlib import Path
from typing import Any

import pytest
from evaluations import case_of, errored, ladder, record_of, result_of, summarise_all, write_records

from trainsets.metrics import case_scores
from trainsets.recorded import Record, read_records
from trainsets.records import RecordError


def test_a_result_is_read_as_it_was_written_and_can_be_scored_again() -> None:
    case = case_of(3)
    written = result_of(case)
    read = Record.model_validate(record_of(written)).to_result()
    assert (read.case, read.scores, read.outcome, read.seconds) == (case, written.scores, "right", 1.5)
    assert read.prediction is not None
    assert case_scores(read.case, read.prediction) == written.scores


def test_the_ladder_comes_first_and_repeats_are_no_programs(tmp_path: Path) -> None:
    one = [result_of(case_of(1))]
    names = ("agentic", "zebra", "naive", "export", "hybrid", "naive.repeat-2")
    write_records(tmp_path, dict.fromkeys(names, one))
    (tmp_path / "naive.jsonl.part").write_text("torn", encoding="utf-8")
    records, summary = read_records(tmp_path)
    assert list(records) == ["naive", "hybrid", "agentic", "export", "zebra"]
    assert summary is None


def test_a_summary_says_which_files_and_in_which_order(tmp_path: Path) -> None:
    evaluated = ladder()
    write_records(tmp_path, evaluated | {"hybrid": evaluated["naive"]})
    summarise_all(tmp_path, {"agentic": evaluated["agentic"], "naive": evaluated["naive"]})
    records, summary = read_records(tmp_path)
    assert list(records) == ["agentic", "naive"]
    assert summary is not None
    assert summary.comparisons[0].baseline == "agentic"
    (tmp_path / "naive.jsonl").unlink()
    with pytest.raises(RecordError, match=r"naive\.jsonl: no such file, expected the records of a program"):
        read_records(tmp_path)


def test_a_case_recorded_twice_is_told(tmp_path: Path) -> None:
    write_records(tmp_path, {"naive": [result_of(case_of(1)), errored(case_of(1))]})
    with pytest.raises(RecordError, match=r'naive\.jsonl:2: id: "case-1" stands there already'):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("outcome", "is_abstention", "answerable"),
    [("right", True, False), ("right", False, True), ("should_have_abstained", False, False), ("errored", False, True)],
)
def test_an_older_record_tells_by_its_outcome_whether_its_case_is_answerable(
    outcome: str, is_abstention: bool, answerable: bool
) -> None:
    record = record_of(result_of(case_of(1))) | {"outcome": outcome}
    del record["answerable"]
    record["prediction"]["abstained"] = is_abstention
    assert Record.model_validate(record).is_answerable() is answerable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outcome": "lost"}, "outcome: input should be 'right'"),
        ({"seconds": -1}, "seconds: input should be greater"),
        ({"scores": {"combined": float("nan")}}, "scores.combined: input should be a finite number"),
        ({"prediction": {"answer": 3}}, "prediction.answer: input should be a valid string"),
    ],
)
def test_a_record_that_can_not_be_one_is_told_with_its_line_and_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    good = record_of(result_of(case_of(1)))
    lines = [json.dumps(one) + "\n" for one in (good, good | {"id": "case-2"} | change)]
    (tmp_path / "naive.jsonl").write_text("".join(lines), encoding="utf-8")
    with pytest.raises(RecordError) as caught:
        read_records(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/naive.jsonl:2: {message}")
    assert "\n" not in str(caught.value)
