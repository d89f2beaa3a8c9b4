import argparse
import json
import random
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
from commands import (
    WRONG_INDEX,
    WRONG_LM,
    Wrong,
    contents,
    lm_flags,
    make_export,
    the_error,
    tree,
    with_a_broken_line,
    with_a_leak,
)
from evaluations import case_of, result_of
from scripted_server import Request, ScriptedServer, question_of
from test_tracking import everything_in
from warm_python import Command, Done, WarmPython

import optimize
from programs import optimizers
from programs.lms import Roles, make_lm
from programs.rag import CHECK_THRESHOLD

pytestmark = pytest.mark.slow

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}
HARD = frozenset(list(ANSWERS)[4:9])  # answered only with demos, which leaves something to win


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(ANSWERS, needs_demos=HARD) as scripted:
        yield scripted


def arguments(server: ScriptedServer, *flags: str) -> list[str]:
    return ["optimize.py", "--cases", "cases", *lm_flags(flags, server.url), *flags]


def run(warm: WarmPython, workspace: Path, server: ScriptedServer, *flags: str, cache: str = "cache") -> Done:
    env = {"COMPILED_RAG_CACHE": str(workspace / cache), "LM_API_KEY": "SECRET"}
    return warm.run(*arguments(server, *flags), cwd=workspace, env=env)


def start(warm: WarmPython, workspace: Path, server: ScriptedServer, *flags: str) -> Command:
    return warm.start(*arguments(server, *flags), cwd=workspace, env={"COMPILED_RAG_CACHE": str(workspace / "cache")})


def exported(workspace: Path) -> bytes:
    return (workspace / "runs" / "export" / "program.json").read_bytes()


_RUNS = """
    SELECT run_uuid, name, status FROM runs
    WHERE run_uuid NOT IN (SELECT run_uuid FROM tags WHERE key = 'mlflow.parentRunId') ORDER BY start_time
"""


def mlflow_runs(workspace: Path) -> list[dict[str, Any]]:
    """Name, status, params, metrics and tags of every run but the trials of others."""
    with closing(sqlite3.connect(workspace / "runs" / "mlflow.db")) as db:
        return [
            {
                "name": name,
                "status": status,
                **{
                    table: dict(db.execute(f"SELECT key, value FROM {table} WHERE run_uuid = ?", [run_id]).fetchall())
                    for table in ("params", "metrics", "tags")
                },
            }
            for run_id, name, status in db.execute(_RUNS)
        ]


@dataclass(frozen=True)
class Compile:
    """A compile that was run to its end, the folder it was run in, and the LM it called."""

    done: Done
    workspace: Path
    server: ScriptedServer


@pytest.fixture(scope="module")
def finished(
    warm: WarmPython, project: Path, new_store: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compile]:
    """A compile with a key and an absolute path in its flags, neither of which may be found afterwards."""
    workspace = tmp_path_factory.mktemp("finished")
    new_store(workspace)
    shutil.copytree(project, workspace, dirs_exist_ok=True)
    with ScriptedServer(ANSWERS, needs_demos=HARD) as server:
        yield Compile(run(warm, workspace, server, "--out", str(workspace / "runs" / "export")), workspace, server)


