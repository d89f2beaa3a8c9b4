import json
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import mlflow
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from programs.tracking import TrackingError, track
from programs.tracking.provenance import shareable


@pytest.fixture(autouse=True)
def _restore_uri() -> Iterator[None]:
    yield
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(None)


def runs_in(store: str, experiment: str = "tests") -> list[Run]:
    client = MlflowClient(store)
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def test_a_run_holds_its_params_metrics_files_and_name(store: str, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "prompts.md").write_text("提示", encoding="utf-8")
    (tmp_path / "records.jsonl").write_text("{}\n", encoding="utf-8")
    with track(store, "tests", "first name") as tracked:
        tracked.log_params({"optimizer": "bootstrap", "n": 3, "nothing": None, "long": "x" * 9000})
        tracked.log_scores("seed", {"recall_at_5": 0.5, "unmeasured": None})
        tracked.log_files(tmp_path / "records.jsonl", "records")
        tracked.log_files(folder, "export")
        tracked.rename("last name")
    [run] = runs_in(store)
    assert (run.info.status, run.info.run_name, run.info.run_id) == ("FINISHED", "last name", tracked.run_id)
    assert run.data.params == {"optimizer": "bootstrap", "n": "3", "long": "x" * 250}
    assert run.data.metrics == {"seed.recall_at_5": 0.5}
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "export" / "prompts.md").read_text(encoding="utf-8") == "提示"
    assert (artifacts / "records" / "records.jsonl").is_file()


def test_no_name_of_the_machine_and_no_folder_is_told_of_where_a_run_comes_from(store: str) -> None:
    with track(store, "tests", "n"):
        pass
    [run] = runs_in(store)
    assert socket.gethostname() not in run.data.tags["process"]
    assert not [tag for tag in run.data.tags.values() if tag.startswith("/")]


@pytest.mark.parametrize(
    ("remote", "shown"),
    [
        ("/srv/checkouts/rag/.", ""),
        ("file:///srv/rag", ""),
        ("", ""),
        ("https://me:SECRET@git.example.com/rag.git", "https://git.example.com/rag.git"),
        ("git@git.example.com:team/rag.git", "git@git.example.com:team/rag.git"),
    ],
)
def test_a_remote_is_told_without_secrets_and_a_folder_is_not(remote: str, shown: str) -> None:
    assert shareable(remote) == shown


def test_artifacts_lie_beside_the_database_wherever_the_command_was_started(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with track(store, "tests", "n") as tracked:
        tracked.log_files(Path(__file__))
    assert list((tmp_path / "runs" / "mlartifacts" / "tests").rglob("test_tracking.py"))
    assert list(elsewhere.iterdir()) == []


def test_a_store_can_be_named_relative_to_the_folder(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with track("sqlite:///./runs/mlflow.db", "tests", "n"):  # MLflow keeps stores by their URI: one of this test alone
        pass
    assert len(runs_in(store)) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), "KILLED"), (ValueError("x"), "FAILED"), (SystemExit(3), "FAILED")],
    ids=["interrupt", "error", "exit"],
)
def test_a_run_that_does_not_end_well_says_so(store: str, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), track(store, "tests", "n"):
        raise error
    [run] = runs_in(store)
    assert run.info.status == status
    assert run.info.end_time is not None
    assert mlflow.active_run() is None


def test_a_second_run_can_follow_one_that_failed(store: str) -> None:
    with pytest.raises(ValueError, match="x"), track(store, "tests", "n"):
        raise ValueError("x")
    with track(store, "tests", "n"):
        pass
    assert sorted(run.info.status for run in runs_in(store)) == ["FAILED", "FINISHED"]


def make_text_file(folder: Path) -> str:
    (folder / "notes.txt").write_text("not a database, however one looks at it", encoding="utf-8")
    return f"sqlite:///{folder}/notes.txt"


def make_unknown_version(folder: Path) -> str:
    with closing(sqlite3.connect(folder / "newer.db")) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.execute("INSERT INTO alembic_version VALUES ('of a later MLflow')")
        connection.commit()
    return f"sqlite:///{folder}/newer.db"


