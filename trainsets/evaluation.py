"""Run a program over gold cases: one result a case, in threads, each within its time, what raises recorded."""

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from trainsets.answers import NoGoldAnswerError, has_gold_answer
from trainsets.cases import Case
from trainsets.comparison import compare
from trainsets.metrics import case_scores
from trainsets.outcomes import Outcome, attribute, find_ranks
from trainsets.prediction import HopLike, PredictionLike
from trainsets.ranking import gold_of
from trainsets.records import Describe, Finished, part_of, to_line, write_whole
from trainsets.results import CaseResult, Summary, running_remark, summarise
from trainsets.tables import COLUMNS, table_row

__all__ = [
    "COLUMNS",
    "CaseResult",
    "EvaluationError",
    "Scoring",
    "Summary",
    "check_scorable",
    "compare",
    "evaluate_program",
    "run_cases",
    "summarise",
    "table_row",
]

Program = Callable[..., Any]


class EvaluationError(RuntimeError):
    """A program could not be run at all, so there is nothing to score."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is known beside the case when a prediction is scored.

    Attributes:
        indexed_ids: Documents (and passages) in the index, to tell `not_in_index` from `not_retrieved`.
        search_deeper: Makes the search of a hop again with more hits, and gives their passage ids, best first; asked
            only where evidence was never a hit, to tell at which rank it stands.
        grade: Gives further scores by an LM; they never enter the combined one.
    """

    indexed_ids: Container[str] | None = None
    search_deeper: Callable[[HopLike], Sequence[str]] | None = None
    grade: Callable[[Case, PredictionLike], Mapping[str, float | None]] | None = None


def check_scorable(cases: Iterable[Case]) -> None:
    """Refuse cases that nothing can be measured on, before the work of running them.

    Raises:
        NoGoldAnswerError: a case has neither a gold answer nor gold evidence.
    """
    for case in cases:
        if not has_gold_answer(case) and not gold_of(case):
            raise NoGoldAnswerError(f"case {case.id}: neither a gold answer nor gold evidence, so it can't be scored")


def evaluate_program(
    program: Program,
    cases: Sequence[Case],
    *,
    records: Path,
    describe: Describe,
    step: Callable[[str], None] = lambda remark: None,
    n_threads: int = 1,
    timeout_s: float | None = None,
    scoring: Scoring | None = None,
    keys: Mapping[str, str] | None = None,
    earlier: Mapping[str, Finished] | None = None,
) -> list[CaseResult]:
    """Run a program over cases and write one record a case.

    Records appear in `<records>.part` as cases finish and take the final name when all have, in the order of `cases`.

    Args:
        program: Called with `question` and `history`.
        cases: Gold cases.
        records: The JSONL file to write.
        describe: Turns a prediction into plain data.
        step: Called after each case that was run, with the running score.
        n_threads: Cases at the same time.
        timeout_s: Seconds after which a case is given up.
        scoring: What is known beside the cases.
        keys: Case id to `records.key_of` its result, without which a record can't be taken again.
        earlier: Case id to what is there already, see `records.find_finished`; these are not run.

    Returns:
        The results in the order of `cases`.

    Raises:
        NoGoldAnswerError: A case has nothing to measure; none was run.
        EvaluationError: The program raised on every case; the records are written.
    """
    check_scorable(cases)
    done = dict(earlier or {})
    records.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(records)
    write_whole(part, "".join(one.line for one in done.values()))
    left = [case for case in cases if case.id not in done]
    made = run_cases(program, left, n_threads=n_threads, timeout_s=timeout_s, scoring=scoring)
    with part.open("a", encoding="utf-8") as out, closing(made):
        for result in made:
            line = to_line(result, (keys or {}).get(result.case.id, ""), describe)
            done[result.case.id] = Finished(result, line)
            out.write(line)
            out.flush()
            step(running_remark(one.result for one in done.values()))
    write_whole(records, "".join(done[case.id].line for case in cases))
    part.unlink()
    ordered = [done[case.id].result for case in cases]
    if all(result.prediction is None for result in ordered):
        raise EvaluationError(f"no case could be run, the first because of {ordered[0].error}; see {records}")
    return ordered


def run_cases(
    program: Program,
    cases: Sequence[Case],
    *,
    n_threads: int = 1,
    timeout_s: float | None = None,
    scoring: Scoring | None = None,
) -> Generator[CaseResult, None, None]:
    """Run `program` on every case and yield each result as it is ready.

    A program or a metric that raises, and a case that takes longer than `timeout_s`, is a recorded outcome of that
    case. Settings bound with `dspy.context` around this call hold in the threads. When the consumer stops, the cases
    not yet begun are dropped, and those at work are not waited for; they, as those that timed out, make no further
    LM call.
    """
    finished: Queue = SimpleQueue()
    waiting, running = deque(cases), set[_Attempt]()
    try:
        while waiting or running:
            while waiting and len(running) < n_threads:
                attempt = _Attempt(program, waiting.popleft(), scoring or Scoring(), finished)
                running.add(attempt)
                attempt.start()
            # What ends the evaluation comes after the results that were ready with it.
            ready = _wait(finished, running, timeout_s)
            for attempt, result in sorted(ready, key=lambda one: isinstance(one[1], BaseException)):
                if attempt not in running:  # it was given up before
                    continue
                running.remove(attempt)
                if isinstance(result, BaseException):
                    raise result
                yield result
    finally:
        for attempt in running:
            attempt.is_given_up.set()


