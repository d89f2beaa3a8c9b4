"""MLflow: runs, trials, traces and versions of compiled programs; the only package that knows it."""

from programs.tracking.provenance import digest_of, experiment_name
from programs.tracking.runs import EVALUATION_RUN, TrackedRun, log_later, track
from programs.tracking.stores import TrackingError

__all__ = ["EVALUATION_RUN", "TrackedRun", "TrackingError", "digest_of", "experiment_name", "log_later", "track"]
