import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from predictions import numbered_case, results_with

from programs.meter import Usage
from programs.record import from_json, make_prediction, to_json
from trainsets.cases import Case
from trainsets.records import (
    Finished,
    RecordError,
    find_finished,
    key_of,
    part_of,
    read_baseline,
    to_line,
    write_summary,
    write_whole,
)
from trainsets.results import CaseResult

CASES = [numbered_case(n) for n in range(4)]
SETTINGS = {"program": {"class": "NaiveRAG"}, "lms": ["a"], "repeat": 1}


def result(case: Case, **fields: Any) -> CaseResult:
    prediction = make_prediction(
        question=case.question,
        answer="三十六个月",
        citations=("d0#0",),
        abstained=False,
        stop_reason="sufficient",
        hops=(),
        context=(),
        usage=Usage(lm_calls=2, seconds=1.5),
    )
    facts = {"scores": {"combined": 0.5, "judge_accuracy": None}, "outcome": "right", "seconds": 1.25}
    return CaseResult(case, **{"prediction": prediction, **facts, **fields})


def lines_of(*results: CaseResult, settings: dict[str, Any] = SETTINGS) -> str:
    return "".join(to_line(one, key_of(one.case, settings), to_json) for one in results)


def find(records: Path, cases: list[Case] = CASES, **settings: Any) -> tuple[dict[str, Finished], list[str]]:
    told: list[str] = []
    keys = {case.id: key_of(case, SETTINGS | settings) for case in cases}
    return find_finished(records, keys, cases, from_json, told.append), told


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "naive.jsonl"


def test_a_result_is_read_again_as_it_was_written(records: Path) -> None:
    written = result(CASES[0], rank=7, detail="d0", outcome="ranked_too_low", grading_error="ValueError: x")
    records.write_text(lines_of(written), encoding="utf-8")
    found, told = find(records)
    read = found["c0"].result
    assert found["c0"].line == lines_of(written)
    assert replace(read, prediction=None) == replace(written, prediction=None)
    assert to_json(read.prediction) == to_json(written.prediction)
    assert read.prediction.usage.seconds == 1.5
    assert told == []


@pytest.mark.parametrize(
    "settings",
    [{"program": {"class": "HybridRAG"}}, {"lms": ["b"]}, {"repeat": 2}, {"grader": "c"}],
    ids=["program", "lm", "repeat", "grader"],
)
def test_a_result_of_other_settings_is_never_taken(records: Path, settings: dict[str, Any]) -> None:
    records.write_text(lines_of(result(CASES[0])), encoding="utf-8")
    assert find(records, **settings) == ({}, [])


def test_a_result_of_a_case_that_changed_is_never_taken(records: Path) -> None:
    records.write_text(lines_of(result(CASES[0]), result(CASES[1])), encoding="utf-8")
    found, _ = find(records, [numbered_case(0, answer=("no",)), CASES[1]])
    assert list(found) == ["c1"]


def test_unfinished_and_finished_records_are_both_taken_and_errors_tried_again(records: Path) -> None:
    part_of(records).write_text(lines_of(result(CASES[2]), result(CASES[3], error="x", scores={})), encoding="utf-8")
    records.write_text(lines_of(result(CASES[0])), encoding="utf-8")
    found, told = find(records)
    assert sorted(found) == ["c0", "c2"]
    assert told == []


def test_unfinished_records_of_other_settings_are_told_before_they_are_replaced(records: Path) -> None:
    part_of(records).write_text(lines_of(result(CASES[2]), settings=SETTINGS | {"lms": ["b"]}), encoding="utf-8")
    found, [told] = find(records)
    assert found == {}
    assert told == f"{part_of(records)}: 1 unfinished records of other settings are replaced"


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_torn_last_line_is_dropped_and_told_once(records: Path, cut: int) -> None:
    whole, torn = lines_of(result(CASES[0])), lines_of(result(CASES[1]))
    part_of(records).write_bytes(whole.encode() + torn.encode()[:cut])
    found, [told] = find(records)
    assert list(found) == ["c0"]
    assert told == f"{part_of(records)}: the last line is torn and left out; its case runs again"


