"""The files of an evaluation: a record for every case, from which it can go on, and one summary of all programs.

`<name>.jsonl` holds the records of the program `<name>`, one a line in the order of the cases. While the evaluation
runs they are in `<name>.jsonl.part`, in the order in which the cases finished. With `--repeat N` the further runs of a
program are in `<name>.repeat-2.jsonl` and so on. A record:

- `key`: a digest of all that the result depends on; a repeated command takes a record only with the same key.
- `id`, `kind`, `lang`, `question`, `gold` (accepted answers), `gold_ids`, `answerable`: of the case.
- `outcome`: one of `outcomes.OUTCOMES`; `rank` (of evidence that ranked too low) and `detail` (which evidence, or
  what was raised) explain it.
- `error`: null, or why the case has no scores: what was raised, or `timed out after N s`.
- `seconds`: wall time of the run.
- `scores`: metric → 0..1 (`plan_size` and `rounds` are counts), null where the case or the prediction leaves nothing
  to measure; `{}` after an error. `combined` is the one that tables call score.
- `grading_error`: null, or why the grader gave no grade.
- `prediction`: null if there is none, else as `programs.record.to_json` writes it.

`summary.json` ties the records of one command together:

- `format`: 1. `created`: UTC. `n_cases`, `cases` (where they came from, as given), `split`, `lm`, `grader` (label or
  null), `repeat`, `index`: the facts of the index.
- `programs`: one object a program, in the order given: `name` (of its files), `spec` (as given), `records` (file
  name), `summary` (the fields of `results.Summary`), `score_interval` (`value`, `low`, `high`, `n`, or null),
  `slices` (a list with the fields of `results.Slice`: `by` is `kind` or `lang`), and `stability` (null without
  `--repeat`, else the fields of `comparison.Stability`).
- `comparisons`: each further program against the first, then each program against `--baseline`; the fields of
  `comparison.Comparison`: `name` (the program), `baseline` (what it is compared with: the name of another program, or
  the file), `n` (cases scored in both), `n_left_out` (errored in either, or in one of the two only), `interval` (mean
  of program − baseline; null if `n` is 0), `mcnemar` (`only_first`: right in the baseline only, `only_second`: right
  in the program only, `p_value`), `transitions` (`before`, `after`, `n`, `ids`, with those that stayed; most frequent
  first), `slices` (`by`, `value`, `n`, `baseline`, `program`, `difference`, `interval`), `n_answered` (cases in which
  both said something) and `n_same_answers` (in which both said the same, citing the same passages).
"""

import codecs
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from trainsets.cases import Case
from trainsets.outcomes import OutcomeName
from trainsets.prediction import PredictionLike
from trainsets.results import MAIN, CaseResult

FORMAT = 1
_REMEDY = "repair the line, or start over with --restart"
SUMMARY = "summary.json"

Describe = Callable[[Any], Mapping[str, Any]]
Revive = Callable[[Mapping[str, Any]], Any]


class RecordError(ValueError):
    """A file of records that can't be used; one line with file, line and what was expected."""


class _Said(BaseModel):
    """What a comparison reads of a prediction."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    answer: str
    citations: list[str]


class _Measured(BaseModel):
    """What a record says of its case and how it was scored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)

    id: str
    question: str
    kind: str
    lang: str
    outcome: OutcomeName
    scores: dict[str, float | None]


class _Compared(_Measured):
    """What a comparison reads of a record, what was said among it."""

    prediction: _Said | None = None


class _Remeasured(_Measured):
    """What a record has to say of a result that is taken again, beside its prediction."""

    error: str | None
    seconds: NonNegativeFloat
    rank: int | None
    detail: str
    grading_error: str | None


