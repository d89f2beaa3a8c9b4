"""Evaluations for the tests of reports: records as `evaluate.py` writes them, from real predictions and real scores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from programs.meter import Usage
from programs.record import Hop, make_prediction, to_json
from retrievers.records import Hit, Passage
from trainsets.cases import Case
from trainsets.comparison import compare_programs
from trainsets.metrics import case_scores
from trainsets.outcomes import attribute
from trainsets.records import scored_of, to_line, write_summary
from trainsets.results import CaseResult, summarise

KINDS, LANGS = ("lookup", "multi_hop", "temporal"), ("en", "zh")


def case_of(number: int, **fields: Any) -> Case:
    """A case whose answer is `<number> V` and whose evidence is `d<number>`."""
    plain = {
        "id": f"case-{number}",
        "question": f"Question {number}?",
        "answer": (f"{number} V",),
        "gold_ids": (f"d{number}",),
        "kind": KINDS[number % 3],
        "lang": LANGS[number % 2],
    }
    return Case(**plain | fields)


def result_of(
    case: Case,
    answer: str | None = None,
    *,
    found: bool = True,
    query: str = "a query",
    text: str = "the text of a passage",
    calls: int = 2,
    cost_usd: float = 0.0,
    seconds: float = 1.5,
    truncations: int = 0,
) -> CaseResult:
    """What a program made of a case: the right answer unless told another, from evidence that it found or not."""
    doc = case.gold_ids[0] if found and case.gold_ids else "elsewhere"
    hit = Hit(Passage(f"{doc}#0", doc, f"Title of {doc}", text), 0.75, 1)
    spent = {"cost_usd": cost_usd, "seconds": seconds, "truncations": truncations}
    usage = Usage(lm_calls=calls, prompt_tokens=100 * calls, completion_tokens=10, **spent)
    prediction = make_prediction(
        question=case.question,
        answer=case.answer[0] if answer is None else answer,
        citations=(f"{doc}#0",),
        abstained=False,
        stop_reason="sufficient",
        hops=(
            Hop("a goal", "keyword", query, {"year": 2025}, "lm", (hit,), (f"{doc}#0",), 0.25, "sufficient", "lm",
                "what is missing", ("a quote",), (f"{doc}#0",)),
        ),
        context=(hit,),
        usage=usage,
        verdict="sufficient",
    )  # fmt: skip
    outcome = attribute(case, prediction)
    scores = case_scores(case, prediction)
    return CaseResult(case, prediction, scores, outcome.name, None, seconds, outcome.rank, outcome.detail)


def errored(case: Case, error: str = "RuntimeError: it broke") -> CaseResult:
    """A case that a program raised on."""
    return CaseResult(case, None, {}, "errored", error, 0.5, None, error)


def ladder(n: int = 12) -> dict[str, list[CaseResult]]:
    """Two programs over the same cases: the first finds every third, the second all but one, which it raises on."""
    cases = [case_of(number) for number in range(n)]
    naive = [
        result_of(case, calls=1) if number % 3 == 0 else result_of(case, "no", found=False, calls=1)
        for number, case in enumerate(cases)
    ]
    agentic = [errored(case) if number == 4 else result_of(case, calls=3) for number, case in enumerate(cases)]
    return {"naive": naive, "agentic": agentic}


def write_records(folder: Path, evaluated: Mapping[str, Sequence[CaseResult]]) -> Path:
    """Write one record file a program."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, results in evaluated.items():
        lines = [to_line(result, "a key", to_json) for result in results]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def summarise_all(folder: Path, evaluated: Mapping[str, Sequence[CaseResult]], **more: Any) -> None:
    """Write the `summary.json` of an evaluation, as `evaluate.py` describes it."""
    first, *others = evaluated
    scored = {name: scored_of(results) for name, results in evaluated.items()}
    programs = [{"name": name, "summary": asdict(summarise(own)), "stability": None} for name, own in evaluated.items()]
    comparisons = [asdict(compare_programs(name, scored[name], first, scored[first])) for name in others]
    facts = {
        "lm": "openai/test",
        "cases": "sample",
        "split": "dev",
        "grader": None,
        "created": "2026-11-30T02:00:00+00:00",
    }
    write_summary(folder, facts | {"programs": programs, "comparisons": comparisons} | more)


def record_of(result: CaseResult) -> dict[str, Any]:
    """A result as its record."""
    plain: dict[str, Any] = json.loads(to_line(result, "a key", to_json))
    return plain
