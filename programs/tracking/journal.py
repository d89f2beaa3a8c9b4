"""What a run has to log, as a list that can wait: sent at once where the store takes it, kept in a folder where not."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

_SUFFIX = ".unlogged"
_RUN = "run.json"


class PendingError(ValueError):
    """A folder that holds no run to log."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Metrics(_Part):
    metrics: dict[str, float]
    step: int
    time: int


class _Text(_Part):
    text: str
    path: str


class _Files(_Part):
    folder: str | None


class _Dataset(_Part):
    name: str
    digest: str
    n: int
    context: str


class _Trial(_Part):
    number: int
    score: float
    n_cases: int
    is_full: bool
    seconds: float
    n_demos: dict[str, int]
    prompts: dict[str, str]
    thresholds: dict[str, float] = {}
    time: int


class _Traces(_Part):
    tags: dict[str, str]


class _Version(_Part):
    name: str
    tags: dict[str, Any]
    champion: bool


# What an entry of each kind has to say; a run that waits is read from a file that anybody may have edited.
_VALUES: dict[str, Any] = {
    "params": dict[str, str],
    "tags": dict[str, str],
    "metrics": _Metrics,
    "text": _Text,
    "files": _Files,
    "dataset": _Dataset,
    "trial": _Trial,
    "traces": _Traces,
    "version": _Version,
}
_WITH_FILE = frozenset({"files", "traces", "version"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to log: what kind, its plain values, and the file or folder that it reads, if any."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """A run that could not be logged to its end; what is left of it is `entries`."""

    experiment: str
    run_id: str
    name: str
    entries: tuple[Entry, ...]
    folder: Path


def pending_folders(place: Path) -> list[Path]:
    """Return the folders that wait beside an export or a records file, oldest first; `place` may be one itself."""
    if (place / _RUN).is_file():
        return [place]
    found = place.absolute().parent.glob(f"{place.name}{_SUFFIX}*")
    return sorted(one for one in found if (one / _RUN).is_file())


def write_pending(place: Path, experiment: str, run_id: str, name: str, entries: Sequence[Entry]) -> Path:
    """Keep entries with copies of their files in a folder beside `place`, written whole or not at all."""
    place = place.absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}-"))
    try:
        kept = [_copy(entry, fresh, str(number)) for number, entry in enumerate(entries)]
        run = {"experiment": experiment, "run_id": run_id, "name": name, "entries": kept}
        (fresh / _RUN).write_text(json.dumps(run, ensure_ascii=False, indent=1), encoding="utf-8")
        fresh.chmod(0o755)
        return fresh.rename(_free_name(place))
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _copy(entry: Entry, folder: Path, number: str) -> dict[str, Any]:
    kept: dict[str, Any] = {"kind": entry.kind, "values": entry.values}
    if entry.path is not None:
        target = folder / number / entry.path.name
        target.parent.mkdir()
        (shutil.copytree if entry.path.is_dir() else shutil.copyfile)(entry.path, target)
        kept["path"] = target.relative_to(folder).as_posix()
    return kept


def _free_name(place: Path) -> Path:
    names = _numbered(f"{place.name}{_SUFFIX}")
    return next(path for name in names if not (path := place.with_name(name)).exists())


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def read_pending(folder: Path) -> Pending:
    """Read a folder that `write_pending` wrote.

    Raises:
        PendingError: Something else wrote it.
    """
    path = folder / _RUN
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(_read_entry(one, folder) for one in run["entries"])
        return Pending(str(run["experiment"]), str(run["run_id"]), str(run["name"]), entries, folder)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise PendingError(f"{path}: not a run that waits to be logged ({reason}); remove {folder}") from None


def _read_entry(one: Any, folder: Path) -> Entry:
    kind = one["kind"]
    if kind not in _VALUES:
        raise ValueError(f"kind {kind!r}, expected one of {', '.join(_VALUES)}")
    if kind in _WITH_FILE and not (folder / one["path"]).exists():
        raise ValueError(f"{one['path']} is not there")
    try:
        adapter = TypeAdapter(_VALUES[kind])
        values = adapter.dump_python(adapter.validate_python(one["values"], strict=True))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{kind}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return Entry(kind, values, folder / one["path"] if kind in _WITH_FILE else None)
