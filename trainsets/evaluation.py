"""Run a program over gold cases: one result a case, errors counted apart, totals for a table."""

import json
import math
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainsets.answers import NoGoldAnswerError, has_gold_answer
from trainsets.cases import Case
from trainsets.metrics import abstention_scores, case_scores, mean_scores
from trainsets.outcomes import OutcomeName, attribute
from trainsets.prediction import PredictionLike
from trainsets.ranking import gold_of
from trainsets.stats import paired_bootstrap, percentile

Program = Callable[..., Any]


class EvaluationError(RuntimeError):
    """A program could not be run at all, so there is nothing to score."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one program made of one case. Without a prediction, `error` says why and there are no scores."""

    case: Case
    prediction: PredictionLike | None
    scores: Mapping[str, float | None]
    outcome: OutcomeName
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The row of a table. Means are over the cases that did not error; `n_errors` counts those that did.

    `seconds_p50` and `seconds_p95` are over the cases without a cached LM answer, and None where there is none.
    """

    n: int
    n_errors: int
    scores: Mapping[str, float | None]
    abstention: Mapping[str, float | None]
    lm_calls: float
    tokens: float
    cost_usd: float
    parse_failures: int
    n_cached_calls: int
    seconds_p50: float | None
    seconds_p95: float | None
    outcomes: Mapping[str, int] = field(default_factory=dict)


def check_scorable(cases: Iterable[Case]) -> None:
    """Refuse cases that nothing can be measured on, before the work of running them.

    Raises:
        NoGoldAnswerError: a case has neither a gold answer nor gold evidence.
    """
    for case in cases:
        if not has_gold_answer(case) and not gold_of(case):
            raise NoGoldAnswerError(f"case {case.id}: neither a gold answer nor gold evidence, so it can't be scored")


def run_cases(
    program: Program,
    cases: Sequence[Case],
    *,
    n_threads: int = 1,
    indexed_ids: Container[str] | None = None,
) -> Iterator[CaseResult]:
    """Run `program` on every case and yield each result as it is ready.

    A program that raises is a recorded outcome of that case; a metric that raises is a defect and goes up. Settings
    bound with `dspy.context` around this call hold in the threads. When the consumer stops, the cases not yet begun
    are dropped, and those at work are not waited for.

    Args:
        program: Called with `question` and `history`.
        cases: Gold cases.
        n_threads: Cases at the same time.
        indexed_ids: Document ids in the index, to tell `not_in_index` from `not_retrieved`.
    """
    pool = ThreadPoolExecutor(max_workers=n_threads)
    try:
        futures = [pool.submit(copy_context().run, _run_case, program, case, indexed_ids) for case in cases]
        places = {future: place for place, future in enumerate(futures)}
        pending = set(futures)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            # What ends the evaluation comes after the results that were ready with it.
            for future in sorted(done, key=lambda one: (one.exception() is not None, places[one])):
                yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _run_case(program: Program, case: Case, indexed_ids: Container[str] | None) -> CaseResult:
    began = time.monotonic()
    try:
        prediction = program(question=case.question, history=[turn.model_dump() for turn in case.history])
    except Exception as error:  # noqa: BLE001 - whatever a program raises is this case's outcome, counted as an error
        reason = f"{type(error).__name__}: {error}"
        return CaseResult(case, None, {}, "errored", reason, time.monotonic() - began)
    outcome = attribute(case, prediction, indexed_ids=indexed_ids)
    if outcome.name == "errored":
        return CaseResult(case, prediction, {}, "errored", outcome.detail, time.monotonic() - began)
    return CaseResult(case, prediction, case_scores(case, prediction), outcome.name, None, time.monotonic() - began)


def summarise(results: Sequence[CaseResult]) -> Summary:
    """Add up results; every number is a mean over cases except where its name says otherwise."""
    good = [result for result in results if result.error is None]
    usages: list[Any] = [result.prediction.usage for result in results if result.prediction is not None]
    n_cached = sum(usage.cached_calls for usage in usages)
    seconds = [one.seconds for one in results if one.prediction is not None and not one.prediction.usage.cached_calls]
    outcomes: dict[str, int] = {}
    for result in results:
        outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1
    return Summary(
        n=len(results),
        n_errors=len(results) - len(good),
        scores=mean_scores(result.scores for result in good),
        abstention=abstention_scores((result.case, result.prediction) for result in good if result.prediction),
        lm_calls=_mean([usage.lm_calls for usage in usages]),
        tokens=_mean([usage.prompt_tokens + usage.completion_tokens for usage in usages]),
        cost_usd=sum(usage.cost_usd for usage in usages),
        parse_failures=sum(usage.parse_failures for usage in usages),
        n_cached_calls=n_cached,
        seconds_p50=percentile(seconds, 50) if seconds else None,
        seconds_p95=percentile(seconds, 95) if seconds else None,
        outcomes=outcomes,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def evaluate_program(
    program: Program,
    cases: Sequence[Case],
    *,
    records: Path,
    describe: Callable[[Any], Mapping[str, Any]],
    step: Callable[[str], None] = lambda remark: None,
    n_threads: int = 1,
    indexed_ids: Container[str] | None = None,
) -> list[CaseResult]:
    """Run a program over cases and write one record a case.

    Records appear in `<records>.part` as cases finish and take the final name when all have, in the order of `cases`.

    Args:
        program: Called with `question` and `history`.
        cases: Gold cases.
        records: The JSONL file to write.
        describe: Turns a prediction into plain data.
        step: Called after each case with the running score.
        n_threads: Cases at the same time.
        indexed_ids: Document ids in the index.

    Returns:
        The results in the order of `cases`.

    Raises:
        EvaluationError: The program raised on every case; the records are written.
    """
    partial = records.with_name(records.name + ".part")
    records.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, CaseResult] = {}
    with partial.open("w", encoding="utf-8") as out:
        for result in run_cases(program, cases, n_threads=n_threads, indexed_ids=indexed_ids):
            results[result.case.id] = result
            out.write(_line(result, describe))
            out.flush()
            step(_running(results.values()))
    ordered = [results[case.id] for case in cases]
    partial.write_text("".join(_line(result, describe) for result in ordered), encoding="utf-8")
    partial.replace(records)
    if all(result.prediction is None for result in ordered):
        raise EvaluationError(f"no case could be run, the first because of {ordered[0].error}; see {records}")
    return ordered


def _line(result: CaseResult, describe: Callable[[Any], Mapping[str, Any]]) -> str:
    record = {
        "id": result.case.id,
        "kind": result.case.kind,
        "lang": result.case.lang,
        "question": result.case.question,
        "gold": list(result.case.answer),
        "outcome": result.outcome,
        "error": result.error,
        "seconds": round(result.seconds, 3),
        "scores": result.scores,
        "prediction": describe(result.prediction) if result.prediction is not None else None,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def _running(results: Iterable[CaseResult]) -> str:
    seen = list(results)
    scores = [score for one in seen if (score := one.scores.get("combined")) is not None]
    errors = sum(one.error is not None for one in seen)
    return f"score {_mean(scores):.3f}" + (f" · {errors} errors" if errors else "")


COLUMNS = (
    "program", "score", "answer", "evidence@5", "abstain P", "abstain R", "LM calls", "tokens", "s P50", "s P95",
    "unparsed", "errors",
)  # fmt: skip


def table_row(name: str, summary: Summary) -> tuple[str, ...]:
    """Return one row under `COLUMNS`; a dash where there is nothing to measure."""
    scores, abstention = summary.scores, summary.abstention
    return (
        name,
        _shown(scores.get("combined")),
        _shown(scores.get("answer_score")),
        _shown(scores.get("all_evidence_recall_at_5")),
        _shown(abstention.get("abstention_precision")),
        _shown(abstention.get("abstention_recall")),
        f"{summary.lm_calls:.1f}",
        f"{summary.tokens:,.0f}",
        _shown(summary.seconds_p50, 1),
        _shown(summary.seconds_p95, 1),
        str(summary.parse_failures),
        str(summary.n_errors),
    )


def _shown(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def compare(name: str, results: Sequence[CaseResult], other: str, others: Sequence[CaseResult]) -> str:
    """Say in one line how much better or worse one program is than another on the same cases, and how sure that is.

    Cases that errored in either are left out of the interval, and said.
    """
    pairs = [
        (second, first)
        for one, two in zip(results, others, strict=True)
        if (first := one.scores.get("combined")) is not None and (second := two.scores.get("combined")) is not None
    ]
    if not pairs:
        return f"{name} against {other}: no case was scored in both"
    interval = paired_bootstrap([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    if interval.low > 0:
        verdict = f"{name} is better"
    elif interval.high < 0:
        verdict = f"{name} is WORSE"
    else:
        verdict = "no difference is proven"
    skipped = f"; {len(results) - len(pairs)} left out" if len(pairs) < len(results) else ""
    return (
        f"{name} − {other}: {interval.value:+.3f}, 95 % interval {interval.low:+.3f} … {interval.high:+.3f} "
        f"(paired bootstrap, {len(pairs)} cases{skipped}) → {verdict}"
    )
