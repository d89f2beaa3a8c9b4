"""MLflow: one run a compile with its seed and compiled scores, prompts and export; one run an evaluation."""

import logging
import os
import socket
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from programs.addresses import without_secrets

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout is for results

import mlflow
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

_PROCESS = "process"
_PARAM_CHARS = 250
_STORE_ERRORS = (MlflowException, SQLAlchemyError, sqlite3.Error)
_TOTALS = ("n", "n_errors", "lm_calls", "tokens", "cost_usd", "parse_failures", "n_cached_calls")


class TrackingError(RuntimeError):
    """The MLflow store can't be used; the message says which and why."""


class TrackedRun:
    """An open MLflow run; a thin face that keeps MLflow's limits (short params, no `@` in metric names)."""

    def __init__(self, mlflow_run: Any) -> None:
        """Wrap an active run."""
        self.run_id: str = mlflow_run.info.run_id

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log settings; None is left out, long values are cut."""
        mlflow.log_params({name: str(value)[:_PARAM_CHARS] for name, value in params.items() if value is not None})

    def log_scores(self, prefix: str, scores: Mapping[str, float | None]) -> None:
        """Log metrics as `<prefix>.<name>`; what could not be measured is left out."""
        mlflow.log_metrics({f"{prefix}.{name}": value for name, value in scores.items() if value is not None})

    def log_summary(self, prefix: str, summary: Any) -> None:
        """Log everything a summary of an evaluation measured."""
        self.log_scores(prefix, summary.scores)
        self.log_scores(prefix, summary.abstention)
        self.log_scores(prefix, {name: float(getattr(summary, name)) for name in _TOTALS})
        self.log_scores(prefix, {"seconds_p50": summary.seconds_p50, "seconds_p95": summary.seconds_p95})
        self.log_scores(f"{prefix}.outcome", {name: float(n) for name, n in summary.outcomes.items()})

    def log_files(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or all files of a folder, as artifacts."""
        if path.is_dir():
            mlflow.log_artifacts(str(path), folder)
        else:
            mlflow.log_artifact(str(path), folder)

    def rename(self, name: str) -> None:
        """Give the run the name that a list of runs shows."""
        mlflow.set_tag("mlflow.runName", name)


@contextmanager
def track(tracking_uri: str, experiment: str, name: str) -> Iterator[TrackedRun]:
    """Open a run in an experiment; it ends as FINISHED, or as FAILED or KILLED after an error or Ctrl-C.

    Raises:
        TrackingError: The store can't be opened, or stopped taking what is logged.
    """
    try:
        _prepare(tracking_uri, experiment)
        _close_orphans(experiment)
        # MLflow would note the absolute path of the script.
        tags = {"mlflow.source.name": Path(sys.argv[0]).name, _PROCESS: f"{socket.gethostname()}:{os.getpid()}"}
        active = mlflow.start_run(run_name=name, tags=tags)
    except (*_STORE_ERRORS, OSError, ImportError) as error:  # ImportError: the driver of a database is not installed
        raise _tracking_error(tracking_uri, error) from error
    try:
        yield TrackedRun(active)
        mlflow.end_run()
    except KeyboardInterrupt:
        _end_run("KILLED")
        raise
    except _STORE_ERRORS as error:
        _end_run("FAILED")
        raise _tracking_error(tracking_uri, error) from error
    except BaseException:
        _end_run("FAILED")
        raise


def _close_orphans(experiment: str) -> None:
    """End the runs of processes that are gone, which a kill left as running for ever."""
    running = mlflow.search_runs(
        experiment_names=[experiment], filter_string="attributes.status = 'RUNNING'", output_format="list"
    )
    for one in running:
        host, _, pid = one.data.tags.get(_PROCESS, "").rpartition(":")
        if host == socket.gethostname() and not _is_alive(int(pid)):
            mlflow.tracking.MlflowClient().set_terminated(one.info.run_id, "KILLED")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's process
        return True
    return True


def _end_run(status: str) -> None:
    with suppress(*_STORE_ERRORS):  # the error that ended the run matters more than that the store could not note it
        mlflow.end_run(status)


def _tracking_error(tracking_uri: str, error: Exception) -> TrackingError:
    reason = str(error).splitlines()[0].replace(tracking_uri, without_secrets(tracking_uri))
    return TrackingError(f"MLflow store {without_secrets(tracking_uri)}: {reason}; check --tracking-uri")


def _prepare(tracking_uri: str, experiment: str) -> None:
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(tracking_uri)
    if tracking_uri.startswith("sqlite:///"):
        _make_sqlite_experiment(Path(tracking_uri.removeprefix("sqlite:///")), experiment)
    mlflow.set_experiment(experiment)


def _make_sqlite_experiment(database: Path, experiment: str) -> None:
    # Beside its database an experiment finds its artifacts from wherever the UI is started.
    database.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(database)) as connection:  # MLflow would try for minutes to open what can't be opened
        connection.execute("PRAGMA schema_version")
    if mlflow.get_experiment_by_name(experiment) is None:
        folder = (database.parent / "mlartifacts" / experiment).resolve()
        mlflow.create_experiment(experiment, artifact_location=folder.as_uri())
