import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny
from commands import WRONG_INDEX, WRONG_LM, WRONG_PROGRAM, Wrong, lm_flags, make_export, the_error, tree
from mlflow.tracking import MlflowClient
from scripted_server import ScriptedServer, fields_of
from warm_python import Done, WarmPython

from programs.__main__ import describe_hop, main
from programs.record import Hop
from retrievers.records import Hit, Passage

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}
QUESTION = "What does E-1024 mean?"


def ask(warm: WarmPython, workspace: Path, server: ScriptedServer, question: str = QUESTION, *flags: str) -> Done:
    lm = ("--lm", "openai/test", "--api-base", server.url)
    env = {"COMPILED_RAG_CACHE": str(workspace / "cache")}
    return warm.run("-m", "programs", "ask", question, *lm, *flags, cwd=workspace, env=env)


def test_an_answer_comes_with_its_source_and_what_it_cost(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS) as server:
        done = ask(warm, workspace, server)
    assert done.code == 0
    assert done.out == "supply voltage is below 19.2 V\n  [1] e1024#0  E-1024 undervoltage\n"
    assert re.fullmatch(r"2 LM calls · \d+ tokens · \d+\.\d s · stopped: sufficient\n", done.err)


def test_a_chinese_question_gets_a_chinese_answer_from_a_chinese_document(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS) as server:
        done = ask(warm, workspace, server, "控制器的保修期是多久？")
    assert done.code == 0
    assert done.out == "三十六个月\n  [1] zh-warranty#0  保修政策\n"


def test_hops_tell_what_was_searched_found_and_judged(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS) as server:
        done = ask(warm, workspace, server, QUESTION, "--show-hops")
    lines = done.out.splitlines()
    assert lines[0].startswith(f"hybrid search by rule: {QUESTION}  (")
    assert re.match(r"   1\. \d\.\d{3} relevance 1\.00  e1024#0  E-1024 undervoltage", lines[1])
    hits = [re.match(r"  ( \d|\d\d)\. \d\.\d{3} relevance (\d\.\d\d)  \S+#0  ", line) for line in lines[1:9]]
    assert all(hit and 0 <= float(hit[2]) <= 1 for hit in hits)
    assert "  judged sufficient by lm" in lines
    assert lines[-2] == "supply voltage is below 19.2 V"


def test_a_hit_without_a_relevance_is_told_without_one() -> None:
    passage = Passage("d#0", "d", "Title", "Text")
    hop = Hop("goal", "stock", "P-1", None, "lm", (Hit(passage, 0.5, 1),), (), 0.25)
    assert describe_hop(hop) == ["stock search by lm: P-1  (0.25 s)", "   1. 0.500 d#0  Title  (seen before)"]


def test_the_whole_record_is_json(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS) as server:
        done = ask(warm, workspace, server, QUESTION, "--json")
    record = json.loads(done.out)
    assert (record["answer"], record["stop_reason"]) == ("supply voltage is below 19.2 V", "sufficient")
    assert record["hops"][0]["query"] == QUESTION
    assert record["usage"]["lm_calls"] == 2


def test_an_abstention_is_exit_code_one(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS) as server:
        done = ask(warm, workspace, server, "What does E-9999 mean?")
        assert json.loads(ask(warm, workspace, server, "What does E-9999 mean?", "--json").out)["abstained"]
    assert done.code == 1
    assert done.out.startswith("The documents do not say. Searched: What does E-9999 mean?")


def test_an_answer_that_cannot_be_read_says_so(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS, replies={"citations": lambda request: "no JSON"}) as server:
        done = ask(warm, workspace, server)
    assert done.code == 1
    assert "  (unreadable LM output" in done.out
    assert done.err.endswith("stopped: error\n")


def test_an_export_answers(warm: WarmPython, workspace: Path) -> None:
    make_export(workspace / "runs" / "export", workspace / "runs" / "index")
    with ScriptedServer(ANSWERS) as server:
        assert ask(warm, workspace, server, QUESTION, "--program", "runs/export").code == 0


