"""A version that is loaded by alias in a fresh environment answers as the export did before it was logged."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest
import tiny
from commands import make_export
from compiled import compiled_export
from mlflow.tracking import MlflowClient
from scripted_server import ScriptedServer
from warm_python import WarmPython

from programs.export import load_export
from programs.lms import bind, make_roles
from programs.load import open_tools
from programs.record import to_json
from programs.tracking.stores import make_experiment
from programs.tracking.versions import promote, register
from retrievers import build_index
from trainsets.cases import Case, load_sample

pytestmark = pytest.mark.slow
NAME = "agentic-sample"
URI = f"models:/{NAME}@champion"
SAMPLE = Path(__file__).parents[1] / "trainsets" / "sample" / "corpus"
TODAY = "2026-11-30"

# Run without `site`, so that the checkout is not on the path: what answers is the code in the version.
FRESH = """
import json, sys
from pathlib import Path
import mlflow, pandas as pd
uri, version, index, api_base, cases, out = sys.argv[1:]
cases = json.loads(Path(cases).read_text())
mlflow.set_tracking_uri(uri)
model = mlflow.pyfunc.load_model(version, model_config={"index": index, "api_base": api_base, "threads": 2})
table = model.predict(pd.DataFrame(cases))

import programs
from programs.lms import bind, make_roles
from programs.load import load_program, open_tools
from programs.record import to_json
program = load_program(version, open_tools(Path(index)), tracking_uri=uri)
with bind(make_roles("openai/test", api_base=api_base)):
    runs = [to_json(program(**case)) for case in cases]
told = {"code": programs.__file__, "table": table.to_dict("records"), "runs": runs}
Path(out).write_text(json.dumps(told))
"""


@dataclass(frozen=True)
class Logged:
    """An index of the sample corpus, a program that was exported for it, and the store that it was then logged to."""

    index: Path
    export: Path
    uri: str


@pytest.fixture(scope="module")
def logged(new_store: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    folder = tmp_path_factory.mktemp("logged")
    build_index(SAMPLE, folder / "index")
    export = compiled_export(
        folder / "export", folder / "index", "Answer from the passages, in as few words as can be."
    )
    yield Logged(folder / "index", export, new_store(folder))
    mlflow.set_tracking_uri(None)


def asked(cases: list[Case]) -> list[dict[str, Any]]:
    turns = [[{"role": turn.role, "text": turn.text} for turn in case.history] for case in cases]
    return [{"question": case.question, "history": own} for case, own in zip(cases, turns, strict=True)]


def answer_all(export: Path, index: Path, url: str, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tools = open_tools(index)
    program = load_export(export, tools.retrievers, tools.facts, tools.toolbox)
    with bind(make_roles("openai/test", api_base=url)), ThreadPoolExecutor(4) as pool:
        contexts = [copy_context() for _ in questions]
        return list(pool.map(lambda one: to_json(one[0].run(program, **one[1])), zip(contexts, questions, strict=True)))


def said(run: dict[str, Any]) -> dict[str, Any]:
    """All that a run tells, but the time it took and whether the answers of the LM came from the cache."""
    hops = [{name: value for name, value in hop.items() if name != "seconds"} for hop in run["hops"]]
    usage = {name: value for name, value in run["usage"].items() if name not in ("seconds", "cached_calls")}
    return json.loads(json.dumps(run | {"hops": hops, "usage": usage}))


def test_a_version_answers_every_test_case_by_its_alias_as_its_export_did(logged: Logged, tmp_path: Path) -> None:
    cases = load_sample("test")
    questions = asked(cases)
    answers = {case.question: case.answer[0] for case in cases if case.answer}
    (tmp_path / "cases.json").write_text(json.dumps(questions), encoding="utf-8")
    with ScriptedServer(answers) as server:
        before = answer_all(logged.export, logged.index, server.url, questions)
        n_calls = len(server.requests)
        run_id = MlflowClient(logged.uri).create_run(make_experiment(logged.uri, "tests")).info.run_id
        promote(logged.uri, register(logged.uri, NAME, logged.export, run_id, {}))
        arguments = [logged.uri, URI, logged.index, server.url, tmp_path / "cases.json", tmp_path / "told.json"]
        done = subprocess.run(
            [sys.executable, "-S", "-c", FRESH, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert str(logged.export.parent) in told["code"]  # not the checkout
    assert [said(run) for run in told["runs"]] == [said(run) for run in before]
    shown = ("answer", "citations", "abstained", "stop_reason", "error")
    assert [[row[name] for name in shown] for row in told["table"]] == [
        json.loads(json.dumps([run[name] for name in shown])) for run in before
    ]
    assert [row["lm_calls"] for row in told["table"]] == [run["usage"]["lm_calls"] for run in before]
    assert len(server.requests) == n_calls  # every prompt was the same, byte for byte: the cache had every answer
    assert {run["stop_reason"] for run in before} > {"sufficient"}  # the loop was walked, not only
    assert sum(run["abstained"] for run in before) < len(before) / 2  # its shortest way


def test_an_evaluation_of_export_and_version_says_that_they_answer_the_same(
    warm: WarmPython, workspace: Path, store: str
) -> None:
    export = make_export(workspace / "runs" / "export", workspace / "runs" / "index")
    answers = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}
    log = ("-m", "programs", "log", "runs/export", "--model", NAME)
    with ScriptedServer(answers) as server:
        env = {"COMPILED_RAG_CACHE": str(workspace / "cache")}
        for command in (log, ("-m", "programs", "promote", "1")):
            done = warm.run(*command, cwd=workspace, env=env)
            assert done.code == 0, done.err
        shutil.copytree(export, workspace / "mine")
        compared = ("mine", URI, "--cases", "cases", "--split", "dev", "--api-base", server.url, "--lm", "openai/test")
        done = warm.run("evaluate.py", *compared, cwd=workspace, env=env)
    assert done.code == 0, done.err
    lines = [line.strip() for line in done.out.splitlines()]
    assert "the same answer, citing the same passages, in 3 of 3 cases" in lines
    assert f"right only in {NAME}@champion: 0, only in mine: 0 (McNemar, p = 1.000)" in lines
    assert not [line for line in lines if " moved from " in line]
