"""Read record files back: what each program made of each case, checked, and as the metrics take it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, ValidationError

from trainsets.cases import Case, Text, Texts
from trainsets.comparison import Comparison, Stability
from trainsets.outcomes import OutcomeName
from trainsets.prediction import doc_of
from trainsets.records import SUMMARY, RecordError
from trainsets.results import CaseResult

_REPEAT = re.compile(r"\.repeat-\d+$")  # further runs of a program that has a file of its own
LADDER = ("naive", "hybrid", "agentic")  # the order of the rows; other programs follow by name


class _Part(BaseModel):
    """A part of a record; what a newer version adds is left aside."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class RecordedHit(_Part):
    """One hit. Only the passages that were shown to the answerer are recorded with title and text."""

    passage_id: str
    score: float
    rank: int
    title: str = ""
    text: str = ""

    @property
    def passage(self) -> "RecordedHit":
        """The passage that was hit; its fields stand beside those of the hit."""
        return self

    @property
    def doc_id(self) -> str:
        """The document of the passage."""
        return doc_of(self.passage_id)


class RecordedHop(_Part):
    """One search and what was made of it."""

    goal: str = ""
    tool: str
    query: str
    filters: Mapping[str, Any] | None = None
    decided_by: str = ""
    hits: tuple[RecordedHit, ...] = ()
    kept: tuple[str, ...] = ()
    seconds: float = 0.0
    verdict: str | None = None
    judged_by: str | None = None
    missing: str = ""
    quotes: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    error: str | None = None


class RecordedUsage(_Part):
    """What the run spent."""

    lm_calls: NonNegativeInt
    cached_calls: NonNegativeInt = 0
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0
    parse_failures: NonNegativeInt = 0
    truncations: NonNegativeInt = 0
    cost_usd: NonNegativeFloat = 0.0
    seconds: NonNegativeFloat = 0.0


class RecordedPrediction(_Part):
    """The result of a program for one question, as the metrics read it."""

    question: str = ""
    answer: str
    citations: tuple[str, ...]
    abstained: bool
    verdict: str | None = None
    stop_reason: str
    hops: tuple[RecordedHop, ...]
    context: tuple[RecordedHit, ...]
    usage: RecordedUsage
    error: str | None = None


class Record(_Part):
    """One line of a record file."""

    id: Text
    kind: str = ""
    lang: str = ""
    question: Text
    gold: Texts = ()
    gold_ids: Texts = ()
    answerable: bool | None = None
    outcome: OutcomeName
    rank: int | None = None
    detail: str = ""
    error: str | None = None
    seconds: NonNegativeFloat
    scores: dict[str, float | None] = Field(default={})
    grading_error: str | None = None
    prediction: RecordedPrediction | None

    def to_result(self) -> CaseResult:
        """Return the result that was recorded, with what the record tells of its case."""
        case = Case(
            id=self.id,
            question=self.question,
            answer=self.gold,
            gold_ids=self.gold_ids,
            answerable=self.is_answerable(),
            kind=self.kind,
            lang=self.lang,
        )
        return CaseResult(
            case=case,
            prediction=self.prediction,
            scores=self.scores,
            outcome=self.outcome,
            error=self.error,
            seconds=self.seconds,
            rank=self.rank,
            detail=self.detail,
            grading_error=self.grading_error,
        )

    def is_answerable(self) -> bool:
        """Say whether the corpus holds the answer; where a record does not tell, its outcome does."""
        if self.answerable is not None:
            return self.answerable
        abstained_rightly = (
            self.outcome == "right"
            and self.prediction is not None
            and self.prediction.abstained
            and self.scores.get("answer_score") is not None
        )
        return not (abstained_rightly or self.outcome == "should_have_abstained")


class RecordedProgram(_Part):
    """A program of a summary: its records are in `<name>.jsonl`, and its repeats were so alike."""

    name: Text
    stability: Stability | None = None


class RecordedSummary(_Part):
    """What `summary.json` holds beside the records: the evaluation as a whole, its baseline and its repeats."""

    created: str = ""
    cases: str | None = None
    split: str | None = None
    lm: str = ""
    grader: str | None = None
    programs: tuple[RecordedProgram, ...] = Field(min_length=1)
    comparisons: tuple[Comparison, ...] = ()


Records = Mapping[str, Sequence[Record]]


def read_records(folder: Path, programs: Sequence[str] = ()) -> tuple[dict[str, list[Record]], RecordedSummary | None]:
    """Read the record files of a folder: those that its summary names, or without one all, the ladder first.

    Args:
        folder: what `evaluate.py --out` named.
        programs: read these instead, and no summary.

    Returns:
        Program to its records, in the order of its file, never empty; and the summary, if there is one.

    Raises:
        RecordError: not a folder, no record file in it, or a file that holds something else.
    """
    if not folder.is_dir():
        raise RecordError(f"{folder}: no such folder, expected one that evaluate.py --out wrote")
    summary = None if programs else _read_summary(folder / SUMMARY)
    names = programs or ([program.name for program in summary.programs] if summary else _find_names(folder))
    if not names:
        raise RecordError(f"{folder}: no record file in it, expected PROGRAM.jsonl as evaluate.py --out writes them")
    return {name: read_file(folder / f"{name}.jsonl") for name in names}, summary


def _read_summary(path: Path) -> RecordedSummary | None:
    try:
        return RecordedSummary.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RecordError(f"{path}: {_explain(error)}; expected the summary that evaluate.py writes") from None


def _find_names(folder: Path) -> list[str]:
    names = (path.stem for path in folder.glob("*.jsonl"))
    return sorted((name for name in names if not _REPEAT.search(name)), key=_place)


def _place(name: str) -> tuple[int, str]:
    return (LADDER.index(name) if name in LADDER else len(LADDER), name)


def read_file(path: Path) -> list[Record]:
    """Read one record file.

    Raises:
        RecordError: it is no record file, or holds a case twice.
    """
    records: dict[str, Record] = {}
    for number, line in _lines(path):
        where = f"{path}:{number}"
        try:
            record = Record.model_validate_json(line)
        except ValidationError as error:
            raise RecordError(f"{where}: {_explain(error)}; expected a record of evaluate.py") from None
        if record.id in records:
            raise RecordError(f'{where}: id: "{record.id}" stands there already, expected one record a case')
        records[record.id] = record
    if not records:
        raise RecordError(f"{path}: no record in it, expected one JSON object a line; run evaluate.py again")
    return list(records.values())


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if line.strip())
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file, expected the records of a program") from None


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field + ': ' if field else ''}{first['msg'].lower().splitlines()[0]}"