def test_a_run_is_traced_only_if_asked(warm: WarmPython, workspace: Path, store: str) -> None:
    with ScriptedServer(ANSWERS) as server:
        plain = ask(warm, workspace, server)
        traced = ask(warm, workspace, server, QUESTION, "--trace")
    assert traced.out == plain.out
    cost, said = traced.err.splitlines()
    assert cost.endswith("stopped: sufficient")
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("agentic-served")
    [trace] = client.search_traces(locations=[experiment.experiment_id])
    assert said == f"trace: {trace.info.trace_id}"
    names = ("program", "lm", "stop_reason", "abstained", "mlflow.traceName")
    assert [trace.info.tags[name] for name in names] == ["agentic", "openai/test", "sufficient", "false", "answer"]
    tree = [(span.name, span.span_type) for span in trace.data.spans]
    assert sorted(tree) == sorted(
        [
            ("question", "AGENT"),
            ("hop 1", "CHAIN"),
            ("hybrid search", "RETRIEVER"),
            ("judge", "LLM"),
            ("answer", "LLM"),
            ("check", "EVALUATOR"),
        ]
    )
    root = next(span for span in trace.data.spans if span.parent_id is None)
    assert root.inputs == {"question": QUESTION}
    assert root.outputs["answer"] == ANSWERS[QUESTION]
    assert trace.info.token_usage["total_tokens"] > 0


def test_an_output_that_is_cut_off_is_counted_and_not_warned_of(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS, replies={"citations": lambda request: '{"answer": "the supp<cut>'}) as server:
        done = ask(warm, workspace, server)
        told = json.loads(ask(warm, workspace, server, QUESTION, "--json").out)
    assert re.fullmatch(
        r"2 LM calls · \d+ tokens · 1 cut off at the token limit · \d+\.\d s · stopped: error\n", done.err
    )
    assert told["usage"]["truncations"] == 1


WRONG: dict[str, Wrong] = {
    "a store that cannot be opened": (
        lambda w: ["--trace", "--tracking-uri", "sqlite:///cases"],
        r"MLflow store sqlite:///cases: unable to open database file; check --tracking-uri",
    ),
    "no database": (lambda w: ["--database", "none.db"], r"none.db: no such database file"),
    "no tools": (lambda w: ["--tools", "none.toml"], r"none.toml"),
    "no day": (lambda w: ["--today", "soon"], r"--today: 'soon' is no date; write it as 2026-01-31"),
    **WRONG_LM,
    **WRONG_INDEX,
    **{
        name: (lambda w, make=make: ["--program", *make(w)], message) for name, (make, message) in WRONG_PROGRAM.items()
    },
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_input_is_one_line_exit_code_two_and_nothing_written(
    warm: WarmPython, workspace: Path, make: Any, message: str
) -> None:
    with ScriptedServer() as server:
        arguments = make(workspace)
        before = tree(workspace)
        env = {"COMPILED_RAG_CACHE": str(workspace / "cache")}
        lm = lm_flags(arguments, server.url)
        done = warm.run("-m", "programs", "ask", QUESTION, *lm, *arguments, cwd=workspace, env=env)
    assert (done.code, done.out) == (2, "")
    assert re.search(message, the_error(done.err))
    assert "SECRET" not in done.err
    assert tree(workspace) == before


@pytest.mark.parametrize("question", ["", "  \n "])
def test_an_empty_question_is_a_usage_error(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", question]) == 2
    assert capsys.readouterr().err == "error: the question is empty\n"


def test_an_interrupt_while_an_lm_thinks_is_130_without_a_traceback(warm: WarmPython, workspace: Path) -> None:
    with ScriptedServer(ANSWERS, holds=lambda request: "citations" in fields_of(request)) as server:
        lm = ("--lm", "openai/test", "--api-base", server.url)
        command = warm.start("-m", "programs", "ask", QUESTION, *lm, cwd=workspace)
        server.wait_until(lambda: server.n_held == 1)
        command.send(signal.SIGINT)
        done = command.wait()
        assert server.in_flight == 1  # it did not wait for the answer
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err


@pytest.mark.llm
def test_the_embedded_lm_answers_a_chinese_question_from_a_chinese_document(
    embedded_lm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from programs.rules import is_chinese
    from retrievers import build_index

    build_index(tiny.write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "index")
    code = main(["ask", "控制器的保修期是多久？", "--index", str(tmp_path / "index"), "--lm", embedded_lm])
    answer, *sources = capsys.readouterr().out.splitlines()
    assert code == 0
    assert is_chinese(answer)
    assert "三十六" in answer or "36" in answer
    assert any("zh-warranty#0" in source for source in sources)