class _Attempt(threading.Thread):
    """One case at work. A thread can't be stopped, so one that is given up is left alone: nothing waits for it."""

    def __init__(self, program: Program, case: Case, scoring: Scoring, finished: "Queue") -> None:
        super().__init__(name=f"case {case.id}", daemon=True)
        self.case = case
        self.is_given_up = threading.Event()
        self.began = time.monotonic()
        self._arguments = (program, case, scoring)
        self._settings = copy_context()
        self._finished = finished

    def run(self) -> None:
        result: CaseResult | BaseException
        try:
            result = self._settings.run(self._run_case)
        except BaseException as error:  # noqa: BLE001 - raised again where the results are waited for
            result = error
        self._finished.put((self, result))

    def _run_case(self) -> CaseResult:
        import dspy

        with dspy.context(is_over=_Either(self.is_given_up, dspy.settings.get("is_over"))):
            return _run_case(*self._arguments)


Ready = tuple[_Attempt, CaseResult | BaseException]
Queue = SimpleQueue[Ready]


@dataclass(frozen=True, slots=True)
class _Either:
    """Set when its own event is, or the one that it stands for; LMs look at it before every call."""

    own: threading.Event
    outer: Any

    def is_set(self) -> bool:
        return self.own.is_set() or (self.outer is not None and self.outer.is_set())


def _wait(finished: Queue, running: Iterable[_Attempt], timeout_s: float | None) -> list[Ready]:
    """Wait for attempts to end, and give up those whose time is over."""
    oldest = min(attempt.began for attempt in running)
    patience = None if timeout_s is None else max(0.0, oldest + timeout_s - time.monotonic())
    ready: list[Ready] = []
    try:
        ready.append(finished.get(timeout=patience))
        while True:
            ready.append(finished.get_nowait())
    except Empty:
        pass
    if ready or timeout_s is None:
        return ready
    late = [attempt for attempt in running if time.monotonic() >= attempt.began + timeout_s]
    for attempt in late:
        attempt.is_given_up.set()
    error = f"timed out after {timeout_s:g} s"
    return [(one, CaseResult(one.case, None, {}, "errored", error, timeout_s, detail=error)) for one in late]


def _run_case(program: Program, case: Case, scoring: Scoring) -> CaseResult:
    began = time.monotonic()
    try:
        prediction = program(question=case.question, history=[turn.model_dump() for turn in case.history])
    except Exception as error:  # noqa: BLE001 - whatever a program raises is this case's outcome, counted as an error
        reason = _reason(error)
        return CaseResult(case, None, {}, "errored", reason, time.monotonic() - began, detail=reason)
    seconds = time.monotonic() - began
    try:
        result = _score(case, prediction, seconds, scoring)
    except Exception as error:  # noqa: BLE001 - a metric that fails is no score of 0, and does not end the others
        reason = f"scoring failed: {_reason(error)}"
        return CaseResult(case, prediction, {}, "errored", reason, seconds, detail=reason)
    return result if result.error or scoring.grade is None else _grade(result, prediction, scoring.grade)


def _score(case: Case, prediction: PredictionLike, seconds: float, scoring: Scoring) -> CaseResult:
    outcome = _explain(case, prediction, scoring)
    error = outcome.detail if outcome.name == "errored" else None
    scores = {} if error is not None else case_scores(case, prediction)
    return CaseResult(case, prediction, scores, outcome.name, error, seconds, outcome.rank, outcome.detail)


def _explain(case: Case, prediction: PredictionLike, scoring: Scoring) -> Outcome:
    outcome = attribute(case, prediction, indexed_ids=scoring.indexed_ids)
    if outcome.name != "not_retrieved" or scoring.search_deeper is None:
        return outcome
    ranks = find_ranks(gold_of(case), map(scoring.search_deeper, prediction.hops))
    return attribute(case, prediction, indexed_ids=scoring.indexed_ids, deep_ranks=ranks)


def _grade(
    result: CaseResult, prediction: PredictionLike, grade: Callable[..., Mapping[str, float | None]]
) -> CaseResult:
    try:
        return replace(result, scores={**result.scores, **grade(result.case, prediction)})
    except Exception as error:  # noqa: BLE001 - recorded and counted: an answer that can't be graded has its scores
        return replace(result, grading_error=_reason(error))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
