"""MLflow: one run a compile with its seed and compiled scores, prompts and export; one run an evaluation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

_PARAM_CHARS = 250
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
        TrackingError: The store can't be opened.
    """
    try:
        _prepare(tracking_uri, experiment)
        active = mlflow.start_run(run_name=name)
    except (MlflowException, OSError) as error:
        raise TrackingError(
            f"MLflow store {tracking_uri}: {str(error).splitlines()[0]}; check --tracking-uri"
        ) from error
    try:
        yield TrackedRun(active)
    except KeyboardInterrupt:
        mlflow.end_run("KILLED")
        raise
    except BaseException:
        mlflow.end_run("FAILED")
        raise
    mlflow.end_run()


def _prepare(tracking_uri: str, experiment: str) -> None:
    mlflow.set_tracking_uri(tracking_uri)
    if tracking_uri.startswith("sqlite:///"):
        _make_sqlite_experiment(Path(tracking_uri.removeprefix("sqlite:///")), experiment)
    mlflow.set_experiment(experiment)


def _make_sqlite_experiment(database: Path, experiment: str) -> None:
    # Beside its database an experiment finds its artifacts from wherever the UI is started.
    database.parent.mkdir(parents=True, exist_ok=True)
    if mlflow.get_experiment_by_name(experiment) is None:
        folder = (database.parent / "mlartifacts" / experiment).resolve()
        mlflow.create_experiment(experiment, artifact_location=folder.as_uri())
