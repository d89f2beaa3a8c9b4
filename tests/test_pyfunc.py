import sqlite3
from contextlib import closing
from pathlib import Path

import mlflow
import pandas as pd
import pytest
import tiny
from commands import make_export
from mlflow.tracking import MlflowClient
from scripted_server import ScriptedServer

from programs.tracking.pyfunc import CONFIG, AnswerTable, settings_of
from programs.tracking.stores import TrackingError

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}


def test_settings_come_from_the_model_then_the_environment_then_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(CONFIG) == CONFIG
    monkeypatch.setenv("COMPILED_RAG_INDEX", "/srv/index")
    monkeypatch.setenv("COMPILED_RAG_LM", "openai/a")
    assert settings_of(CONFIG) == CONFIG | {"index": "/srv/index", "lm": "openai/a"}
    assert settings_of(CONFIG | {"lm": "openai/b"})["lm"] == "openai/b"


def table_of(project: Path, folder: Path, url: str, **settings: object) -> AnswerTable:
    export = make_export(folder / "export", project / "runs" / "index")
    return AnswerTable(export, CONFIG | {"index": str(project / "runs" / "index"), "api_base": url} | settings)


def test_rows_are_answered_in_their_order_and_an_empty_one_says_so(project: Path, tmp_path: Path) -> None:
    asked = ["What does E-1024 mean?", " ", "风扇多久更换一次？", "What does E-9999 mean?"]
    with ScriptedServer(ANSWERS) as server:
        table = table_of(project, tmp_path, server.url, threads=3)
        rows = table.predict(pd.DataFrame({"question": asked}, index=[3, 1, 4, 2]))
    assert list(rows.index) == [3, 1, 4, 2]
    assert list(rows.answer)[::2] == ["supply voltage is below 19.2 V", "两年"]
    assert list(rows.error)[:2] == [None, "the question is empty"]
    assert list(rows.abstained) == [False, True, False, True]
    assert rows.citations.iloc[0] == ["e1024#0"]


def test_a_follow_up_is_answered_with_its_history(project: Path, tmp_path: Path) -> None:
    history = [{"role": "user", "text": "What does E-1024 mean?"}, {"role": "assistant", "text": "undervoltage"}]
    follow_up = "And which fuse is checked after it?"
    with ScriptedServer(ANSWERS | {follow_up: "F3"}) as server:
        table = table_of(project, tmp_path, server.url)
        asked = pd.DataFrame({"question": [follow_up] * 2, "history": [history, None]})
        assert list(table.predict(asked).answer) == ["F3", "F3"]
        assert len(server.calls_of("standalone")) == 1


def test_a_row_that_fails_is_that_row_and_an_lm_that_is_down_is_an_error(project: Path, tmp_path: Path) -> None:
    hard = "What does E-1025 mean?"
    replies = {"citations": lambda request: 400 if hard in str(request["messages"][-1]) else tiny.answer_json("F3")}
    with ScriptedServer(ANSWERS, replies=replies) as picky:
        rows = table_of(project, tmp_path, picky.url).predict(pd.DataFrame({"question": [hard, *list(ANSWERS)[:1]]}))
    assert rows.error.iloc[0].startswith("LM")
    assert list(rows.answer) == ["", "F3"]
    many = pd.DataFrame({"question": [f"How long may the sync cable {n} be?" for n in range(9)]})
    with (
        ScriptedServer(dies_after=0) as dead,
        pytest.raises(RuntimeError, match="the LM failed 5 times in a row"),
    ):
        table_of(project, tmp_path, dead.url).predict(many)


def test_answers_are_traced_where_a_store_is_named_and_given_where_it_fails(
    project: Path, tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = pd.DataFrame({"question": list(ANSWERS)[:2]})
    before = mlflow.get_tracking_uri()
    with ScriptedServer(ANSWERS) as server:
        table = table_of(project, tmp_path, server.url, trace_to=store)
        assert list(table.predict(asked).answer) == list(ANSWERS.values())[:2]
        client = MlflowClient(store)
        experiment = client.get_experiment_by_name("agentic-served").experiment_id
        traces = client.search_traces(locations=[experiment], filter_string="tags.stop_reason = 'sufficient'")
        assert {trace.info.request_preview for trace in traces} == set(asked.question)
        assert all(len(trace.info.tags["state_sha256"]) == 64 for trace in traces)
        with closing(sqlite3.connect(tmp_path / "runs" / "mlflow.db")) as database:
            database.execute("ALTER TABLE trace_info RENAME TO gone")
        assert list(table.predict(asked).answer) == list(ANSWERS.values())[:2]
    assert "an answer has no trace: MLflow store" in caplog.text
    assert mlflow.get_tracking_uri() == before  # of the process that serves


def test_a_store_that_cannot_be_traced_to_is_found_before_any_question(project: Path, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="unable to open database file"):
        table_of(project, tmp_path, "http://127.0.0.1:9/v1", trace_to=f"sqlite:///{tmp_path}")
