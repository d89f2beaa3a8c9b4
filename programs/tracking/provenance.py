"""Where a run comes from: commit, uncommitted changes, package versions. No path and no secret is in it."""

import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from programs.addresses import without_secrets

_ROOT = Path(__file__).parents[2]
_GIT_S = 10


def describe_code() -> dict[str, str]:
    """Return the commit of this code, whether it was changed since, and its remote; empty where it is no checkout."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".")
    remote = shareable(_git("remote", "get-url", "origin") or "")  # else MLflow notes it as it is
    return {
        "mlflow.source.git.commit": commit,
        "mlflow.source.git.dirty": str(bool(changed)).lower(),
        "mlflow.source.git.repoURL": remote,
    }


def shareable(remote: str) -> str:
    """Return the address of a remote without its secrets; empty where it is a folder of this machine."""
    if re.match(r"[\w.-]+@[\w.-]+:", remote):  # git@host:owner/name
        return remote
    return without_secrets(remote) if re.match(r"(https?|ssh|git)://", remote) else ""


def _git(*command: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *command], capture_output=True, text=True, timeout=_GIT_S)
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a disk that hangs: then there is no commit to tell
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def describe_environment() -> dict[str, Any]:
    """Return the versions of Python, the system and every installed package."""
    packages = {name: one.version for one in distributions() if (name := one.metadata["Name"])}
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def experiment_name(program: str, cases: str | Path | None) -> str:
    """Return the name that a program's runs on one case set share, and the model that they make.

    Args:
        program: `naive`, `hybrid` or `agentic`.
        cases: A case file, a folder of splits, a hub id, or None for the sample set.
    """
    from programs.tracking.versions import registry_name

    return registry_name(f"{program}-{case_set_name(cases)}")


def case_set_name(cases: str | Path | None) -> str:
    """Return what a case set is called: its folder, or its file where the file is no split of a folder."""
    if cases is None:
        return "sample"
    path = Path(cases)
    if path.suffix and path.stem in ("train", "dev", "test"):
        path = path.resolve().parent
    return path.stem if path.suffix else path.name or path.resolve().name


def digest_of(cases: Mapping[str, Any]) -> str:
    """Return a digest of gold cases by id, whatever file they came from."""
    import hashlib
    import json

    lines = [json.dumps([key, value], ensure_ascii=False, sort_keys=True) for key, value in sorted(cases.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