def test_a_compile_ends_with_a_table_an_export_and_a_tracked_run(finished: Compile) -> None:
    done, workspace = finished.done, finished.workspace
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].strip() == "3 dev cases · openai/test"
    rows = {line.split()[0]: line.split()[1] for line in lines if line.strip().startswith(("seed", "compiled  "))}
    assert float(rows["seed"]) < float(rows["compiled"])
    assert any(line.startswith("compiled − seed: +") for line in lines)
    assert lines[-3:] == [
        f"export:  {workspace}/runs/export",
        "MLflow:  mlflow ui --backend-store-uri sqlite:///runs/mlflow.db",
        f'ask:     python -m programs ask "…" --program {workspace}/runs/export --index runs/index '
        f"--lm openai/test --api-base {finished.server.url}",
    ]
    assert "it/s" not in done.out  # what optimizers print goes to stderr
    assert "evaluating compiled 3/3" in done.err

    manifest = json.loads((workspace / "runs" / "export" / "manifest.json").read_text(encoding="utf-8"))
    built_by = manifest["built_by"]
    assert (manifest["program"], manifest["lm"], built_by["optimizer"]) == ("agentic", "openai/test", "bootstrap")
    assert built_by["gate"]["verdict"] == "keep"  # three cases prove nothing
    assert (built_by["n_train"], built_by["n_dev"], built_by["stopped_at_budget"]) == (6, 3, False)
    assert f"{built_by['compiled_score']:.3f}" == rows["compiled"]

    [tracked] = mlflow_runs(workspace)
    assert tracked["status"] == "FINISHED"
    assert re.fullmatch(r"bootstrap · openai/test · [\d-]+ [\d:]+ · 0\.\d\d → \d\.\d\d", tracked["name"])
    assert tracked["params"] | {"optimizer": "bootstrap", "n_train": "6", "lm": "openai/test"} == tracked["params"]
    assert f"{tracked['metrics']['compiled.combined']:.3f}" == rows["compiled"]
    sizes = [tracked["metrics"][f"{which}.predictor/answer.demos"] for which in ("seed", "compiled")]
    assert sizes[0] == 0 < sizes[1]
    artifacts = {path.name for path in (workspace / "runs" / "mlartifacts").rglob("*") if path.is_file()}
    assert artifacts >= {
        "program.json",
        "manifest.json",
        "prompts.md",
        "seed.jsonl",
        "compiled.jsonl",
        "report.html",
        "outcomes.png",
    }


def test_no_secret_and_no_path_of_the_user_is_written_or_shown(finished: Compile) -> None:
    workspace, server = finished.workspace, finished.server
    assert all(headers["Authorization"] == "Bearer SECRET" for headers in server.headers)
    port = server.url.split(":")[2].partition("/")[0].encode()
    for name, content in tree(workspace).items():
        assert b"SECRET" not in content, name
        if name.startswith(("runs/export/", "runs/compile/", "runs/mlartifacts/")):
            assert str(workspace).encode() not in content, name
            assert b"127.0.0.1:" + port not in content, name
        if not re.match(r"runs/index/g\d+/chroma/", name):  # Chroma keeps its labels so, and reads them as plain data
            assert not name.endswith((".pkl", ".pickle")), name
        assert not (name.startswith("runs/mlartifacts/") and content.startswith(b"\x80")), name  # how a pickle begins
    rows = everything_in(workspace / "runs" / "mlflow.db")
    for place in ("runs/mlartifacts", "mlruns/0"):  # where a store keeps its artifacts, which it has to know
        rows = rows.replace(str(workspace / place), "")
    assert str(workspace) not in rows
    assert f"127.0.0.1:{port.decode()}" not in rows
    assert "SECRET" not in rows + finished.done.out + finished.done.err


def test_a_repeat_makes_no_call_and_the_same_program(warm: WarmPython, finished: Compile) -> None:
    first, n_calls = exported(finished.workspace), len(finished.server.requests)
    done = run(warm, finished.workspace, finished.server, "--experiment", "again")
    assert done.code == 0
    assert exported(finished.workspace) == first
    assert len(finished.server.requests) == n_calls + 1  # the check that the LM is there
    assert "–" in done.out  # times of cached answers are not told