def test_a_broken_line_before_the_last_names_its_place(records: Path) -> None:
    records.write_text("{}\n" + lines_of(result(CASES[0])), encoding="utf-8")
    with pytest.raises(RecordError, match=r"naive.jsonl:1: not a record; .*--restart"):
        find(records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": []}, "scores: input should be a valid dictionary"),
        ({"scores": {"combined": float("nan")}}, "scores.combined: input should be a finite number"),
        ({"seconds": "x"}, "seconds: input should be a valid number"),
        ({"outcome": "fine"}, "outcome: input should be 'right'"),
        ({"error": 3}, "error: input should be a valid string"),
        ({"prediction": 5}, "prediction: TypeError"),
        ({"prediction": {}}, "prediction: KeyError: 'context'"),
        ({"prediction": {"context": [], "hops": [{"a": 1}], "usage": {}}}, "prediction: "),
    ],
)
def test_a_record_that_was_edited_by_hand_names_its_place(records: Path, change: dict[str, Any], message: str) -> None:
    first, second = lines_of(result(CASES[0])), json.loads(lines_of(result(CASES[1])))
    records.write_text(first + json.dumps(second | change) + "\n", encoding="utf-8")
    with pytest.raises(RecordError) as wrong:
        find(records)
    assert str(wrong.value).startswith(f"{records}:2: not as it was written ({message}")
    assert "--restart" in str(wrong.value)


def test_what_an_editor_puts_before_the_first_line_is_left_out(records: Path) -> None:
    line = lines_of(result(CASES[0]))
    records.write_text("\ufeff" + line, encoding="utf-8")
    assert find(records)[0]["c0"].line == line


def test_a_baseline_is_what_a_comparison_needs_of_the_records(records: Path) -> None:
    records.write_text(lines_of(result(CASES[0]), result(CASES[1], error="x", scores={}, outcome="errored")))
    first, second = read_baseline(records)
    assert (first.id, first.question, first.score, first.outcome) == ("c0", "question 0", 0.5, "right")
    assert (second.score, second.outcome) == (None, "errored")


FIELDS = '{"id": "a", "question": "q", "kind": "", "lang": "", '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no records in it"),
        ("[1]\n", ":1: not a record"),
        ('{"id": "a"}\n', r":1: not a record of an evaluation \(question: field required\)"),
        (FIELDS + '"scores": {}, "outcome": "fine"}\n', "outcome: input should be 'right'"),
        (
            FIELDS + '"scores": {"combined": NaN}, "outcome": "right"}\n',
            "scores.combined: input should be a finite number",
        ),
        (
            FIELDS + '"scores": {"combined": true}, "outcome": "right"}\n',
            "scores.combined: input should be a valid number",
        ),
        (2 * (FIELDS + '"scores": {}, "outcome": "right"}\n'), ':2: id: "a" stands there already'),
        ("[" * 100_000 + "\n", ":1: not a record; expected the records of an evaluation"),
        (FIELDS + '"scores": [], "outcome": "right"}\n', ":1: not a record"),
    ],
)
def test_a_baseline_that_is_none_is_refused_with_its_line(records: Path, text: str, message: str) -> None:
    records.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=message):
        read_baseline(records)


def test_a_baseline_that_is_not_there_says_what_is_expected(records: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"naive.jsonl: no such file, expected the records of an evaluation"):
        read_baseline(records)


def test_a_disk_that_is_full_is_named_by_its_file_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text.encode(encoding)[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    write_whole(tmp_path / "a.jsonl", "old")
    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match=r"No space left on device: '.*/a.jsonl'"):
        write_whole(tmp_path / "a.jsonl", "a new text")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.jsonl": "old"}


def test_the_summary_is_one_whole_file(tmp_path: Path) -> None:
    write_summary(tmp_path, {"lm": "本地", "programs": []})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["format"] == 1


def test_a_line_holds_what_a_reader_needs_of_the_case(records: Path) -> None:
    record = json.loads(lines_of(results_with(None)[0]))
    assert (record["gold"], record["gold_ids"], record["answerable"]) == (["yes"], ["d0"], True)
    assert (record["prediction"], record["error"]) == (None, "ValueError: x")
