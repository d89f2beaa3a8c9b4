import json
from pathlib import Path
from typing import Any

import pytest

from programs.__main__ import main
from programs.meter import Usage
from programs.record import Hop, make_prediction, to_json
from programs.replay import RecordError, choose_record, read_records, tell
from retrievers.records import Hit, Passage

HIT = Hit(Passage("t-1#0", "t-1", "Pump ticket", "The pump stood still."), 0.75, 1)


def record(**changes: Any) -> dict[str, Any]:
    filters = {"date": {"gte": "2025-11-01", "lte": "2025-11-30"}}
    hops = (
        Hop("总共几台？", "hybrid", "总共几台？", None, "rule", (HIT,), ("t-1#0",), 0.12, relevance=(0.914,)),
        Hop("总共几台？", "hybrid", "总共几台？", None, "rule", (HIT,), (), 0.05, dropped=filters),
        Hop("总共几台？", "sql", "SELECT x", None, "lm", (), (), 0.01, error="no such column: x",
            verdict="insufficient", judged_by="lm", missing="the total"),
        Hop("the total", "keyword", "total", filters, "lm", (HIT,), (), 0.2,
            verdict="sufficient", judged_by="rule", quotes=("30 pumps",), relevance=(0.4,), left_out=("t-1#0",)),
    )  # fmt: skip
    prediction = make_prediction(
        question="总共几台？", answer="30", citations=("t-1#0",), abstained=False, stop_reason="sufficient", hops=hops,
        context=(HIT,), usage=Usage(lm_calls=4, cached_calls=1, prompt_tokens=900, completion_tokens=60, seconds=7.25),
        verdict="sufficient",
    )  # fmt: skip
    return to_json(prediction) | changes


STORY = """\
Question: 总共几台？

1. hybrid, by rule: 总共几台？  (0.12 s)
    1. 0.750 t-1#0  relevance 0.91

2. hybrid, by rule: 总共几台？  (0.05 s)
   nothing where {"date": {"gte": "2025-11-01", "lte": "2025-11-30"}}, so without it
    1. 0.750 t-1#0  (seen before)

3. sql, by lm: SELECT x  (0.01 s)
   to find: 总共几台？
   failed: no such column: x
   judged insufficient by lm
   missing: the total

4. keyword, by lm: total  (0.20 s)
   to find: the total
   only where {"date": {"gte": "2025-11-01", "lte": "2025-11-30"}}
    1. 0.750 t-1#0  relevance 0.40  (seen before)
   not read, too little relevant: t-1#0
   judged sufficient by rule: “30 pumps”

Answer: 30
  cites t-1#0  Pump ticket

Plan: 3 searches, then 1 more · stopped: sufficient
Searches asked for by rule 2 of 4 · verdicts by rule 1 of 2
4 LM calls, 1 from the cache · 960 tokens · 7.2 s · 0 outputs unreadable, 0 cut off
"""


def write(path: Path, *lines: Any, indent: int | None = None) -> Path:
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False, indent=indent) for line in lines), encoding="utf-8")
    return path


def test_a_record_is_told_as_a_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "run.json", record(), indent=2)
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out == STORY


def test_a_case_of_an_evaluation_is_told_by_its_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"id": name, "prediction": record(answer=name), "error": None} for name in ("one", "two")]
    path = write(tmp_path / "runs.jsonl", *lines, {"id": "bad", "prediction": None, "error": "the LM is down"})
    assert main(["replay", str(path), "--case", "two"]) == 0
    assert "Answer: two" in capsys.readouterr().out
    assert main(["replay", str(path), "--case", "bad"]) == 0
    assert capsys.readouterr().out == "The run failed: the LM is down\n"
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path}: 3 runs here; name one with --case; there are one, two, bad\n"
    assert main(["replay", str(path), "--case", "three"]) == 2
    assert "no case 'three' here; there are one, two, bad" in capsys.readouterr().err


def test_the_check_of_an_answer_is_told() -> None:
    check = {"outcome": "doubtful", "reason": "30 stands in no passage", "by": "rule", "probability": None}
    assert "  checked by rule: doubtful (30 stands in no passage)" in tell(record(check=check))
    assert "  checked by lm: holds" in tell(record(check=check | {"outcome": "holds", "by": "lm", "reason": ""}))


def test_an_abstention_and_an_error_are_told() -> None:
    lines = tell(record(abstained=True, answer="Not there.", error="unreadable LM output", citations=[], hops=[]))
    assert "Abstained: Not there." in lines
    assert "  (unreadable LM output)" in lines
    assert "Plan: 0 searches, then 0 more · stopped: sufficient" in lines


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "holds no record"),
        ("{", ":1: no JSON"),
        ('{"a": 1}\n{"b": 2}', ":1: no record of a run: answer is missing"),
        ("[]", "no record of a run"),
        ("3", "no record of a run"),
        ('{"question": "q"}', "answer is missing; make one with ask --json"),
        ("[" * 100_000, ":1: no JSON"),
        ('{"prediction": 5}', "no record of a run: answer is missing"),
        (json.dumps(record(hops=5)), "no record of a run (TypeError: "),
        (json.dumps(record(hops=[{"a": 1}])), "no record of a run (KeyError: 'tool'); make one with ask --json"),
        (json.dumps(record(usage=[])), "no record of a run (TypeError: "),
        (json.dumps(record(context=[3])), "no record of a run (TypeError: "),
    ],
)
def test_what_is_no_record_is_one_line(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(RecordError) as wrong:
        read_records(path)
    assert str(wrong.value).startswith(str(path))
    assert error in str(wrong.value)


def test_line_ends_that_only_unicode_knows_and_a_mark_of_an_editor_break_no_record(tmp_path: Path) -> None:
    lines = [{"id": name, "prediction": record(answer=f"{name}\u2028\x85 x"), "error": None} for name in ("a", "b")]
    path = write(tmp_path / "runs.jsonl", *lines)
    path.write_text("\ufeff" + path.read_text(encoding="utf-8").replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert {name: one["answer"] for name, one in read_records(path).items()} == {
        "a": "a\u2028\x85 x",
        "b": "b\u2028\x85 x",
    }


def test_what_would_steer_a_terminal_is_shown_as_a_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "run.json", record(answer="\x1b]0;owned\x07\x9b2J\x00 五\u200b\ttab"))
    assert main(["replay", str(path)]) == 0
    assert "\nAnswer: \ufffd]0;owned\ufffd\ufffd2J\ufffd 五\u200b\ttab\n" in capsys.readouterr().out


def test_no_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(RecordError, match="no case 'x' here; there are one run without an id"):
        choose_record({"": {}} | {}, "x", Path("f"))
