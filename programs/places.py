"""Where things are that no flag names: runs/ with the index, the export and the MLflow store in it."""

import os
from pathlib import Path

RUNS_DIR = Path("runs")
INDEX_DIR = RUNS_DIR / "index"
EXPORT_DIR = RUNS_DIR / "export"
TRACKING_URI = f"sqlite:///{RUNS_DIR}/mlflow.db"


def tracking_uri() -> str:
    """Return the MLflow store that is used where no flag names one: `MLFLOW_TRACKING_URI`, or a file in runs/."""
    return os.environ.get("MLFLOW_TRACKING_URI") or TRACKING_URI
