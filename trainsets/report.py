"""One self-contained HTML report of an evaluation, from its record files: texts in it are data, none of it runs."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainsets.comparison import Comparison
from trainsets.figures import (
    MIN_FOR_INTERVAL,
    OUTCOME_COLORS,
    PROGRAM_COLORS,
    SLICED_BY,
    compare_pairs,
    ink_on,
    metric_names,
    points_of,
    slice_of,
    slices_of,
    summaries_of,
    tabulate_moves,
)
from trainsets.pareto import AREA, lay_out, trade_offs
from trainsets.recorded import Record, RecordedPrediction, RecordedSummary, Records, read_records
from trainsets.results import Summary
from trainsets.tables import COLUMNS, Table, retrieval_table, stability_table, table_row

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT = "report.html"
PLOTS = "plots"
_N_HITS = 20  # hits of a hop that are listed; a program that only searches has a hundred of each case
_TEMPLATES = Path(__file__).parent / "templates"


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of the record files in a folder.

    Args:
        folder: what `evaluate.py --out` named.
        out: the HTML file; without it `report.html` in the folder.

    Returns:
        The file that was written, in one step: a reader never sees half of it.

    Raises:
        RecordError: the folder does not hold what `evaluate.py` writes.
    """
    records, summary = read_records(folder)
    return _write_page(render_report(records, summary, folder.resolve().name), out or folder / REPORT)


def write_pages(folder: Path, programs: Sequence[str] = ()) -> tuple[Path, Path]:
    """Write the report and the plots of the record files in a folder beside them.

    Args:
        folder: what `evaluate.py --out` named.
        programs: those to show, where the folder has no summary that names them.

    Returns:
        The HTML file and the folder of PNG files.

    Raises:
        RecordError: the folder does not hold such records.
    """
    from trainsets.plots import draw_all

    records, summary = read_records(folder, programs)
    draw_all(records, folder / PLOTS)
    return _write_page(render_report(records, summary, folder.resolve().name), folder / REPORT), folder / PLOTS