def test_mipro_compiles_within_its_budget(warm: WarmPython, workspace: Path, server: ScriptedServer) -> None:
    done = run(warm, workspace, server, "--optimizer", "mipro", "--trials", "2", "--max-lm-calls", "9", "--seed", "3")
    assert done.code == 0, done.err
    assert "9 LM calls (budget reached, best so far)" in done.err
    assert done.out.startswith("3 dev cases · openai/test")  # and nothing that mipro prints
    [tracked] = mlflow_runs(workspace)
    assert (tracked["params"]["optimizer"], tracked["params"]["effective_seed"]) == ("mipro", "3")
    assert (tracked["params"]["n_train"], tracked["params"]["n_val"]) == ("4", "2")
    manifest = json.loads((workspace / "runs" / "export" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["built_by"]["stopped_at_budget"] is True


def test_a_teacher_is_called_at_the_same_address_and_named_without_it(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    done = run(warm, workspace, server, "--teacher-lm", "openai/teacher", "--limit", "3", "--eval-limit", "1")
    assert done.code == 0, done.err
    assert {request["model"] for request in server.requests} == {"test", "teacher"}
    assert mlflow_runs(workspace)[0]["params"]["teacher_lm"] == "openai/teacher"


def test_a_compile_that_wins_nothing_says_so(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer({}) as ignorant:
        done = run(warm, workspace, ignorant, "--limit", "2", "--eval-limit", "2", "--force")
    assert done.code == 0
    assert "the compiled program equals the seed" in done.err
    assert "no difference is proven" in done.out


def last_train_cases(workspace: Path, n: int) -> str:
    folder = tiny.write_cases(workspace / "few")
    lines = (folder / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(lines[:n]), encoding="utf-8")
    return str(folder)


def make_precious(workspace: Path) -> str:
    (workspace / "precious").mkdir()
    (workspace / "precious" / "notes.txt").write_text("mine", encoding="utf-8")
    return str(workspace / "precious")


WRONG: dict[str, Wrong] = {
    **WRONG_LM,
    **WRONG_INDEX,
    "no cases": (lambda w: ["--cases", "./none"], r"none: no such file or folder"),
    "a folder without splits": (lambda w: ["--cases", make_precious(w)], r"precious: .*train"),
    "a line that is no JSON": (
        lambda w: ["--cases", with_a_broken_line(w, "train", '{"id": "x", "question"')],
        r"broken/train.jsonl:7: ",
    ),
    "a field of the wrong type": (
        lambda w: ["--cases", with_a_broken_line(w, "dev", '{"id": "x", "question": "q", "answer": "yes"}')],
        r"broken/dev.jsonl:4: answer: ",
    ),
    "a field that does not exist": (
        lambda w: ["--cases", with_a_broken_line(w, "dev", '{"id": "x", "question": "q", "awnser": ["yes"]}')],
        r"broken/dev.jsonl:4: awnser: ",
    ),
    "a case that can't be scored": (
        lambda w: ["--cases", with_a_broken_line(w, "dev", '{"id": "x", "question": "q"}')],
        r"x: .*neither",
    ),
    "one question in two splits": (
        lambda w: ["--cases", with_a_leak(w)],
        r"train and dev are not apart: \S+ asks .*; list",
    ),
    "one case for mipro": (
        lambda w: ["--optimizer", "mipro", "--cases", last_train_cases(w, 1)],
        r"1 train cases to compile on, mipro needs 2 at least",
    ),
    "a place that holds something else": (lambda w: ["--out", make_precious(w)], r"exists and is no export"),
    "a place under a file": (lambda w: ["--out", "corpus.jsonl/export"], r"corpus.jsonl is a file"),
    "a store that is none": (lambda w: ["--tracking-uri", "sqlite:///corpus.jsonl"], r"MLflow store .*not a database"),
    "a teacher that is down": (lambda w: ["--teacher-lm", "local:none.gguf"], r"no GGUF file at none.gguf"),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_one_line_exit_code_two_and_nothing_written(
    warm: WarmPython, workspace: Path, server: ScriptedServer, make: Any, message: str
) -> None:
    flags = make(workspace)
    before = tree(workspace)
    done = run(warm, workspace, server, *flags)
    assert (done.code, done.out) == (2, "")
    assert re.search(message, the_error(done.err))
    assert "SECRET" not in done.err
    assert tree(workspace) == before


@pytest.mark.parametrize(
    "flags",
    [
        ["--optimizer", "magic"],
        ["--optimizer", "chain:"],
        ["--max-cost", "0"],
        ["--max-cost", "inf"],
        ["--max-minutes", "nan"],
        ["--max-lm-calls", "inf"],
        ["--timeout", "99999999999"],
        ["--seed", "-1"],
        ["--seed", "4294967296"],
        ["--limit", "0"],
        ["--limit", "x"],
        ["--trials", "-1"],
        ["extra"],
    ],
)
def test_a_wrong_flag_is_a_usage_error(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        optimize.main(flags)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("optimizer", "script", "message"),
    [
        ("bootstrap", {"dies_after": 4}, r"error: the LM failed 5 times in a row: .*scripted failure 500"),
        ("mipro", {"dies_after": 4}, r"error: .*scripted failure 500"),
        (
            "mipro",
            {"replies": {"citations": lambda request: 500}},
            r"error: .*scripted failure 500",
        ),
    ],
    ids=["bootstrap", "mipro", "mipro without answers"],
)
def test_an_lm_that_goes_down_on_the_way_ends_the_compile_and_leaves_no_export(
    warm: WarmPython, workspace: Path, optimizer: str, script: dict[str, Any], message: str
) -> None:
    with ScriptedServer(ANSWERS, **script) as dying:
        done = run(warm, workspace, dying, "--optimizer", optimizer, "--trials", "1")
    assert (done.code, done.out) == (2, "")
    assert re.match(message, done.err.splitlines()[-1])
    assert "Traceback" not in done.err or optimizer == "mipro"  # DSPy logs what fails in its trials
    assert not (workspace / "runs" / "export").exists()
    assert [tracked["status"] for tracked in mlflow_runs(workspace)] == ["FAILED"]


@pytest.mark.parametrize(
    ("moment", "asked"),
    [("compiling", tiny.cases_of("train")[0]), ("evaluating seed 1/3", tiny.cases_of("dev")[1])],
    ids=["compiling", "evaluating"],
)
def test_an_interrupt_is_130_and_the_run_is_marked_killed(
    warm: WarmPython, workspace: Path, moment: str, asked: dict[str, Any]
) -> None:
    with ScriptedServer(ANSWERS, holds=lambda request: question_of(request) == asked["question"]) as server:
        command = start(warm, workspace, server)
        command.wait_for(moment)
        server.wait_until(lambda: server.n_held == 1)
        command.send(signal.SIGINT)
        done = command.wait()
        assert server.in_flight == server.n_held == 1  # it did not wait for the answer
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err
    assert not (workspace / "runs" / "export").exists()
    assert [run["status"] for run in mlflow_runs(workspace)] == ["KILLED"]


SEARCH = "--optimizer chain:bootstrap,random-search --trials 1 --step-demos --limit 4 --eval-limit 1".split()


def asked(server: ScriptedServer) -> list[str]:
    """The requests of the compile and the comparison; not those that only check that the LM is there."""
    return [json.dumps(request, sort_keys=True) for request in server.requests if "Say OK." not in str(request)]


def test_a_compile_that_is_killed_ten_times_goes_on_each_time_and_ends_with_the_same_program(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    assert run(warm, workspace, server, *SEARCH, cache="cache-of-one-that-ran-through").code == 0
    uninterrupted, n_calls = exported(workspace), len(set(asked(server)))
    [journal] = (workspace / "runs" / "compile").glob("*/journal.jsonl")
    trials = journal.read_text(encoding="utf-8")
    shutil.rmtree(workspace / "runs" / "compile")
    before = contents(make_export(workspace / "runs" / "export", workspace / "runs" / "index"))
    server.requests.clear()
    server.seconds = 0.02
    rng, known = random.Random(7), 0
    for _ in range(10):
        new = rng.randint(2, max(2, n_calls // 12))  # the last of them is still on its way when the kill comes
        until = len(server.requests) + 1 + new
        command = start(warm, workspace, server, *SEARCH)
        server.wait_until(lambda until=until: len(server.requests) >= until)
        command.send(signal.SIGKILL)
        assert command.wait().code == -signal.SIGKILL
        assert contents(workspace / "runs" / "export") == before  # the export that was there, whole
        assert known < (known := len(set(asked(server))))  # each one comes further than the one before it
    done = run(warm, workspace, server, *SEARCH)
    assert done.code == 0, done.err
    assert exported(workspace) == uninterrupted
    assert journal.read_text(encoding="utf-8") == trials
    assert len(set(asked(server))) == n_calls
    assert len(asked(server)) <= n_calls + 10  # nothing is paid for twice but what was on its way at a kill
    assert [tracked["status"] for tracked in mlflow_runs(workspace)] == ["FINISHED", *["KILLED"] * 10, "FINISHED"]
    assert not [name for name in tree(workspace) if name.endswith(".part")]


def test_a_restart_asks_the_lm_anew_and_the_next_repeat_does_not(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    flags = ("--limit", "2", "--eval-limit", "1", "--max-demos", "1", "--program", "hybrid")
    n_calls = []
    for more in ((), ("--restart",), ()):
        server.requests.clear()
        assert run(warm, workspace, server, *flags, *more).code == 0
        n_calls.append(len(asked(server)))
    first, restarted, after = n_calls
    assert 0 < restarted < first  # the comparison is not made anew
    assert after == 0


def test_step_demos_alone_make_a_program_with_no_call_but_those_that_look_ahead(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    done = run(
        warm, workspace, server, "--optimizer", "labeled", "--max-demos", "2", "--eval-limit", "1", "--probe", "0"
    )
    assert done.code == 0, done.err
    assert re.search(r"^step demos to choose from: answer \d, plan \d, judge \d", done.err, re.MULTILINE)
    assert re.search(r"^demos: .*answer 2.*; 2 LM calls$", done.err, re.MULTILINE)  # one a role
    state = json.loads(exported(workspace))
    questions = {case["question"] for case in tiny.cases_of("train")}
    for name in ("answer", "judge"):
        assert len(state[name]["demos"]) == 2
        assert all(demo["question"] in questions for demo in state[name]["demos"])
        assert all(demo["from_case"].startswith("train-") for demo in state[name]["demos"])
    params = mlflow_runs(workspace)[0]["params"]
    assert (params["optimizer"], params["effective_seed"]) == ("labeled", "0")


def test_a_threshold_is_fitted_and_told_everywhere(warm: WarmPython, workspace: Path) -> None:
    held = {f"Which sync cable is not longer than allowed in hall {n}?": "140 m" for n in range(1, 5)}
    unheld = {f"Which relay of the line is not supplied to hall {n}?": "Falk Relais" for n in range(1, 5)}
    lines = [{"question": one, "answer": [answer], "gold_ids": ["cable"]} for one, answer in held.items()]
    lines += [{"question": one, "answerable": False} for one in unheld]
    folder = tiny.write_cases(workspace / "doubtful")
    numbered = [tiny.line_of({"id": f"t{n}"} | line) for n, line in enumerate(lines)]
    (folder / "train.jsonl").write_text("".join(numbered), encoding="utf-8")

    def check(request: Request) -> str:
        return json.dumps({"supported": {"noul": 0.9 if "cable" in question_of(request) else 0.5}})

    flags = ["--optimizer", "reanchor", "--cases", "doubtful"]
    with ScriptedServer(ANSWERS | held | unheld, replies={"supported": check}) as doubting:
        done = run(warm, workspace, doubting, *flags)
    assert done.code == 0, done.err
    assert f"check.supported: threshold {CHECK_THRESHOLD:g} → 0.7: from 8 decisions, score 0.500 → 1.000" in done.err
    assert re.search(r"^reanchor trial \d+ · score 1.000 · best 1.000 · \d+ LM calls$", done.err, re.MULTILINE)
    changed = f"supported from a probability of {CHECK_THRESHOLD:g} → 0.7 on"
    assert f"changed:\n  check     {changed}\n" in done.out
    assert changed in (workspace / "runs" / "compile" / "changes.html").read_text(encoding="utf-8")
    assert changed in (workspace / "runs" / "export" / "prompts.md").read_text(encoding="utf-8")
    built_by = json.loads((workspace / "runs" / "export" / "manifest.json").read_text(encoding="utf-8"))["built_by"]
    moved = (("seed", CHECK_THRESHOLD), ("compiled", 0.7))
    thresholds = {f"{which}_thresholds": {"check.supported": at} for which, at in moved}
    assert built_by | thresholds == built_by
    [tracked] = mlflow_runs(workspace)
    assert tracked["params"] | {name: str(value) for name, value in thresholds.items()} == tracked["params"]
    with closing(sqlite3.connect(workspace / "runs" / "mlflow.db")) as db:
        query = "SELECT value FROM metrics WHERE key = 'predictor/check.supported.threshold'"
        assert {CHECK_THRESHOLD, 0.7} <= {value for (value,) in db.execute(query)}


def test_a_program_without_thresholds_is_refused_before_it_costs_anything(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    done = run(warm, workspace, server, "--program", "hybrid", "--optimizer", "chain:bootstrap,reanchor")
    assert (done.code, done.out) == (1, "")
    assert "  STOP  thresholds  reanchor has nothing to fit: HybridRAG decides nothing at a threshold" in done.err
    assert asked(server) == []
    assert not (workspace / "runs" / "export").exists()


def test_progress_tells_trial_best_score_spend_and_time_left(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    flags = ("--optimizer", "random-search", "--trials", "1", "--max-demos", "1", "--limit", "4", "--eval-limit", "1")
    done = run(warm, workspace, server, *flags, "--threads", "2", "--proposer-lm", "openai/writer")
    assert done.code == 0, done.err
    line = r"^random-search trial \d/3 · score [01]\.\d{3} · best [01]\.\d{3} · \d+ LM calls · about \d:\d\d left$"
    assert len(re.findall(line, done.err, re.MULTILINE)) == 3
    again = run(warm, workspace, server, *flags, "--proposer-lm", "openai/writer")
    assert "going on after 3 trials of an earlier attempt, best score" in again.err
    assert "0 of them made now" in again.err
    assert "came out differently" not in again.err


def test_outputs_that_were_cut_off_are_told_under_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    results = {"seed": [result_of(case_of(1))], "compiled": [result_of(case_of(1), truncations=3)]}
    optimize.show(results, Roles(*2 * [make_lm("openai/test")]))
    *table, cut_off, compared = capsys.readouterr().out.splitlines()
    assert table[0].strip() == "1 dev cases · openai/test"
    assert cut_off == "compiled: the LM was cut off at its token limit 3 times"
    assert compared.startswith("compiled − seed: ")


def test_where_everything_is_can_be_pasted_and_tells_no_password() -> None:
    lms = {"lm": "local:my lm.gguf", "answer_lm": None, "decision_lm": "openai/d", "fallback_lm": None}
    places = {"tracking_uri": "postgresql://me:SECRET@h/db", "out": Path("my runs/export"), "index": Path("i")}
    args = argparse.Namespace(**places, **lms, api_base="http://me:SECRET@h/v1")
    text = optimize.closing(args, args.out)
    assert "mlflow ui --backend-store-uri postgresql://h/db\n" in text
    given = "--lm 'local:my lm.gguf' --decision-lm openai/d --api-base http://h/v1"
    assert f"--program 'my runs/export' --index i {given}\n" in text
    args.tracking_uri = "http://h:5000"
    args.lm, args.decision_lm, args.api_base = "local", None, None
    assert optimize.closing(args, args.out).partition("MLflow:  http://h:5000\n")[2].endswith("--index i\n")


@pytest.mark.llm
def test_the_embedded_lm_compiles_a_program_on_three_cases(
    embedded_lm: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace)
    flags = ["--program", "hybrid", "--limit", "3", "--eval-limit", "1", "--max-demos", "1", "--cases", "cases"]
    assert optimize.main([*flags, "--lm", embedded_lm]) == 0
    assert capsys.readouterr().out.startswith("1 dev cases · local:qwen2.5-coder-1.5b")
    state = json.loads(exported(workspace))
    assert len(state["answer"]["demos"]) <= 1
    assert mlflow_runs(workspace)[0]["status"] == "FINISHED"


@pytest.mark.llm
def test_the_embedded_lm_compiles_instructions_and_demos_on_three_cases(
    embedded_lm: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(optimizers, "_INSTRUCTION_TOKENS", 30)  # each is a second and more of a small LM's time
    flags = "--program naive --optimizer mipro --trials 1 --limit 3 --eval-limit 1 --max-demos 1 --probe 0 --no-gate"
    store = f"sqlite:///{workspace}/runs/mlflow.db"  # MLflow keeps a store open by its address in this process
    flags += f" --cases cases --lm {embedded_lm} --max-minutes 5 --tracking-uri {store}"
    assert optimize.main(flags.split()) == 0
    [tracked] = mlflow_runs(workspace)
    assert (tracked["status"], tracked["params"]["optimizer"]) == ("FINISHED", "mipro")
    manifest = json.loads((workspace / "runs" / "export" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["built_by"]["stopped_at_budget"] is False
    [journal] = (workspace / "runs" / "compile").glob("*/journal.jsonl")
    trials = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()[1:]]
    assert [trial["stage"] for trial in trials] == ["mipro"] * len(trials)
    assert len(trials) >= 2  # the seed, and one that was tried
    assert set(json.loads(exported(workspace))) == {"answer"}
