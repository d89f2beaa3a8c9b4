import json
import os
import re
import shutil
import signal
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
from scripted_server import ScriptedServer, question_of
from test_optimize import mlflow_runs
from test_optimize_gate import GOLD, write_many
from warm_python import Done, WarmPython

import evaluate
from retrievers.locks import hold_lock

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
    assert [line.split()[0] for line in lines if "0.0000" in line] == ["naive", "runs/export"]
    records = workspace / "runs" / "evaluation"
    written = {path.name for path in records.iterdir()}
    assert written == {"naive.jsonl", "export.jsonl", "summary.json", "report.html", "plots", "LOCK"}
    assert f"to look at: {Path('runs/evaluation/report.html')}" in done.err
    first = json.loads((records / "export.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (first["id"], first["outcome"], first["prediction"]["stop_reason"]) == ("dev-0", "right", "sufficient")
    names = [tracked["name"].rpartition(" · ") for tracked in mlflow_runs(workspace)]
    assert [name for name, _, _ in names] == ["naive · openai/test · 3 cases", "export · openai/test · 3 cases"]
    assert all(0 < float(score) <= 1 for _, _, score in names)
    assert mlflow_runs(workspace)[1]["metrics"]["eval.answer_score"] == 1.0
    logged = [path.read_bytes() for path in (workspace / "runs" / "mlartifacts").rglob("report.html")]
    assert logged == 2 * [(records / "report.html").read_bytes()]  # of both programs, in each run


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
    records = {path.name for path in (workspace / "runs" / "evaluation").glob("*.jsonl")}
    assert records == {"a-export.jsonl", "b-export.jsonl"}
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
        (
            ["models:/agentic-sample/1", "models:/agentic-sample@champion"],
            ["agentic-sample-1", "agentic-sample@champion"],
        ),
    ],
)
def test_short_names_tell_programs_apart(specs: list[str], names: list[str] | None) -> None:
    found = evaluate.short_names(specs)
    assert len(set(found.values())) == len(specs)
    assert not any("/" in name for name in found.values())
    assert names is None or list(found.values()) == names


def test_a_dead_case_is_an_error_of_its_own_and_more_than_two_in_a_hundred_fail_the_run(
    warm: WarmPython, workspace: Path
) -> None:
    hard = tiny.cases_of("dev")[1]["question"]
    answers = {"citations": lambda request: 400 if hard in str(request["messages"][-1]) else tiny.answer_json("140 m")}
    with ScriptedServer(ANSWERS, replies=answers) as picky:
        done = run(warm, workspace, picky, "hybrid", "--cases", "cases", "--split", "dev", "--json")
    assert done.code == 1, done.err
    summary = json.loads(done.out)["hybrid"]
    assert (summary["n"], summary["n_errors"]) == (3, 1)
    assert re.search(
        r"\nfailed: hybrid: 1 of 3 cases errored, more than 2%; the first is dev-1: LM.*\n$",
        done.err,
    )


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
    first = tiny.cases_of("train")[0]["question"]
    with ScriptedServer(ANSWERS, holds=lambda request: question_of(request) not in ("", first)) as server:
        lm = ("--lm", "openai/test", "--api-base", server.url)
        cases = ("--cases", "cases", "--split", "train", "--threads", "2")
        env = {"COMPILED_RAG_CACHE": str(workspace / "cache")}
        command = warm.start("evaluate.py", *lm, *cases, "agentic", cwd=workspace, env=env)
        command.wait_for("agentic 1/6")
        server.wait_until(lambda: server.n_held == 2)
        command.send(signal.SIGINT)
        done = command.wait()
        assert server.in_flight == server.n_held == 2  # one call a thread, and none more
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err
    assert [record["question"] for record in records_of(workspace, "agentic.jsonl.part")] == [first]
    assert [tracked["status"] for tracked in mlflow_runs(workspace)] == ["KILLED"]


