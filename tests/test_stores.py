"""A real tracking server over a real PostgreSQL, and what a store that can't be used says."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import mlflow
import pytest
from compiled import compiled_export, record, write_records
from mlflow.tracking import MlflowClient

from programs.tracking import track
from programs.tracking.versions import exported, find

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("stores")]
_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
_BINARIES = Path(found).parent if (found := shutil.which("initdb")) else _DEBIAN[-1] if _DEBIAN else None


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, "the server ended"
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens at {port}")


def somebody_else() -> str | None:
    """PostgreSQL refuses to run as root, and then runs as its own user, or as nobody."""
    if os.geteuid() != 0:
        return None
    return next(name for name in ("postgres", "nobody") if name in {one.pw_name for one in pwd.getpwall()})


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    if _BINARIES is None:
        pytest.skip("PostgreSQL (initdb, postgres) is not installed")
    user, port = somebody_else(), free_port()
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # a test's own folder can't be entered by another user
    if user:
        shutil.chown(folder, user)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    made = [_BINARIES / "initdb", "-D", folder / "data", "-U", "me", "--auth=trust", "--no-sync", "-E", "UTF8"]
    subprocess.run(made, check=True, user=user, capture_output=True, cwd="/", env=environment)
    flags = ["-c", "fsync=off", "-c", f"unix_socket_directories={folder}", "-c", "listen_addresses=127.0.0.1"]
    command = [_BINARIES / "postgres", "-D", folder / "data", "-p", str(port), *flags]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, user=user, cwd="/", env=environment, stdout=log, stderr=log)
    try:
        wait_for_port(port, server)
        yield f"postgresql+psycopg://me:SECRET@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tracking server that keeps runs in PostgreSQL and serves the artifacts."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", postgres, "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--artifacts-destination", str(folder / "artifacts")]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        mlflow.set_tracking_uri(None)


def log_all(uri: str, name: str, project: Path, folder: Path) -> str:
    """Log one of everything; returns the id of the run."""
    folder.mkdir()
    export = compiled_export(folder / "export", project / "runs" / "index", f"Answer {name}.")
    records = write_records(folder / "records.jsonl", [record(f"{name}-{n}") for n in range(3)])
    with track(uri, name.replace(" ", "-"), name) as tracked:
        tracked.log_params({"optimizer": "bootstrap"})
        tracked.log_scores("seed", {"score": 0.5})
        tracked.log_dataset("cases", "0123", 3, "dev")
        tracked.log_files(records, "records")
        tracked.log_traces(records, {"program": name})
        tracked.register("agentic-tiny", export, {"gate": "pass"}, champion=True)
    return tracked.run_id


def check_all(uri: str, run_id: str, name: str, folder: Path) -> None:
    client = MlflowClient(uri)
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name, run.data.metrics["seed.score"]) == ("FINISHED", name, 0.5)
    assert run.inputs.dataset_inputs[0].dataset.digest == "0123"
    traces = client.search_traces(locations=[run.info.experiment_id], filter_string=f"tags.program = '{name}'")
    assert {len(trace.data.spans) for trace in traces} == {9}
    assert len(traces) == 3
    assert find(uri, "champion").tags["gate"] == "pass"
    with exported(uri, "models:/agentic-tiny@champion") as found:
        assert (found / "prompts.md").read_bytes() == (folder / "export" / "prompts.md").read_bytes()


def test_a_tracking_server_takes_everything_and_gives_it_back(server: str, project: Path, tmp_path: Path) -> None:
    run_id = log_all(server, "by address", project, tmp_path / "work")
    check_all(server, run_id, "by address", tmp_path / "work")
    artifacts = MlflowClient(server).list_artifacts(run_id, "records")
    assert [one.path for one in artifacts] == ["records/records.jsonl"]


def test_postgresql_takes_everything_and_gives_it_back(
    server: str, postgres: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MlflowClient(server).get_experiment("0")  # the server has made the tables
    monkeypatch.chdir(tmp_path)  # without a server, artifacts lie where the command runs
    run_id = log_all(postgres, "by database", project, tmp_path / "work")
    check_all(postgres, run_id, "by database", tmp_path / "work")


def test_processes_that_make_the_same_store_at_the_same_time_get_the_same_experiment(tmp_path: Path) -> None:
    code = "from programs.tracking.stores import make_experiment as make; print(flush=True); print(make(input(), 'e'))"
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it has imported everything
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"sqlite:///{tmp_path}/new/mlflow.db\n")
            process.stdin.flush()
        told = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(told)) == 1