@dataclass(frozen=True, slots=True)
class Scored:
    """What a comparison reads of a result, whether it was made now or read from a file.

    `said` is the answer with its citations; None where nothing was said.
    """

    id: str
    question: str
    kind: str
    lang: str
    outcome: OutcomeName
    score: float | None
    said: tuple[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A result that an earlier run left behind, and its record as it was written."""

    result: CaseResult
    line: str


def key_of(case: Case, settings: Mapping[str, Any]) -> str:
    """Digest all that a result depends on: the case, and `settings`, plain data (program, LM, index, grader, …)."""
    made_of = json.dumps([FORMAT, case.model_dump(mode="json"), settings], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(made_of.encode()).hexdigest()[:16]


def to_line(result: CaseResult, key: str, describe: Describe) -> str:
    """Write a result as a line of a records file."""
    case = result.case
    record = {
        "key": key,
        "id": case.id,
        "kind": case.kind,
        "lang": case.lang,
        "question": case.question,
        "gold": list(case.answer),
        "gold_ids": list(case.gold_ids),
        "answerable": case.answerable,
        "outcome": result.outcome,
        "rank": result.rank,
        "detail": result.detail,
        "error": result.error,
        "seconds": round(result.seconds, 3),
        "scores": result.scores,
        "grading_error": result.grading_error,
        "prediction": describe(result.prediction) if result.prediction is not None else None,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def to_result(record: Mapping[str, Any], case: Case, revive: Revive) -> CaseResult:
    """Build the result of `case` that `to_line` wrote; `revive` undoes what `describe` did to the prediction.

    Raises:
        RecordError: Something else wrote it, or changed it since.
    """
    try:
        told = _Remeasured.model_validate(record).model_dump(exclude={"id", "question", "kind", "lang"})
        prediction = None if record["prediction"] is None else revive(record["prediction"])
    except ValidationError as error:
        raise RecordError(_explain(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"prediction: {type(error).__name__}: {error}") from None
    return CaseResult(case=case, prediction=prediction, **told)


def part_of(records: Path) -> Path:
    """Name the file that records are in while the evaluation runs."""
    return records.with_name(records.name + ".part")


def find_finished(
    records: Path, keys: Mapping[str, str], cases: Iterable[Case], revive: Revive, warn: Callable[[str], None]
) -> dict[str, Finished]:
    """Read the results that an earlier, perhaps killed run of the same command left behind.

    Cases that errored are not among them: they are tried again. A line that a kill tore is dropped and told.

    Args:
        records: The records file; its part file is read first.
        keys: Case id to `key_of` the result that is wanted.
        cases: Gold cases.
        revive: Turns the plain data of a prediction into a prediction.
        warn: Told what could not be used.

    Raises:
        RecordError: A line before the last one is broken, or a record of these settings is not as it was written.
    """
    wanted = {case.id: case for case in cases}
    found: dict[str, Finished] = {}
    for path in (part_of(records), records):
        n_other = 0
        for number, line, record in _read_records(path, warn) if path.is_file() else ():
            case = wanted.get(record["id"])
            if case is None or record.get("key") != keys[case.id]:
                n_other += 1
                continue
            try:
                result = to_result(record, case, revive)
            except RecordError as error:
                raise RecordError(f"{path}:{number}: not as it was written ({error}); {_REMEDY}") from None
            if result.error is None:
                found.setdefault(case.id, Finished(result, line))
        if n_other and path != records:
            warn(f"{path}: {n_other} unfinished records of other settings are replaced")
    return found


def read_baseline(path: Path) -> list[Scored]:
    """Read the records of an earlier evaluation to compare with.

    Raises:
        RecordError: It holds no record, or something else than records.
        FileNotFoundError: It is not there.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, expected the records of an evaluation (<out>/<program>.jsonl)")
    scored: dict[str, Scored] = {}
    for number, _, record in _read_records(path):
        if record["id"] in scored:
            raise RecordError(f'{path}:{number}: id: "{record["id"]}" stands there already, expected one record a case')
        scored[record["id"]] = _to_scored(path, number, record)
    if not scored:
        raise RecordError(f"{path}: no records in it, expected the records of an evaluation")
    return list(scored.values())


def scored_of(results: Iterable[CaseResult]) -> list[Scored]:
    """Take from results what a comparison reads."""
    return [
        Scored(
            one.case.id,
            one.case.question,
            one.case.kind,
            one.case.lang,
            one.outcome,
            one.score,
            _said(one.prediction),
        )
        for one in results
    ]


def _said(prediction: PredictionLike | _Said | None) -> tuple[str, tuple[str, ...]] | None:
    if prediction is None or not prediction.answer:
        return None
    return prediction.answer, tuple(prediction.citations)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, or a run after a kill, finds the old one or the new one.

    Raises:
        OSError: It can't be written, as on a full disk; the error names it, and nothing of it is left.
    """
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write `summary.json`."""
    write_whole(folder / SUMMARY, json.dumps({"format": FORMAT, **summary}, ensure_ascii=False, indent=1) + "\n")


def _to_scored(path: Path, number: int, record: Mapping[str, Any]) -> Scored:
    try:
        one = _Compared.model_validate(record)
    except ValidationError as error:
        raise RecordError(f"{path}:{number}: not a record of an evaluation ({_explain(error)})") from None
    return Scored(one.id, one.question, one.kind, one.lang, one.outcome, one.scores.get(MAIN), _said(one.prediction))


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def _read_records(
    path: Path, warn_of_torn: Callable[[str], None] | None = None
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Read number, text and record of each line; given `warn_of_torn`, a broken last line is told and dropped."""
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines(keepends=True)
    remedy = _REMEDY if warn_of_torn else "expected the records of an evaluation (<out>/<program>.jsonl)"
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is not None:
            yield number, line.decode(), record
        elif warn_of_torn and number == len(lines):
            warn_of_torn(f"{path}: the last line is torn and left out; its case runs again")
        else:
            raise RecordError(f"{path}:{number}: not a record; {remedy}")


def _parse(line: bytes) -> dict[str, Any] | None:
    """Read a whole line that holds an object with an id; None if it is something else."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("id"), str) else None