def records_of(workspace: Path, name: str = "agentic.jsonl") -> list[dict[str, Any]]:
    path = workspace / "runs" / "evaluation" / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summary_of(workspace: Path) -> dict[str, Any]:
    return json.loads((workspace / "runs" / "evaluation" / "summary.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_two_evaluations_of_one_folder_are_kept_apart_and_the_second_is_told_who_holds_it(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    out = workspace / "runs" / "evaluation"
    with hold_lock(out, "evaluation"):
        done = run(warm, workspace, server, "naive", "--cases", "cases", "--split", "dev")
        assert [path.name for path in out.iterdir()] == ["LOCK"]
        other = run(warm, workspace, server, "naive", "--cases", "cases", "--split", "dev", "--out", "other")
    assert (done.code, done.out) == (2, "")
    who = rf"process {os.getpid()} \(since [\d-]+ [\d:]+\)"
    assert re.fullmatch(
        rf"error: runs/evaluation: {who} is writing this evaluation; wait for it or stop it", the_error(done.err)
    )
    assert other.code == 0


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "x", ""])
def test_a_score_to_fail_under_that_is_none_is_a_usage_error(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        evaluate.main(["naive", f"--fail-under={value}"])
    assert end.value.code == 2
    assert "argument --fail-under: " in capsys.readouterr().err


def test_a_killed_evaluation_goes_on_where_it_was(warm: WarmPython, workspace: Path) -> None:
    cases = ("agentic", "--cases", "cases", "--split", "train")
    with ScriptedServer(ANSWERS, seconds=0.1) as slow:
        lm = ("--lm", "openai/test", "--api-base", slow.url)
        env = {"COMPILED_RAG_CACHE": str(workspace / "cache")}
        command = warm.start("evaluate.py", *lm, *cases, cwd=workspace, env=env)
        command.wait_for("agentic 3/6")
        command.send(signal.SIGKILL)
        assert command.wait().code == -signal.SIGKILL
        part = workspace / "runs" / "evaluation" / "agentic.jsonl.part"
        n_done = len(part.read_bytes().splitlines())
        assert 3 <= n_done < 6
        with part.open("ab") as file:
            file.write(b'{"key": "torn')
        shutil.rmtree(workspace / "cache")
        slow.requests.clear()
        done = run(warm, workspace, slow, *cases)
        asked = {case["question"] for case in tiny.cases_of("train") if case["question"] in str(slow.requests)}
        slow.requests.clear()
        again = run(warm, workspace, slow, *cases)
        n_again = len(slow.requests)
        restarted = run(warm, workspace, slow, *cases, "--restart")
    assert (done.code, again.code, restarted.code) == (0, 0, 0), done.err
    assert len(asked) == 6 - n_done
    assert f"agentic: {n_done} of 6 cases are done already (--restart runs them again)" in done.err
    assert done.err.count("the last line is torn and left out; its case runs again") == 1
    assert [record["id"] for record in records_of(workspace)] == [case["id"] for case in tiny.cases_of("train")]
    assert not part.exists()
    assert (n_again, again.out) == (1, done.out)  # the check whether the LM answers
    assert "done already" not in restarted.err


def test_each_program_is_compared_with_the_first_and_all_with_a_baseline(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    cases = ("--cases", str(workspace / "cases"), "--split", "train")
    first = run(warm, workspace, server, "naive", *cases)
    assert first.code == 0, first.err
    baseline = workspace / "baseline.jsonl"
    records = records_of(workspace, "naive.jsonl")
    for record in records:  # as if an earlier version had been right everywhere
        record |= {"outcome": "right", "scores": {"combined": 2.0}}
    baseline.write_text("".join(map(tiny.line_of, records)), encoding="utf-8")
    done = run(warm, workspace, server, "naive", "hybrid", *cases, "--baseline", baseline, "--fail-under", "0.1")
    assert done.code == 1
    assert re.findall(r"^(\S+ − \S+): ", done.out, re.MULTILINE) == [
        "hybrid − naive",
        f"naive − {baseline}",
        f"hybrid − {baseline}",
    ]
    failures = [line for line in done.err.splitlines() if line.startswith("failed: ")]
    assert [re.sub(r" by [\d.]+, 95 .*", "", line) for line in failures] == [
        f"failed: naive: worse than {baseline}",
        f"failed: hybrid: worse than {baseline}",
    ]
    summary = summary_of(workspace)
    assert [(one["name"], one["records"], one["summary"]["n"]) for one in summary["programs"]] == [
        ("naive", "naive.jsonl", 6),
        ("hybrid", "hybrid.jsonl", 6),
    ]
    comparison = summary["comparisons"][0]
    assert (comparison["name"], comparison["baseline"], comparison["n"]) == ("hybrid", "naive", 6)
    assert sum(one["n"] for one in comparison["transitions"]) == 6
    assert {one["value"] for one in comparison["slices"]} == {"lookup", "en"}
    assert summary["programs"][0]["score_interval"]["n"] == 6
    logged = tree(workspace / "runs" / "mlartifacts")
    report = (workspace / "runs" / "evaluation" / "report.html").read_bytes()
    assert list(logged.values()).count(report) == 2
    assert b"cases (train)" in report
    assert [
        name for name, content in logged.items() if str(workspace).encode() in content or b"SECRET" in content
    ] == []


@pytest.mark.slow
def test_the_gate_judges_the_last_program_and_a_rejected_one_is_exit_code_one(
    warm: WarmPython, workspace: Path
) -> None:
    write_many(workspace)
    limits = [f"{name}_ratio=1e9" for name in ("calls", "tokens", "seconds")]
    gate = ["--gate", *(flag for limit in limits for flag in ("--gate-limit", limit))]
    with ScriptedServer(
        GOLD, replies={"quotes": lambda request: VERDICT_NOTHING}
    ) as blind:  # a judge that finds nothing
        cases = ["--cases", "many", "--split", "dev"]
        worse = run(warm, workspace, blind, "naive", "agentic", *cases, *gate)
        assert worse.code == 1, worse.err
        assert "gate: REJECT – do not use it\n  reject  worse than naive: -" in worse.out
        assert worse.err.endswith("failed: the gate rejects agentic\n")
        summary = json.loads((workspace / "runs" / "evaluation" / "summary.json").read_text(encoding="utf-8"))
        assert summary["gate"]["verdict"] == "reject"
        better = run(warm, workspace, blind, "agentic", "naive", *cases, *gate)
    assert better.code == 0, better.err
    assert "gate: PROMOTE" in better.out


VERDICT_NOTHING = '{"quotes": [], "verdict": "insufficient", "missing": "all"}'


def test_an_export_that_meets_another_lm_is_said_in_the_title(
    warm: WarmPython, workspace: Path, server: ScriptedServer
) -> None:
    make_export(workspace / "runs" / "export", workspace / "runs" / "index")
    other = ["--lm", "openai/other", "--api-base", server.url]
    done = run(warm, workspace, server, "naive", "runs/export", "--cases", "cases/test.jsonl", *other)
    assert done.code == 0, done.err
    title = done.out.strip().splitlines()[0].strip()
    assert title == "1 cases · openai/other · runs/export was compiled for openai/test"


def test_a_score_below_the_bar_fails(warm: WarmPython, workspace: Path, server: ScriptedServer) -> None:
    done = run(warm, workspace, server, "naive", "--cases", "cases/test.jsonl", "--fail-under", "1.01")
    assert done.code == 1
    assert re.search(r"^failed: naive: score \d\.\d{3}, below 1\.01$", done.err, re.MULTILINE)


def test_repeats_ask_past_the_cache_and_tell_how_alike_they_are(warm: WarmPython, workspace: Path) -> None:
    turns: list[int] = []

    def fickle(request: dict[str, Any]) -> str:
        turns.append(1)
        return tiny.answer_json("140 m" if len(turns) % 2 else "150 m")

    with ScriptedServer(ANSWERS, replies={"answer": fickle}) as server:
        done = run(warm, workspace, server, "naive", "--cases", "cases/dev.jsonl", "--limit", "1", "--repeat", "3")
    assert done.code == 0, done.err
    assert len(turns) == 3
    answers = [
        record["prediction"]["answer"]
        for name in ("naive.jsonl", "naive.repeat-2.jsonl", "naive.repeat-3.jsonl")
        for record in records_of(workspace, name)
    ]
    assert answers == ["140 m", "150 m", "140 m"]
    stability = summary_of(workspace)["programs"][0]["stability"]
    assert (stability["n_repeats"], stability["answer"], stability["verdict"]) == (3, pytest.approx(1 / 3), None)
    assert "same answer" in done.out


def test_a_grader_adds_scores_and_its_answers_are_cached(warm: WarmPython, workspace: Path) -> None:
    replies = {"relevancy": lambda request: json.dumps({"relevancy": "partial"})}
    with ScriptedServer(ANSWERS, replies=replies) as server:
        graded = ("naive", "--cases", "cases/test.jsonl", "--grader-lm", "openai/judge")
        done = run(warm, workspace, server, *graded)
        n_calls = len(server.calls_of("relevancy"))
        again = run(warm, workspace, server, *graded, "--restart")
        n_later = len(server.calls_of("relevancy"))
    assert done.code == 0, done.err
    scores = summary_of(workspace)["programs"][0]["summary"]["scores"]
    assert scores["graded_relevancy"] == 0.5
    assert {"LM", "relevant"} <= set(done.out.split())
    assert (n_calls, n_later) == (1, 1)
    assert summary_of(workspace)["grader"] == "openai/judge"
    assert again.code == 0


def test_cases_without_evidence_are_left_out_of_searches_and_told_by_kind(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [{"id": f"none-{n}", "question": "?", "answerable": False, "kind": "unanswerable"} for n in range(2)]
    path = workspace / "cases" / "dev.jsonl"
    path.write_text(
        path.read_text("utf-8") + "".join(map(tiny.line_of, [*more, more[0] | {"id": "x", "kind": ""}])), "utf-8"
    )
    kept = evaluate.choose_cases(evaluate.parse(["dense", "--retrieval-only", "--cases", str(path)]))
    assert [case.id for case in kept] == ["dev-0", "dev-1", "dev-2"]
    assert capsys.readouterr().err == (
        "3 of 6 cases left out, which name no evidence for a search to find: 2 unanswerable, 1 of no kind\n"
    )


def test_cut_off_outputs_are_counted_and_told_at_the_end(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS, replies={"citations": lambda request: '{"answer": "the supp<cut>'}) as server:
        done = run(warm, workspace, server, "hybrid", "--cases", "cases", "--split", "dev")
    assert "hybrid: the LM was cut off at its token limit 3 times" in done.out.splitlines()
    assert "truncated" not in done.err
    assert summary_of(workspace)["programs"][0]["summary"]["truncations"] == 3


def test_searches_are_measured_without_an_lm_on_a_corpus_that_is_indexed_first(
    warm: WarmPython, workspace: Path
) -> None:
    cases = ("--cases", "cases", "--split", "dev", "--corpus", "corpus.jsonl", "--lm", "nope")
    done = warm.run("evaluate.py", "dense", "hybrid", "--retrieval-only", *cases, cwd=workspace)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "3 cases · retrieval only"
    assert "left out" not in done.err
    assert {"recall@5", "MRR", "nDCG@10"} <= set(done.out.split())
    scores = summary_of(workspace)["programs"][1]["summary"]["scores"]
    assert scores["recall_at_5"] == 1.0
    [index] = (workspace / "runs" / "indexes").iterdir()
    assert index.name.startswith(f"{workspace.name}-")


def empty_index_of(workspace: Path) -> str:
    shutil.rmtree(workspace / "runs" / "index")
    (workspace / "runs" / "index").mkdir()
    return "runs/index"


def other_baseline(workspace: Path) -> str:
    record = {"id": "x", "question": "q", "kind": "", "lang": "", "scores": {"combined": 1.0}, "outcome": "right"}
    (workspace / "other.jsonl").write_text(tiny.line_of(record), encoding="utf-8")
    return "other.jsonl"


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
    "a search that is none": (lambda w: ["naive", "--retrieval-only"], r"no search 'naive': with --retrieval-only"),
    "a search with a grader": (
        lambda w: ["dense", "--retrieval-only", "--grader-lm", "openai/x"],
        r"--retrieval-only asks no LM",
    ),
    "a gate with nothing to compare": (lambda w: ["naive", "--gate"], r"--gate needs two programs"),
    "a gate without answers": (lambda w: ["dense", "keyword", "--gate", "--retrieval-only"], r"--gate needs two"),
    "a limit that is none": (lambda w: ["naive", "--gate-limit", "x=1"], r"no gate limit 'x'"),
    "a baseline that is not there": (lambda w: ["naive", "--baseline", "b.jsonl"], r"b.jsonl: no such file"),
    "a baseline of other cases": (
        lambda w: ["naive", "--baseline", other_baseline(w)],
        r"other.jsonl: no case in common",
    ),
    "a baseline that is none": (lambda w: ["naive", "--baseline", "corpus.jsonl"], r"corpus.jsonl:1: not a record"),
    "a corpus that is not there": (lambda w: ["naive", "--corpus", "none.jsonl"], r"none.jsonl"),
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
