"""The parts of a compile that look before it and judge it after: preflight, gate, changes, pruning."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from commands import contents, make_export, the_error
from scripted_server import Request, ScriptedServer, has_demos, question_of
from test_optimize import mlflow_runs, run
from warm_python import WarmPython

pytestmark = pytest.mark.slow

DEV = [
    case | {"id": f"{case['id']}-{n}", "question": f"{case['question']} ({n})"}
    for case in tiny.cases_of("dev")
    for n in range(7)
]
TRAIN = tiny.cases_of("train")
GOLD = {case["question"]: case["answer"][0] for case in [*TRAIN, *DEV]}
MANY = ["--cases", "many", "--gate-limit", "seconds_ratio=1e9", "--max-demos", "2"]


def write_many(workspace: Path) -> None:
    """Write 21 dev cases, enough for the gate, into the folder `many`."""
    (workspace / "many").mkdir()
    for split, cases in {"train": TRAIN, "dev": DEV}.items():
        (workspace / "many" / f"{split}.jsonl").write_text("".join(map(tiny.line_of, cases)), encoding="utf-8")


@pytest.fixture
def project_with_21_dev_cases(workspace: Path) -> Path:
    write_many(workspace)
    return workspace


@pytest.fixture
def improvable() -> Iterator[ScriptedServer]:
    """Answers every second dev question only with demos."""
    hard = frozenset([case["question"] for case in DEV[::2]] + [TRAIN[-1]["question"]])
    with ScriptedServer(GOLD, needs_demos=hard) as server:
        yield server


def manifest_of(export: Path) -> dict[str, Any]:
    built_by: dict[str, Any] = json.loads((export / "manifest.json").read_text(encoding="utf-8"))["built_by"]
    return built_by


def test_a_dry_run_looks_ahead_and_leaves_nothing(
    warm: WarmPython, workspace: Path, improvable: ScriptedServer
) -> None:
    done = run(warm, workspace, improvable, "--dry-run", "--probe", "2", "--optimizer", "chain:bootstrap,mipro")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "preflight:"
    assert [line[8:20].strip() for line in lines[1:]] == [
        "packages", "cases", "held out", "answer LM", "decision LM",
        "headroom", "demos", "judge", "compile", "measuring",
    ]  # fmt: skip
    assert re.search(r"compile     .* LM calls · .* tokens · .* (s|min|h)\b", done.out)
    assert mlflow_runs(workspace) == []
    assert not (workspace / "runs" / "export").exists()
    assert not (workspace / "runs" / "compile").exists()


def test_a_hopeless_compile_is_refused_with_the_likely_causes(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer({}) as ignorant:
        done = run(warm, workspace, ignorant)
    assert (done.code, done.out) == (1, "")
    assert "  STOP  demos       no run of 6 by the seed program is good enough to become a demo\n" in done.err
    assert re.search(r"likely causes:\n +1\. .*\n +2\. .*\n +3\. ", done.err)
    assert done.err.endswith("refused; --force compiles all the same\n")
    assert not (workspace / "runs" / "export").exists()
    [tracked] = mlflow_runs(workspace)
    assert tracked["name"].endswith(" · refused")


def test_what_looking_ahead_asked_is_not_asked_again(
    warm: WarmPython, workspace: Path, improvable: ScriptedServer
) -> None:
    assert run(warm, workspace, improvable, "--dry-run").code == 0
    n_calls = len(improvable.requests)
    again = run(warm, workspace, improvable, "--dry-run")
    assert again.code == 0
    assert len(improvable.requests) == n_calls + 1  # the check that the LM is there


def test_a_regression_is_rejected_and_replaces_nothing(warm: WarmPython, project_with_21_dev_cases: Path) -> None:
    def spoilt_by_demos(request: Request) -> str:
        return tiny.answer_json("nonsense" if has_demos(request) else GOLD.get(question_of(request), "?"))

    workspace = project_with_21_dev_cases
    before = contents(make_export(workspace / "runs" / "export", workspace / "runs" / "index"))
    with ScriptedServer(GOLD, replies={"answer": spoilt_by_demos}) as server:
        done = run(warm, workspace, server, *MANY)
    assert done.code == 1, done.err
    assert "gate: REJECT – do not use it\n  reject  worse than seed: -" in done.out
    assert "export:  runs/export-reject\n" in done.out
    assert contents(workspace / "runs" / "export") == before
    gate = manifest_of(workspace / "runs" / "export-reject")["gate"]
    assert gate["verdict"] == "reject"
    assert gate["reasons"][0].startswith("reject: worse than seed")
    assert mlflow_runs(workspace)[0]["tags"]["gate"] == "reject"


def test_an_improvement_is_promoted_and_then_has_to_be_beaten(
    warm: WarmPython, project_with_21_dev_cases: Path, improvable: ScriptedServer
) -> None:
    workspace = project_with_21_dev_cases
    done = run(warm, workspace, improvable, *MANY)
    assert done.code == 0, done.err
    assert "gate: PROMOTE – proven better than what is in use\n" in done.out
    assert re.search(
        r"changed:\n  answer    2 demos added; prompt ≈ \d+ → \d+ tokens; answer_score 0\.\d+ → 1\.000", done.out
    )
    promoted = contents(workspace / "runs" / "export")
    assert "# What compiling changed" in promoted["prompts.md"].decode()
    page = (workspace / "runs" / "compile" / "changes.html").read_text(encoding="utf-8")
    assert "demo added" in page
    assert list((workspace / "runs" / "mlartifacts").rglob("changes.html"))

    again = run(warm, workspace, improvable, *MANY, "--champion", "runs/export")
    assert again.code == 0, again.err
    assert "gate: KEEP – not proven better" in again.out
    assert "not proven better than champion: +0.000" in again.out
    assert again.out.splitlines()[-3] == "export:  runs/export-keep"
    assert contents(workspace / "runs" / "export") == promoted
    assert [line.split()[0] for line in again.out.splitlines()[4:7]] == ["seed", "compiled", "champion"]


def test_demos_that_do_not_pay_are_pruned(warm: WarmPython, workspace: Path, improvable: ScriptedServer) -> None:
    done = run(warm, workspace, improvable, "--prune-demos", "--max-demos", "2", "--eval-limit", "1", "--no-gate")
    assert done.code == 0, done.err
    found = re.search(r"pruning: (\d+) of (\d+) demos dropped, ≈ \d+ tokens; score (\S+) → (\S+)\n", done.err)
    assert found, done.err
    assert 0 < int(found[1]) < int(found[2])
    assert found[3] == found[4]
    state = json.loads((workspace / "runs" / "export" / "program.json").read_text(encoding="utf-8"))
    assert sum(len(one["demos"]) for one in state.values()) == int(found[2]) - int(found[1])
    assert "gate:" not in done.out
    assert "gate" not in manifest_of(workspace / "runs" / "export")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gate-limit", "tokens=3"], r"no gate limit 'tokens', expected NAME=VALUE with one of min_cases, "),
        (["--champion", "none"], r"no program 'none': expected "),
        (["--out", "many"], r"many exists and is no export"),
        (["--out", "man"], r"man-reject exists and is no export"),
    ],
)
def test_a_wrong_flag_is_one_line_before_any_call(
    warm: WarmPython, project_with_21_dev_cases: Path, improvable: ScriptedServer, flags: list[str], message: str
) -> None:
    (project_with_21_dev_cases / "man-reject").mkdir()
    (project_with_21_dev_cases / "man-reject" / "mine").touch()
    done = run(warm, project_with_21_dev_cases, improvable, *flags)
    assert (done.code, done.out) == (2, "")
    assert re.search(message, the_error(done.err))
