"""`python -m trainsets` as a process: what it prints, what it writes, how it exits."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import heavy_imports_of_help
from scripted_server import Request, ScriptedServer, prompt_of

from trainsets.__main__ import main

ROOT = Path(__file__).parents[1]


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainsets", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def lines(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return lines(
        tmp_path / "corpus.jsonl",
        {"id": "a", "title": "NX-220", "text": "The supply is 24 V DC.", "metadata": {}},
        {"id": "b", "title": "供电", "text": "KX-310 由 24 V 供电。", "metadata": {}},
    )


GOOD = {
    "id": "1",
    "question": "How is it fed?",
    "answer": ["24 V DC"],
    "gold_ids": ["a"],
    "kind": "lookup",
    "lang": "en",
}


DRAFTS = {
    "24 V DC": ("What does the NX-220 run on?", "The supply is 24 V DC."),
    "140 m": ("How far may a wire reach?", "The longest cable is 140 m."),
}


def draft_reply(request: Request) -> str:
    answer = next(answer for answer in DRAFTS if answer in prompt_of(request))
    question, evidence = DRAFTS[answer]
    return json.dumps({"question": question, "answer": answer, "evidence": evidence})


def find_reply(request: Request) -> str:
    answer = next(answer for answer, (question, _) in DRAFTS.items() if question in prompt_of(request))
    return json.dumps({"stated": True, "answer": answer})


@pytest.mark.parametrize("command", [(), ("check",), ("stats",), ("split",), ("draft",), ("import",), ("report",)])
def test_help_imports_nothing_that_takes_time(command: tuple[str, ...]) -> None:
    assert heavy_imports_of_help(["-m", "trainsets", *command]) == ""


def test_a_clean_set_passes_and_a_defect_fails_the_check(tmp_path: Path, corpus: Path) -> None:
    cases = lines(tmp_path / "cases.jsonl", GOOD)
    clean = run("check", cases, "--corpus", corpus)
    assert (clean.returncode, clean.stdout) == (0, "1 case: 0 errors, 0 doubts\n")
    lines(cases, GOOD, GOOD | {"id": "2", "question": "And what is it for?", "answer": ["48 V"]})
    broken = run("check", cases, "--corpus", corpus)
    assert broken.returncode == 1
    assert "error: 2: no gold document holds 48 V" in broken.stdout
    assert "evidence not checked, give --corpus" in run("check", cases).stdout


def test_cases_that_are_not_there_and_an_lm_that_is_down_are_one_line(tmp_path: Path, corpus: Path) -> None:
    missing = run("check", tmp_path / "none")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "none: no such file or folder" in missing.stderr
    out, address = tmp_path / "drafts.jsonl", "http://127.0.0.1:9/v1"
    down = run("draft", corpus, "--out", out, "--lm", "openai/test", "--api-base", address)
    assert (down.returncode, down.stdout, down.stderr.count("\n")) == (2, "", 1)
    assert "no answer from openai/test" in down.stderr
    assert not out.exists()


def test_drafting_that_was_stopped_goes_on_at_no_cost_and_gives_the_whole_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = lines(
        tmp_path / "corpus.jsonl",
        {"id": "a", "title": "NX-220", "text": "The supply is 24 V DC."},
        {"id": "b", "title": "Cable", "text": "The longest cable is 140 m."},
    )
    out, part = tmp_path / "drafts.jsonl", tmp_path / "drafts.jsonl.part"
    with ScriptedServer(replies={"question": draft_reply, "stated": find_reply}, dies_after=3) as server:
        command = ["draft", str(corpus), "--out", str(out), "--n", "2", "--lm", "openai/test", "--api-base", server.url]
        assert main(command) == 2
        told = capsys.readouterr().err
        assert f"1 of 2 drafts are in {part}; repeat the command to go on\nerror: " in told
        assert (out.exists(), len(part.read_text().splitlines())) == (False, 1)
        server.dies_after = None
        with part.open() as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            assert main(command) == 2
        assert "another process is drafting it" in capsys.readouterr().err
        before = len(server.requests)
        assert main(command) == 0
        assert len(server.requests) - before == 3  # a word, and the two calls of the other draft
    assert len(out.read_text().splitlines()) == 2
    out.unlink()
    with ScriptedServer() as server:  # nothing that it drafts stands in a passage
        assert main([*command[:-1], server.url]) == 1
    assert "0 of 2 drafts from 8 tries; nothing was written\n" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_every_bad_line_is_shown_and_the_good_ones_are_still_checked(tmp_path: Path) -> None:
    path = lines(tmp_path / "cases.jsonl", GOOD, {"id": 7}, GOOD, GOOD | {"id": "3", "kind": "follow_up"})
    result = run("check", path, "--json")
    assert result.returncode == 1
    found = [finding["what"] for finding in json.loads(result.stdout)["findings"]]
    assert f"{path}:2: id: 7, expected a string" in found
    assert f'{path}:3: id: "1" stands there already, expected a new id' in found
    assert "a follow-up without history" in found


def test_a_leak_between_the_files_of_a_folder_fails_the_check_and_a_doubt_only_with_strict(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    lines(folder / "train.jsonl", GOOD)
    lines(folder / "test.jsonl", GOOD | {"id": "2", "question": "how is it fed"})
    assert "error: 2: asks the same as 1" in run("check", folder).stdout
    lines(folder / "test.jsonl", {"id": "2", "question": "Is it 24 V DC?", "answer": ["24 V DC"], "lang": "en"})
    assert run("check", folder).returncode == 0
    strict = run("check", folder, "--strict")
    assert strict.returncode == 1
    assert "doubt: 2: the question holds its answer" in strict.stdout


def test_stats_count_by_split_kind_and_language() -> None:
    counts = json.loads(run("stats", "trainsets/sample", "--json").stdout)
    assert list(counts) == ["train", "dev", "test"]
    assert counts["test"]["n_cases"] == sum(counts["test"]["kinds"].values()) == sum(counts["test"]["langs"].values())
    table = run("stats", "trainsets/sample/dev.jsonl").stdout
    assert "unanswerable" in table
    assert "dev zh" in table


def test_split_writes_three_files_that_pass_the_check_and_never_overwrites(tmp_path: Path) -> None:
    rows = [GOOD | {"id": str(i), "question": f"q{i} w{i}", "gold_ids": [f"d{i}"]} for i in range(10)]
    cases = lines(tmp_path / "cases.jsonl", *rows)
    result = run("split", cases, "--out", tmp_path / "out", "--ratios", 6, 2, 2)
    assert result.returncode == 0
    written = [len((tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()) for name in ("train", "dev", "test")]
    assert written == [6, 2, 2]
    assert run("check", tmp_path / "out").returncode == 0
    again = run("split", cases, "--out", tmp_path / "out")
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert run("split", cases, "--out", tmp_path / "o2", "--ratios", 0, 0, 0).returncode == 2
    assert not (tmp_path / "o2").exists()


def test_an_imported_set_is_read_by_the_other_commands(tmp_path: Path) -> None:
    row = {
        "_id": "h1",
        "question": "Where was its founder born?",
        "answer": "Oslo",
        "type": "bridge",
        "supporting_facts": [["Kestrel", 0], ["Anna Berg", 0]],
        "context": [["Kestrel", ["Founded by Anna Berg."]], ["Anna Berg", ["Born in Oslo."]]],
    }
    source = tmp_path / "hotpot.json"
    source.write_text(json.dumps([row]))
    result = run("import", "hotpotqa", source, "--out", tmp_path / "set")
    assert result.returncode == 0, result.stderr
    assert "2 documents" in result.stdout
    checked = run("check", tmp_path / "set" / "cases.jsonl", "--corpus", tmp_path / "set" / "corpus.jsonl")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("check", "nowhere.jsonl"), "nowhere.jsonl"),
        (("stats", "nowhere.jsonl"), "no such file or folder"),
        (("check", "signatures"), "no case file in it"),
        (("check", "trainsets/sample/dev.jsonl", "--corpus", "nowhere"), "nowhere"),
        (("draft", "trainsets/sample/corpus", "--n", 0, "--out", "NEVER"), "--n 0: expected at least 1"),
        (("draft", "nowhere", "--out", "NEVER"), "nowhere"),
        (("draft", "trainsets/sample/corpus", "--out", "NEVER", "--lm", "what"), "not an LM"),
        (("import", "musique", "trainsets/sample", "--out", "NEVER"), "a folder, expected one file"),
        (("import", "hotpotqa", "trainsets/sample/dev.jsonl", "--out", "NEVER"), "expected a row of hotpotqa"),
    ],
)
def test_a_wrong_input_is_one_line_exit_2_and_nothing_written(
    tmp_path: Path, args: tuple[object, ...], message: str
) -> None:
    never = tmp_path / "never"
    result = run(*(never if arg == "NEVER" else arg for arg in args))
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert not never.exists()
