import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from commands import (
    WRONG_INDEX,
    WRONG_LM,
    WRONG_PROGRAM,
    Wrong,
    lm_flags,
    make_export,
    the_error,
    tree,
    with_a_broken_line,
)
from scripted_server import ScriptedServer
from test_optimize import mlflow_runs
from warm_python import Done, WarmPython

import evaluate

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(ANSWERS) as scripted:
        yield scripted


def run(warm: WarmPython, workspace: Path, server: ScriptedServer, *arguments: str) -> Done:
    env = {"COMPILED_RAG_CACHE": str(workspace / "cache"), "LM_API_KEY": "SECRET"}
    return warm.run("evaluate.py", *lm_flags(arguments, server.url), *arguments, cwd=workspace, env=env)


def test_programs_are_rows_of_a_table_with_records_and_a_run_each(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    make_export(workspace / "runs" / "export", workspace / "runs" / "index")
    done = run(warm, workspace, server, "naive", "runs/export", "--cases", "cases", "--split", "dev")
    assert done.code == 0, done.err
    lines = done.out.strip().splitlines()
    assert lines[0].strip() == "3 cases · openai/test"
    assert [line.split()[0] for line in lines[-2:]] == ["naive", "runs/export"]
    records = workspace / "runs" / "evaluation"
    assert {path.name for path in records.iterdir()} == {"naive.jsonl", "export.jsonl"}
    first = json.loads((records / "export.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (first["id"], first["outcome"], first["prediction"]["stop_reason"]) == ("dev-0", "right", "sufficient")
    assert [tracked["name"] for tracked in mlflow_runs(workspace)] == [
        "evaluate naive · openai/test · 3 cases",
        "evaluate export · openai/test · 3 cases",
    ]
    assert mlflow_runs(workspace)[1]["metrics"]["eval.answer_score"] == 1.0


def test_summaries_for_machines_are_all_of_stdout(warm: WarmPython, workspace: Path, server: ScriptedServer) -> None:
    done = run(warm, workspace, server, "agentic", "--cases", "cases/test.jsonl", "--json")
    summary = json.loads(done.out)["agentic"]
    assert (summary["n"], summary["n_errors"], summary["scores"]["answer_score"]) == (1, 0, 1.0)


def test_exports_of_one_name_are_kept_apart_and_named_without_their_place(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    for folder in ("a", "b"):
        make_export(workspace / folder / "export", workspace / "runs" / "index")
    absolute = str(workspace / "b" / "export")
    done = run(warm, workspace, server, "a/export", absolute, "--cases", "cases/test.jsonl")
    assert done.code == 0, done.err
    assert {path.name for path in (workspace / "runs" / "evaluation").iterdir()} == {"a-export.jsonl", "b-export.jsonl"}
    runs = mlflow_runs(workspace)
    assert [tracked["params"]["program"] for tracked in runs] == ["a-export", "b-export"]
    assert str(workspace) not in json.dumps(runs)


@pytest.mark.parametrize(
    ("specs", "names"),
    [
        (["agentic"], ["agentic"]),
        (["runs/export/", "export"], ["runs-export", "export"]),
        (["a/x/export", "b/x/export"], ["a-x-export", "b-x-export"]),
        (["./naive", "naive"], None),
    ],
)
def test_short_names_tell_programs_apart(specs: list[str], names: list[str] | None) -> None:
    found = evaluate.short_names(specs)
    assert len(set(found.values())) == len(specs)
    assert not any("/" in name for name in found.values())
    assert names is None or list(found.values()) == names


def test_a_dead_case_is_an_error_of_its_own_and_the_rest_is_scored(warm: WarmPython, workspace: Path) -> None:
    hard = tiny.cases_of("dev")[1]["question"]
    answers = {"citations": lambda request: 400 if hard in str(request["messages"][-1]) else tiny.answer_json("140 m")}
    with ScriptedServer(ANSWERS, replies=answers) as picky:
        done = run(warm, workspace, picky, "hybrid", "--cases", "cases", "--split", "dev", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)["hybrid"]
    assert (summary["n"], summary["n_errors"]) == (3, 1)


def test_an_lm_that_goes_down_ends_the_evaluation(warm: WarmPython, workspace: Path) -> None:
    many = [
        {**tiny.cases_of("dev")[0], "id": str(n), "question": f"How long may the sync cable {n} be?"} for n in range(20)
    ]
    (workspace / "many.jsonl").write_text("".join(map(tiny.line_of, many)), encoding="utf-8")
    with ScriptedServer(dies_after=5) as dying:
        done = run(warm, workspace, dying, "naive", "--cases", "many.jsonl")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("error: the LM failed 5 times in a row: ")
    assert "Traceback" not in done.err
    assert not (workspace / "runs" / "evaluation" / "naive.jsonl").exists()
    assert [tracked["status"] for tracked in mlflow_runs(workspace)] == ["FAILED"]


def test_an_interrupt_does_not_wait_for_the_cases_at_work(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS, seconds=0.4) as slow:
        lm = ("--lm", "openai/test", "--api-base", slow.url)
        cases = ("--cases", "cases", "--split", "train", "--threads", "2")
        env = {"COMPILED_RAG_CACHE": str(workspace / "cache")}
        command = warm.start("evaluate.py", *lm, *cases, "agentic", cwd=workspace, env=env)
        command.wait_for("agentic 1/6")
        began = time.monotonic()
        command.send(signal.SIGINT)
        done = command.wait()
        n_calls = len(slow.requests)
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err
    assert time.monotonic() - began < 3
    assert n_calls <= 9  # the check, the first cases, and one call more a thread
    assert [tracked["status"] for tracked in mlflow_runs(workspace)] == ["KILLED"]


def empty_index_of(workspace: Path) -> str:
    shutil.rmtree(workspace / "runs" / "index")
    (workspace / "runs" / "index").mkdir()
    return "runs/index"


WRONG: dict[str, Wrong] = {
    **{name: (lambda w, make=make: ["naive", *make(w)], message) for name, (make, message) in WRONG_LM.items()},
    **{name: (lambda w, make=make: ["naive", *make(w)], message) for name, (make, message) in WRONG_INDEX.items()},
    **WRONG_PROGRAM,
    "an index that is empty": (lambda w: ["naive", "--index", empty_index_of(w)], r"no index here"),
    "one of two programs": (lambda w: ["naive", "agentik"], r"no program 'agentik'"),
    "no such split": (lambda w: ["naive", "--split", "tset"], r"tset"),
    "a split of a file": (
        lambda w: ["naive", "--cases", "cases/dev.jsonl", "--split", "dev"],
        r"one file is one split",
    ),
    "a broken line": (
        lambda w: ["naive", "--cases", with_a_broken_line(w, "dev", "{"), "--split", "dev"],
        r"broken/dev.jsonl:4: ",
    ),
    "a case that can't be scored": (
        lambda w: ["naive", "--cases", with_a_broken_line(w, "dev", '{"id": "x", "question": "q"}'), "--split", "dev"],
        r"case x: neither a gold answer nor gold evidence",
    ),
    "records under a file": (lambda w: ["naive", "--out", "corpus.jsonl/x"], r"corpus.jsonl"),
    "a store that is none": (
        lambda w: ["naive", "--tracking-uri", "nonsense://me:SECRET@h"],
        r"MLflow store nonsense://h",
    ),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_one_line_exit_code_two_and_nothing_written(
    warm: WarmPython, workspace: Path, server: ScriptedServer, make: Any, message: str
) -> None:
    arguments = make(workspace)
    before = tree(workspace)
    cases = () if {"--cases", "--split"} & set(arguments) else ("--cases", "cases/dev.jsonl")
    done = run(warm, workspace, server, *cases, *arguments)
    assert (done.code, done.out) == (2, "")
    assert re.search(message, the_error(done.err))
    assert "SECRET" not in done.err
    assert tree(workspace) == before


def test_at_least_one_program_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        evaluate.main([])
    assert caught.value.code == 2
    assert "PROGRAM" in capsys.readouterr().err
