"""What a store may not hold, looked for in all of it after all that writes to it has run; and no network was used."""

import importlib.util
import json
import os
import pickletools
import shutil
import socket
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Self

import mlflow
import pytest
import tiny
from scripted_server import ScriptedServer
from warm_python import ROOT, WarmPython

pytestmark = pytest.mark.slow
ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}
HARD = frozenset(list(ANSWERS)[4:9])
QUESTION = "What does E-1024 mean?"
CHAMPION = "models:/agentic-cases@champion"
LOAD = """
import json, sys
import mlflow, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2], model_config=json.loads(sys.argv[3]))
print(model.predict(pd.DataFrame({"question": [sys.argv[4]]})).answer[0])
"""


class Proxy:
    """Stands where the network would be, and notes what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_error(502)

            def do_POST(self) -> None:
                self.do_GET()

            def do_CONNECT(self) -> None:
                self.do_GET()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.env = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": "127.0.0.1"}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass(frozen=True)
class Used:
    """A folder whose store everything has written to, the port of the LM, what was printed, what went to the proxy."""

    folder: Path
    port: str
    printed: str
    asked_of_the_network: list[str]


@pytest.fixture(scope="module")
def used(
    warm: WarmPython, project: Path, new_store: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Used]:
    """Two compiles, an evaluation of both versions, one promoted, asked with a trace, and loaded by its alias."""
    folder = tmp_path_factory.mktemp("used")
    new_store(folder)
    shutil.copytree(project, folder, dirs_exist_ok=True)
    printed: list[str] = []
    with ScriptedServer(ANSWERS, needs_demos=HARD) as server, Proxy() as proxy:
        env = {"COMPILED_RAG_CACHE": str(folder / "cache"), "LM_API_KEY": "SECRET", **proxy.env}
        lm = ("--lm", "openai/test", "--api-base", server.url)

        def run(*command: object) -> None:
            done = warm.run(*command, cwd=folder, env=env)
            assert done.code == 0, done.err
            printed.extend((done.out, done.err))

        out = folder / "runs" / "export"  # an absolute path and a key: neither may be found again
        run("optimize.py", "--cases", folder / "cases", *lm, "--out", out)
        run("optimize.py", "--cases", folder / "cases", *lm, "--optimizer", "labeled", "--out", folder / "runs" / "two")
        run("evaluate.py", "agentic", out, "models:/agentic-cases/2", "--cases", folder / "cases/dev.jsonl", *lm)
        run("-m", "programs", "promote", "1")
        run("-m", "programs", "versions")
        run("-m", "programs", "ask", QUESTION, "--program", CHAMPION, "--trace", *lm)
        printed.append(load_by_alias(folder, server.url, env))
        yield Used(folder, server.url.split(":")[2].partition("/")[0], "".join(printed), proxy.asked)
    mlflow.set_tracking_uri(None)


def load_by_alias(folder: Path, url: str, env: dict[str, str]) -> str:
    """Answer a question in a new process that may write bytecode, with the code of the version."""
    (folder / "elsewhere").mkdir()
    config = json.dumps({"index": str(folder / "runs" / "index"), "api_base": url})
    uri = f"sqlite:///{folder}/runs/mlflow.db"
    env = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"], "PYTHONDONTWRITEBYTECODE": "", **env}
    command = [sys.executable, "-S", "-c", LOAD, uri, CHAMPION, config, QUESTION]
    done = subprocess.run(command, cwd=folder / "elsewhere", env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == ANSWERS[QUESTION]
    return done.stdout + done.stderr


def values_of(database: Path) -> Iterator[tuple[str, bytes]]:
    """Every value in a database, by its table and column."""
    with closing(sqlite3.connect(database)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = connection.execute(f'SELECT * FROM "{table}"')
            for row in rows:
                for column, value in zip(rows.description, row, strict=True):
                    plain = value if isinstance(value, bytes) else str(value).encode()
                    yield f"{table}.{column[0]}", plain


def everything_in_the_store(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of the artifacts, the database as a file, and every value of it; but for the places of artifacts.

    Those are the store's own, which its database has to know.
    """
    for path in (folder / "runs" / "mlartifacts").rglob("*"):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()
    database = folder / "runs" / "mlflow.db"
    for name, content in (
        *((one.name, one.read_bytes()) for one in database.parent.glob("mlflow.db*")),
        *values_of(database),
    ):
        for place in ("runs/mlartifacts", "mlruns/0"):
            content = content.replace(os.fsencode(folder / place), b"")
        yield name, content


def is_pickle(content: bytes) -> bool:
    """Whether this is a pickle: what the protocols from 2 on begin with, and what older ones are made of."""
    if content.startswith(b"\x80"):
        return True
    try:
        return len(content) > 2 and content.endswith(b".") and any(pickletools.genops(content))
    except Exception:  # noqa: BLE001 - pickletools raises whatever it stumbles over; then it is none
        return False


def test_no_secret_no_path_and_no_address_is_anywhere_in_a_store(used: Used) -> None:
    forbidden = {b"SECRET", f"127.0.0.1:{used.port}".encode()}
    forbidden |= {one.encode() for one in [socket.gethostname()] if len(one) > 6}  # `vm` is a word
    forbidden |= {os.fsencode(place) for place in (used.folder, ROOT, sys.prefix, Path(sys.executable).parent)}
    for name, content in everything_in_the_store(used.folder):
        assert not [one for one in forbidden if one in content], name
    assert "SECRET" not in used.printed


def test_no_pickle_and_no_bytecode_is_anywhere_in_a_store(used: Used) -> None:
    n_looked_at = 0
    for name, content in everything_in_the_store(used.folder):
        assert not name.endswith((".pkl", ".pickle", ".pyc", ".joblib", ".cloudpickle")), name
        assert importlib.util.MAGIC_NUMBER not in content[:16], name
        assert not is_pickle(content), name
        n_looked_at += 1
    assert n_looked_at > 1000
    assert (used.folder / "runs" / "mlflow.db").is_file()


def test_nothing_was_asked_of_the_network(used: Used) -> None:
    assert used.asked_of_the_network == []
    assert "metadata refresh" not in used.printed
