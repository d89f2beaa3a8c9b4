"""Runs the command lines as processes without paying for their imports each time.

One Python process imports the libraries and then forks a child for every command, so a command is a real process: it
has its own exit code, output, working folder and environment, and can be interrupted and killed.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]
WARM = (
    "chromadb",
    "dspy.clients.execution",
    "dspy.teleprompt",
    "git",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "optuna",
    "programs.lms",
    "programs.load",
    "programs.optimizers",
    "programs.registry",
    "retrievers.build",
    "rich.progress",
    "trainsets.checks",
    "trainsets.evaluation",
)


@dataclass(frozen=True)
class Done:
    """A command that ended; `code` is negative after a signal."""

    code: int
    out: str
    err: str


class WarmPython:
    """Starts commands one at a time."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env

    def __enter__(self) -> Self:
        self._parent = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._env
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._parent.stdin.close()
        self._parent.wait(timeout=60)
        self._parent.stdout.close()

    def start(self, *command: object, cwd: Path, env: dict[str, str] | None = None) -> "Command":
        """Start `optimize.py …`, `evaluate.py …` or `-m package …` in `cwd`."""
        outputs = Path(cwd) / ".outputs"
        outputs.mkdir(exist_ok=True)
        paths = [str(outputs / name) for name in ("out", "err")]
        for path in paths:
            Path(path).write_bytes(b"")
        order = {"command": [*map(str, command)], "cwd": str(cwd), "env": env or {}, "outputs": paths}
        self._send(order)
        return Command(self, self._receive()["pid"], outputs)

    def run(self, *command: object, cwd: Path, env: dict[str, str] | None = None) -> Done:
        """Run a command to its end."""
        return self.start(*command, cwd=cwd, env=env).wait()

    def _send(self, order: dict[str, Any]) -> None:
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        return json.loads(self._parent.stdout.readline())


@dataclass(frozen=True)
class Command:
    """A command that was started."""

    warm: WarmPython
    pid: int
    outputs: Path

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait_for(self, text: str, seconds: float = 600) -> None:
        """Wait until stderr holds `text`; the time is for a test that is broken, not for a slow machine."""
        until = time.monotonic() + seconds
        while text not in (err := (self.outputs / "err").read_text(encoding="utf-8", errors="replace")):
            if time.monotonic() > until:
                self.send(signal.SIGKILL)
                raise AssertionError(f"{text!r} did not appear in {err!r}")
            time.sleep(0.01)

    def wait(self) -> Done:
        code = self.warm._receive()["code"]
        out, err = ((self.outputs / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return Done(code, out, err)


def _serve() -> None:
    """Fork a child for every order that comes in, and report its process id and its exit code."""
    sys.path.insert(0, str(ROOT))
    for name in WARM:
        importlib.import_module(name)
    importlib.import_module(
        "mlflow.utils.requirements_utils"
    )._init_packages_to_modules_map()  # seconds, once a process
    importlib.import_module("retrievers").load_embedder()  # kept by the package, so a child has it from the start
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(order)
        print(json.dumps({"pid": pid}), flush=True)  # noqa: T201
        print(json.dumps({"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}), flush=True)  # noqa: T201


def _become(order: dict[str, Any]) -> None:
    import runpy

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent that ignores it would hand that down
    os.chdir(order["cwd"])
    os.environ.update(order["env"])
    for number, path in enumerate(order["outputs"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    name, *arguments = order["command"]
    try:
        if name == "-m":
            sys.argv = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [str(ROOT / name), *arguments]
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - shown as the interpreter would show it
        sys.excepthook(*sys.exc_info())
        code = 1
    else:
        code = 0
    import threading

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    threading._shutdown()  # what the interpreter does at its end: wait for threads
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    _serve()
