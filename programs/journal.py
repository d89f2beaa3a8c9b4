"""The journal of a compile: its trials, one JSON line each, on disk before the next one begins."""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError

from retrievers.locks import FolderBusy, hold_lock


class JournalError(ValueError):
    """A file that is no journal."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One program that an optimizer scored.

    `number` counts from 1; `stage` is the optimizer of a chain; `score` is the mean metric, 0..1, over `n_cases`;
    `program` names the program by a hash of its prompts; `is_best` tells whether it became the best of its stage. What
    was spent is counted from the start of the compile: `lm_calls` are different requests, `cost_usd` what this process
    and the ones before it paid.
    """

    number: int
    stage: str
    score: FiniteFloat
    n_cases: int
    program: str
    is_best: bool
    lm_calls: int
    cost_usd: FiniteFloat


class _Start(BaseModel):
    """The first line of a journal."""

    generation: NonNegativeInt
    facts: dict[str, Any]


_TRIAL = TypeAdapter(Trial)


class Journal:
    """Trials of one compile, kept over kills.

    LM answers are kept by the cache and optimizers are seeded, so a command that is repeated walks the same way again
    at no cost until it comes to what is new. The journal knows how far the way was, and notices when it is another one.
    A compile that is started over gets a new `generation`, whose LM answers are asked for anew.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], *, restart: bool = False) -> None:
        """Open or begin the journal of a compile.

        Args:
            folder: Where journals are; each has a folder of its own, named by a hash of `facts`.
            facts: Everything that decides how the compile goes.
            restart: Whether to forget the trials that are there, and the LM answers that led to them.

        Raises:
            FolderBusy: Another process is running this compile.
            JournalError: The file is no journal.
        """
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
        self.path = folder / digest[:12] / "journal.jsonl"
        with ExitStack() as held:
            held.enter_context(hold_lock(self.path.parent, "compile", FolderBusy))
            generation, recorded = _read(self.path)
            self._held = held.pop_all()
        self.generation = 0 if generation is None else generation + restart
        self.recorded = [] if restart else recorded
        self.trials: list[Trial] = []
        self.differs_from: int | None = None
        self.spent_before_usd = max((trial.cost_usd for trial in self.recorded), default=0.0)
        self._start = {"generation": self.generation, "facts": dict(facts)}
        self._write_all(self.recorded)

    def add(self, trial: Trial) -> None:
        """Put down a trial, unless it is one that an earlier attempt recorded; threads may bring those in any order."""
        self.trials.append(trial)
        if len(self.trials) > len(self.recorded):
            self.recorded.append(trial)
            self._append(trial)
        elif not any(_same(trial, known) for known in self.recorded):
            self.differs_from = self.differs_from or trial.number
            self.recorded = list(self.trials)
            self._write_all(self.recorded)

    def close(self) -> None:
        """Let another process have the journal."""
        self._held.close()

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()

    def _append(self, trial: Trial) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(asdict(trial)))
            file.flush()
            os.fsync(file.fileno())

    def _write_all(self, trials: list[Trial]) -> None:
        part = self.path.with_name(self.path.name + ".part")
        with part.open("w", encoding="utf-8") as file:
            file.write(_line(self._start) + "".join(_line(asdict(trial)) for trial in trials))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.path)


def _read(path: Path) -> tuple[int | None, list[Trial]]:
    """Read the generation and the trials; a last line that a kill cut off is left out."""
    if not path.exists():
        return None, []
    first, *others = path.read_bytes().split(b"\n")[:-1] or [b""]
    try:
        generation = _Start.model_validate_json(first).generation
        return generation, [_TRIAL.validate_json(line, strict=True) for line in others]
    except ValidationError as error:
        what = error.errors(include_url=False)[0]
        reason = ": ".join([*map(str, what["loc"]), what["msg"]])
        raise JournalError(f"{path}: not the journal of a compile ({reason}); remove it") from None


def _same(one: Trial, other: Trial) -> bool:
    return (one.stage, one.score, one.program) == (other.stage, other.score, other.program)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
