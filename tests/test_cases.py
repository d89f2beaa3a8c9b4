"""Gold cases: what loads, what is refused and how the refusal reads, samples, examples."""

import csv
import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainsets.cases import Case, CaseError, load_cases, load_splits, sample, to_example, to_line, write_cases

# pandas' reader, as `datasets` uses it, leaves its file to the garbage collector.
unclosed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FULL = {
    "id": "a-1",
    "question": "供电电压是多少？",
    "answer": ["24 V", "24V"],
    "key_points": [["24 V"], ["DIN rail", "导轨"]],
    "answer_groups": [["24 V"], ["2 A"]],
    "wrong_answers": ["12 V"],
    "gold_ids": ["doc-1", "doc-2#3"],
    "qrels": {"doc-1": 2, "doc-9": 0},
    "answerable": True,
    "bad_ids": ["doc-7"],
    "candidate_ids": ["doc-1"],
    "gold_spans": ["24 V DC"],
    "meta": {"any": [1, None, {"deep": "x"}]},
    "kind": "lookup",
    "lang": "zh",
    "tools": ["keyword"],
    "filters": {"product": "NX-220", "date": {"$gte": "2025-01-01"}},
    "history": [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "hello"}],
}


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def line(**fields: object) -> str:
    return json.dumps({"id": "a", "question": "q", **fields}, ensure_ascii=False)


def test_every_field_of_the_contract_survives_loading(tmp_path: Path) -> None:
    path = write(tmp_path / "cases.jsonl", json.dumps(FULL, ensure_ascii=False))
    [case] = load_cases(path)
    assert json.loads(case.model_dump_json()) == FULL


def test_id_and_question_are_enough(tmp_path: Path) -> None:
    [case] = load_cases(write(tmp_path / "cases.jsonl", line()))
    assert case == Case(id="a", question="q")
    assert case.answerable
    assert case.filters is None