STORES = {
    "a database of another version": make_unknown_version,
    "a folder": lambda folder: f"sqlite:///{folder}",
    "a text file": make_text_file,
    "under a file": lambda folder: make_text_file(folder) + "/x.db",
    "a scheme that is none": lambda folder: "nonsense://me:SECRET@h/x",
    "a server that is down": lambda folder: "http://me:SECRET@127.0.0.1:9",
    "a folder of files": lambda folder: str(folder / "mlruns"),
    "a database without its driver": lambda folder: "postgresql+nodriver://me:SECRET@127.0.0.1:9/x",
}


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_a_store_that_cannot_be_opened_is_one_error_at_once(
    make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(TrackingError, match=r"^MLflow store .*; check --tracking-uri$") as caught,
        track(
            make(tmp_path),  # type: ignore[operator]
            "tests",
            "n",
        ),
    ):
        raise AssertionError("opened")
    assert "SECRET" not in str(caught.value)
    assert mlflow.active_run() is None


def test_an_empty_experiment_name_is_refused(store: str) -> None:
    with pytest.raises(TrackingError, match="Invalid experiment name"), track(store, "", "n"):
        raise AssertionError("opened")


def log(store: str, *params: dict[str, int], between: Callable[[], None] = lambda: None) -> None:
    with track(store, "tests", "n") as tracked:
        for one in params:
            tracked.log_params(one)
            between()


def test_a_store_that_breaks_during_the_run_is_one_error(store: str, tmp_path: Path) -> None:
    def break_it() -> None:
        with closing(sqlite3.connect(tmp_path / "runs" / "mlflow.db")) as connection:
            connection.execute("DROP TABLE IF EXISTS params")
            connection.commit()

    with pytest.raises(TrackingError, match="no such table: params"):
        log(store, {"a": 1}, {"b": 2}, between=break_it)


def test_a_param_cannot_be_overwritten_silently(store: str) -> None:
    with pytest.raises(TrackingError, match="Changing param values is not allowed"):
        log(store, {"a": 1}, {"a": 2})


def everything_in(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return json.dumps({t: connection.execute(f"SELECT * FROM {t}").fetchall() for t in tables}, default=str)


def test_the_script_is_noted_by_its_name_not_its_place(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/me/SECRET-project/optimize.py", "--api-base", "SECRET"])
    with track(store, "tests", "n"):
        pass
    [run] = runs_in(store)
    assert run.data.tags["mlflow.source.name"] == "optimize.py"
    assert "SECRET" not in everything_in(tmp_path / "runs" / "mlflow.db")


def test_a_tracking_server_is_not_advertised_on_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with FakeTracking(tmp_path) as server:
        with track(server.url, "tests", "n") as tracked:
            tracked.log_scores("seed", {"score": 1.0})
        assert server.statuses == ["FINISHED"]
        assert server.authorizations == {"Basic bWU6U0VDUkVU"}  # me:SECRET
    assert capsys.readouterr().out == ""


class FakeTracking:
    """As much of MLflow's REST interface as one run needs."""

    def __init__(self, artifacts: Path) -> None:
        self.statuses: list[str] = []
        self.artifacts = artifacts.as_uri()
        self.authorizations: set[str | None] = set()
        self._server = HTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://me:SECRET@127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FakeTracking":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self
        experiment = {"experiment_id": "1", "name": "tests", "lifecycle_stage": "active", "artifact_location": "x"}
        info = {"run_id": "r", "run_name": "n", "experiment_id": "1", "status": "RUNNING"}
        info["artifact_uri"] = self.artifacts
        replies = {"experiments/get-by-name": {"experiment": experiment}, "experiments/get": {"experiment": experiment}}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if "runs/update" in self.path:
                    outer.statuses.append(body["status"])
                self._reply()

            def _reply(self) -> None:
                outer.authorizations.add(self.headers["Authorization"])
                path = self.path.partition("mlflow/")[2].partition("?")[0]
                run = {"run": {"info": info, "data": {}}, "run_info": info}
                data = json.dumps(replies.get(path, run)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


def test_nothing_is_sent_to_mlflows_makers() -> None:
    from mlflow.telemetry.utils import is_telemetry_disabled

    assert is_telemetry_disabled()


def test_a_run_whose_process_was_killed_is_closed_by_the_next(store: str) -> None:
    script = (
        "import os, sys\nfrom programs.tracking import track\n"
        "with track(sys.argv[1], 'tests', 'killed'):\n    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, store], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert [run.info.status for run in runs_in(store)] == ["RUNNING"]
    with track(store, "tests", "next"):
        statuses = {run.info.run_name: run.info.status for run in runs_in(store)}
    assert statuses == {"killed": "KILLED", "next": "RUNNING"}
