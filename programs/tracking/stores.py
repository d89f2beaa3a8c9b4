"""MLflow stores: opened quietly, and one clear error where one can't be used."""

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from programs.addresses import without_secrets
from retrievers.locks import locked

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout is for results
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # MLflow's seven are minutes at every call

import mlflow
from alembic.util import CommandError
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.tracking import MlflowClient
from requests import RequestException
from sqlalchemy.exc import SQLAlchemyError

STORE_ERRORS = (MlflowException, SQLAlchemyError, sqlite3.Error, RequestException, CommandError)
_SQLITE = "sqlite:///"
_ARTIFACTS = "mlartifacts"

P = ParamSpec("P")
R = TypeVar("R")


class TrackingError(RuntimeError):
    """The MLflow store can't be used; the message says which and why."""


def open_store(tracking_uri: str) -> None:
    """Make this the store that MLflow works on, without its chatter."""
    _silence()
    mlflow.set_tracking_uri(tracking_uri)


def _silence() -> None:
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs what it raises, with a traceback


def make_experiment(tracking_uri: str, experiment: str) -> str:
    """Open a store and an experiment in it, which is made if it is new; returns its id."""
    open_store(tracking_uri)
    find_experiment(tracking_uri, experiment)
    return str(mlflow.set_experiment(experiment).experiment_id)


def find_experiment(tracking_uri: str, experiment: str) -> str:
    """Return the id of an experiment, made if it is new; the store that MLflow works on stays as it is."""
    client, folder = _connect(tracking_uri), None
    if tracking_uri.startswith(_SQLITE):
        beside = Path(tracking_uri.removeprefix(_SQLITE)).parent / _ARTIFACTS
        folder = (beside / experiment).resolve().as_uri()  # found there from wherever the UI is started
    if known := client.get_experiment_by_name(experiment):
        return str(known.experiment_id)
    try:
        return str(client.create_experiment(experiment, artifact_location=folder))
    except MlflowException as error:
        made = client.get_experiment_by_name(experiment)  # by another process, meanwhile
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS) or made is None:
            raise
        return str(made.experiment_id)


def _connect(tracking_uri: str) -> MlflowClient:
    """Open a store; of a database alone in its folder, as two processes that make its tables break each other's."""
    _silence()
    if not tracking_uri.startswith(_SQLITE):
        return MlflowClient(tracking_uri)
    database = Path(tracking_uri.removeprefix(_SQLITE))
    database.parent.mkdir(parents=True, exist_ok=True)
    with locked(database.parent):
        with closing(sqlite3.connect(database)) as connection:  # MLflow would try for minutes to open what it can't
            connection.execute("PRAGMA schema_version")
        return MlflowClient(tracking_uri)


@contextmanager
def only_writer(tracking_uri: str) -> Iterator[None]:
    """Be alone where several calls change a SQLite store together; a server has no such lock to ask for."""
    if not tracking_uri.startswith(_SQLITE):
        yield
        return
    artifacts = Path(tracking_uri.removeprefix(_SQLITE)).parent / _ARTIFACTS
    artifacts.mkdir(parents=True, exist_ok=True)
    with locked(artifacts):
        yield


@contextmanager
def one_error(tracking_uri: str) -> Iterator[None]:
    """Turn whatever a store raises in this block into a `TrackingError`."""
    try:
        yield
    except (*STORE_ERRORS, ImportError) as error:  # ImportError: the driver of a database is not installed
        raise tracking_error(tracking_uri, error) from error


def tracking_error(tracking_uri: str, error: Exception) -> TrackingError:
    """Return the one error for what a store raised, without the secrets of its address."""
    reason = str(error).splitlines()[0].replace(tracking_uri, without_secrets(tracking_uri))
    return TrackingError(f"MLflow store {without_secrets(tracking_uri)}: {reason}; check --tracking-uri")


def guarded(run: Callable[Concatenate[str, P], R]) -> Callable[Concatenate[str, P], R]:
    """Open the store that is the first argument of a function, and turn what it raises into a `TrackingError`."""

    @wraps(run)
    def guard(tracking_uri: str, *args: P.args, **kwargs: P.kwargs) -> R:
        with one_error(tracking_uri):
            database = Path(tracking_uri.removeprefix(_SQLITE))
            if tracking_uri.startswith(_SQLITE) and not database.is_file():  # MLflow would make one, and find it empty
                raise TrackingError(f"no MLflow store at {database}; optimize.py makes one, or see --tracking-uri")
            open_store(tracking_uri)
            _connect(tracking_uri)
            return run(tracking_uri, *args, **kwargs)

    return guard