def test_bom_blank_lines_and_crlf_are_read(tmp_path: Path) -> None:
    text = "\ufeff" + line() + "\r\n\r\n  \n" + line(id="b") + "\r\n"
    assert [case.id for case in load_cases(write(tmp_path / "cases.jsonl", text))] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(id=7), ":1: id: 7, expected a string"),
        (line(answer="24 V"), ':1: answer: "24 V", expected a list of strings'),
        (line(answer=["24 V", 24]), ":1: answer[1]: 24, expected a string"),
        (line(key_points=["24 V"]), ':1: key_points[0]: "24 V", expected a list of strings'),
        (line(answer_groups="x"), ':1: answer_groups: "x", expected a list of lists of strings'),
        (line(answerable="true"), ':1: answerable: "true", expected true or false'),
        (line(qrels={"d": 1.5}), ":1: qrels.d: 1.5, expected a whole number"),
        (line(question="  "), ':1: question: "  ", expected a string that is not blank'),
        (line(history=[{"role": "bot", "text": "x"}]), ':1: history[0].role: "bot", expected "user" or "assistant"'),
        (line(history=[{"role": "user", "content": "x"}]), ":1: history[0].text: missing, expected a string"),
        (line(filters=["x"]), ':1: filters: ["x"], expected an object'),
        (line(gold_id=["d"]), ":1: gold_id: unknown key, expected one of id, question, answer,"),
        ('{"id": "a"}', ":1: question: missing, expected a string"),
        (line() + "\n[1]", ":2: case: [1], expected an object"),
        (line() + "\n\n{", ":3: not a JSON object"),
        ('{"id": "a", "id": "b", "question": "q"}', 'the key "id" stands there twice'),
        (line() + "\n" + line(), ':2: id: "a" stands in line 1 already, expected a new id'),
        (b'{"id": "a", "question": "\xff"}', ":1: byte 25 is not UTF-8"),
        ("", "no case in it"),
        ("\n \n", "no case in it"),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_field(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = write(tmp_path / "cases.jsonl", text)
    with pytest.raises(CaseError) as caught:
        load_cases(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("question", "lang"), [("How tight?", "en"), ("P-100 用什么润滑油?", "zh")])
def test_a_case_without_a_language_has_that_of_its_question(tmp_path: Path, question: str, lang: str) -> None:
    path = write(
        tmp_path / "cases.jsonl", line(question=question) + "\n" + line(id="named", question=question, lang="fr")
    )
    assert [case.lang for case in load_cases(path)] == [lang, "fr"]


def test_a_folder_and_a_split_pick_the_file(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", line(id="t"))
    write(tmp_path / "dev.jsonl", line(id="d"))
    assert load_cases(tmp_path, "dev")[0].id == "d"
    with pytest.raises(CaseError, match="split test is not there, expected one of: dev, train"):
        load_cases(tmp_path, "test")
    with pytest.raises(CaseError, match=r"name a split of it \(--split\), expected one of: dev, train"):
        load_cases(tmp_path)


def test_a_split_of_a_single_file_is_refused_not_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "cases.jsonl", line())
    with pytest.raises(CaseError, match="one file is one split"):
        load_cases(path, "test")


def test_a_missing_file_and_an_unknown_suffix_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_cases(tmp_path / "none.jsonl")
    with pytest.raises(CaseError, match=r"unknown kind of file \.txt"):
        load_cases(write(tmp_path / "cases.txt", line()))


def test_a_hub_id_is_read_through_datasets_and_its_absence_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    rows = [{"id": "a", "question": "q", "qrels": {"x": 1, "y": None}}, {"id": "b", "question": "q", "qrels": None}]
    monkeypatch.setattr(datasets, "load_dataset", lambda path, split, **_: rows if path == "org/set" else 1 / 0)
    assert [case.qrels for case in load_cases("org/set", "test")] == [{"x": 1}, {}]
    with pytest.raises(CaseError, match="needs a split"):
        load_cases("org/set")

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach 'org/set' on the Hub\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(FileNotFoundError, match="org/set: no file or folder here, and not on the hub") as caught:
        load_cases("org/set", "test")
    assert "\n" not in str(caught.value)


@unclosed
def test_csv_cells_are_json_except_the_text_columns(tmp_path: Path) -> None:
    with (tmp_path / "cases.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["id", "question", "answer", "answerable"], ["007", "two\nlines, NA", '["24 V"]', "false"]])
        writer.writerow(["8", "NA", "", ""])
    first, second = load_cases(tmp_path / "cases.csv")
    assert (first.id, first.question, first.answer, first.answerable) == ("007", "two\nlines, NA", ("24 V",), False)
    assert (second.question, second.answer, second.answerable) == ("NA", (), True)


@unclosed
def test_a_bad_csv_cell_is_named_by_row_and_field(tmp_path: Path) -> None:
    path = write(tmp_path / "cases.csv", "id,question,answer\na,q,\nb,q,24 V\n")
    with pytest.raises(CaseError, match=r'cases.csv:2: answer: the text "24 V", expected JSON'):
        load_cases(path)


def test_a_broken_table_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "cases.parquet", "not parquet")
    with pytest.raises(CaseError) as caught:
        load_cases(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_every_split_of_a_folder_loads_in_order_and_is_written_back_as_it_was(tmp_path: Path) -> None:
    lines = {"test": line(id="t"), "extra": line(id="e"), "train": json.dumps(FULL, ensure_ascii=False)}
    for split, text in lines.items():
        write(tmp_path / f"{split}.jsonl", text + "\n")
    splits = load_splits(tmp_path)
    assert list(splits) == ["train", "test", "extra"]
    write_cases(tmp_path / "again.jsonl", splits["train"])
    assert load_cases(tmp_path / "again.jsonl") == splits["train"]
    assert list(load_splits(tmp_path / "again.jsonl")) == ["again"]
    assert (tmp_path / "test.jsonl").read_text() == "".join(map(to_line, splits["test"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaseError, match="no case file in it"):
        load_splits(tmp_path / "empty")


def test_parquet_rows_lose_the_nulls_that_the_table_put_there(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "q", "qrels": {"x": 1}, "answer": ["1"]},
        {"id": "b", "question": "q", "qrels": {"y": 2}},
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "cases.parquet")
    assert [case.qrels for case in load_cases(tmp_path / "cases.parquet")] == [{"x": 1}, {"y": 2}]


def make_cases(sizes: dict[tuple[str, str], int]) -> list[Case]:
    return [
        Case(id=f"{kind}-{lang}-{i}", question="q", kind=kind, lang=lang)
        for (kind, lang), size in sizes.items()
        for i in range(size)
    ]


strata = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["en", "zh"])), st.integers(1, 20), min_size=1
)


@given(strata, st.integers(1, 60), st.integers(0, 3))
def test_a_sample_keeps_shares_order_and_grows_without_replacing(
    sizes: dict[tuple[str, str], int], n: int, seed: int
) -> None:
    cases = make_cases(sizes)
    picked = sample(cases, n, seed)
    assert len(picked) == min(n, len(cases))
    assert [case for case in cases if case in picked] == picked
    assert {case.id for case in picked} <= {case.id for case in sample(cases, n + 5, seed)}
    counts = Counter((case.kind, case.lang) for case in picked)
    for stratum, size in sizes.items():
        assert abs(counts[stratum] - len(picked) * size / len(cases)) <= len(sizes)


def test_a_sample_does_not_depend_on_the_order_of_the_file_and_changes_with_the_seed() -> None:
    cases = make_cases({("a", "en"): 20, ("b", "zh"): 10})
    ids = {case.id for case in sample(cases, 9, seed=1)}
    assert ids == {case.id for case in sample(cases[::-1], 9, seed=1)}
    assert Counter(id_[0] for id_ in ids) == {"a": 6, "b": 3}
    assert ids != {case.id for case in sample(cases, 9, seed=2)}


def test_a_sample_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        sample(make_cases({("a", "en"): 2}), 0)


def test_an_example_carries_the_gold_beside_its_inputs_and_shows_none_of_it() -> None:
    case = Case.model_validate_json(json.dumps(FULL))
    example = to_example(case)
    assert example.inputs().toDict() == {"question": case.question, "history": FULL["history"]}
    assert example.case is case
    assert example.id == case.id
    assert "answer" not in example
    assert "24 V" not in repr(example)