def _write_page(text: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    # The name of a folder or a file can hold bytes that are no UTF-8; they are shown as their escapes.
    partial.write_bytes(text.encode("utf-8", "backslashreplace"))
    os.replace(partial, target)
    return target


def render_report(records: Records, summary: RecordedSummary | None = None, title: str = "evaluation") -> str:
    """Return the report as HTML; it is sent and logged, so files that flags named stand in it without their places.

    Args:
        records: program to its records; the first program is what the others are compared with.
        summary: what is known of the evaluation as a whole.
        title: what the report is about, for its heading.
    """
    script = _read_template("report.js")
    context = {
        "title": title,
        "facts": _facts(records, summary),
        # The browser itself refuses every script but this one, whatever the texts hold.
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "style": _read_template("report.css"),
        "programs": {name: PROGRAM_COLORS[n % len(PROGRAM_COLORS)] for n, name in enumerate(records)},
        "colors": OUTCOME_COLORS,
        "min_for_interval": MIN_FOR_INTERVAL,
        "area": AREA,
    }
    return _environment().get_template("report.html").render(context | _figures(records, summary))


def _facts(records: Records, summary: RecordedSummary | None) -> list[str]:
    """Say what was evaluated, for the heading."""
    n_cases = len({record.id for own in records.values() for record in own})
    facts = [_count(n_cases, "case"), _count(len(records), "program")]
    if summary:
        cases = _without_place(summary.cases or "")
        split = f"{cases} ({summary.split})" if summary.split else cases
        grader = f"graded by {summary.grader}" if summary.grader else None
        created = summary.created.replace("T", " ").replace("+00:00", " UTC")
        facts += [fact for fact in (summary.lm, grader, split, created) if fact]
    return facts


def _without_place(path: str) -> str:
    return Path(path).name or path


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _figures(records: Records, summary: RecordedSummary | None) -> dict[str, Any]:
    """Collect what the sections show."""
    summaries = summaries_of(records)
    pairs, with_baseline = compare_pairs(records), _with_baseline(records, summary)
    first, comparisons = next(iter(records)), [*pairs, *with_baseline]
    data = _details(records) | {"moves": [_move_ids(one) for one in comparisons]}
    return {
        "ladder": _ladder(summaries),
        "scores": {name: slice_of(own) for name, own in records.items()},
        "comparisons": [*(one for one in pairs if one.baseline == first), *with_baseline],
        "stability": _stability(summary),
        "outcomes": [name for name in OUTCOME_COLORS if any(one.outcomes.get(name) for one in summaries.values())],
        "summaries": summaries,
        "slices": {by: slices_of(records, key) for by, key in SLICED_BY.items()},
        "moves": [tabulate_moves(one) for one in comparisons],
        "metrics": metric_names(list(summaries.values())),
        "plots": [plot for trade in trade_offs(points_of(records)) if (plot := lay_out(trade))],
        "cases": _cases(records),
        "data": data,
    }


def _read_template(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _ladder(summaries: Mapping[str, Summary]) -> Table:
    """Lay the ladder out as `evaluate.py` prints it, with the number of cases in front."""
    columns: tuple[str, ...] = COLUMNS
    rows = [table_row(name, one) for name, one in summaries.items()]
    if not any(one.lm_calls for one in summaries.values()):
        columns, rows = retrieval_table(summaries)
    counts = [str(one.n) for one in summaries.values()]
    return ("program", "cases", *columns[1:]), [(row[0], n, *row[1:]) for row, n in zip(rows, counts, strict=True)]


def _with_baseline(records: Records, summary: RecordedSummary | None) -> list[Comparison]:
    """List the comparisons with something that is no program of this evaluation."""
    others = [one for one in summary.comparisons if one.baseline not in records] if summary else []
    return [replace(one, baseline=_without_place(one.baseline)) for one in others]


def _stability(summary: RecordedSummary | None) -> Table | None:
    repeated = {one.name: one.stability for one in summary.programs if one.stability} if summary else {}
    return stability_table(repeated) if repeated else None


def _move_ids(comparison: Comparison) -> dict[str, Any]:
    ids = {f"{one.before} {one.after}": one.ids for one in comparison.transitions}
    return {"before": comparison.baseline, "after": comparison.name, "ids": ids}


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"words": lambda name: name.replace("_", " "), "ink": ink_on}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return environment


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One row of the list of cases; a program that did not run the case has no record in it."""

    record: Record
    by_program: Mapping[str, Record]


def _cases(records: Records) -> list[CaseRow]:
    by_id: dict[str, dict[str, Record]] = {}
    for name, own in records.items():
        for record in own:
            by_id.setdefault(record.id, {})[name] = record
    return [CaseRow(next(iter(by_program.values())), by_program) for by_program in by_id.values()]


def _details(records: Records) -> dict[str, Any]:
    """Collect what the list of cases opens to; a passage that many cases were shown is kept once."""
    passages: dict[tuple[str, str, str], int] = {}
    cases = [
        {
            "id": row.record.id,
            "kind": row.record.kind,
            "lang": row.record.lang,
            "question": row.record.question,
            "gold": row.record.gold,
            "gold_ids": row.record.gold_ids,
            "answerable": row.record.is_answerable(),
            "runs": {name: _run(record, passages) for name, record in row.by_program.items()},
        }
        for row in _cases(records)
    ]
    texts = [{"id": id_, "title": title, "text": text} for id_, title, text in passages]
    return {"programs": list(records), "cases": cases, "passages": texts}


def _run(record: Record, passages: dict[tuple[str, str, str], int]) -> dict[str, Any]:
    own = record.model_dump(mode="json", include={"outcome", "rank", "detail", "error", "seconds", "grading_error"})
    scores = {name: value for name, value in record.scores.items() if value is not None}
    prediction = _prediction(record.prediction, passages) if record.prediction else None
    return own | {"scores": scores, "prediction": prediction}


def _prediction(prediction: RecordedPrediction, passages: dict[tuple[str, str, str], int]) -> dict[str, Any]:
    plain = prediction.model_dump(mode="json", exclude={"context", "hops"})
    plain["hops"] = [
        hop.model_dump(mode="json", exclude={"hits", "filters"})
        | {
            "filters": json.dumps(hop.filters, ensure_ascii=False) if hop.filters else "",
            "hits": [[hit.rank, hit.score, hit.passage_id] for hit in hop.hits[:_N_HITS]],
            "n_hits": len(hop.hits),
        }
        for hop in prediction.hops
    ]
    plain["context"] = [
        passages.setdefault((hit.passage_id, hit.title, hit.text), len(passages)) for hit in prediction.context
    ]
    return plain
