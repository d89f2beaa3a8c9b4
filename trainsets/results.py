"""What one program made of one case, and the totals of a table: errors counted apart, never as a score of 0."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from trainsets.cases import Case
from trainsets.metrics import abstention_scores, mean_scores
from trainsets.outcomes import OutcomeName
from trainsets.prediction import PredictionLike
from trainsets.stats import percentile

Item = TypeVar("Item")

MAX_ERROR_SHARE = 0.02
"""An evaluation with more errors than this share of its cases says nothing about the program: it fails."""

MAIN = "combined"
"""The score that a table calls `score`: running, compared and held against `--fail-under`."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one program made of one case. An `error` says why there are no scores; a prediction may still be there.

    `rank` and `detail` explain the outcome, see `outcomes.Outcome`. `grading_error` says why a grader gave no grade:
    the rest of the case counts.
    """

    case: Case
    prediction: PredictionLike | None
    scores: Mapping[str, float | None]
    outcome: OutcomeName
    error: str | None = None
    seconds: float = 0.0
    rank: int | None = None
    detail: str = ""
    grading_error: str | None = None

    @property
    def score(self) -> float | None:
        """The combined score; None if the case errored."""
        return self.scores.get(MAIN)


@dataclass(frozen=True, slots=True)
class Summary:
    """The row of a table. Means are over the cases that did not error; `n_errors` counts those that did.

    `seconds_p50` and `seconds_p95` are over the cases without a cached LM answer, and None where there is none.
    `n_ungraded` counts the cases that a grader could not grade, `truncations` LM outputs cut off at the token limit.
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
    n_ungraded: int = 0
    truncations: int = 0


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
        lm_calls=mean([usage.lm_calls for usage in usages]) or 0.0,
        tokens=mean([usage.prompt_tokens + usage.completion_tokens for usage in usages]) or 0.0,
        cost_usd=sum(usage.cost_usd for usage in usages),
        parse_failures=sum(usage.parse_failures for usage in usages),
        n_cached_calls=n_cached,
        seconds_p50=percentile(seconds, 50) if seconds else None,
        seconds_p95=percentile(seconds, 95) if seconds else None,
        outcomes=outcomes,
        n_ungraded=sum(result.grading_error is not None for result in results),
        truncations=sum(usage.truncations for usage in usages),
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Give the mean of what was measured; None if nothing was."""
    measured = [value for value in values if value is not None]
    return math.fsum(measured) / len(measured) if measured else None


def running_remark(results: Iterable[CaseResult]) -> str:
    """Say the score so far, for a progress bar."""
    seen = list(results)
    n_errors = sum(one.error is not None for one in seen)
    return f"score {mean(one.score for one in seen) or 0.0:.3f}" + (f" · {n_errors} errors" if n_errors else "")


def explain_errors(name: str, results: Sequence[CaseResult]) -> str | None:
    """Say in one line that too many cases errored to trust the scores; None if they did not."""
    errors = [result for result in results if result.error is not None]
    if len(errors) <= MAX_ERROR_SHARE * len(results):
        return None
    return (
        f"{name}: {len(errors)} of {len(results)} cases errored, more than {MAX_ERROR_SHARE:.0%}; "
        f"the first is {errors[0].case.id}: {errors[0].error}"
    )


@dataclass(frozen=True, slots=True)
class Slice:
    """The cases of one kind or one language: `by` says which of the two, `value` its name."""

    by: str
    value: str
    n: int
    n_errors: int
    n_right: int
    score: float | None
    answer_score: float | None


def slice_results(results: Sequence[CaseResult]) -> list[Slice]:
    """Cut results by kind, then by language; in the order in which the cases name them."""
    return [
        Slice(
            by=by,
            value=value,
            n=len(part),
            n_errors=sum(one.error is not None for one in part),
            n_right=sum(one.outcome == "right" for one in part),
            score=mean(one.score for one in part),
            answer_score=mean(one.scores.get("answer_score") for one in part),
        )
        for by, value, part in cut(results, lambda one: one.case)
    ]


class Sliceable(Protocol):
    """What stands in a slice: a case, or what a record keeps of it."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def lang(self) -> str: ...  # noqa: D102


def cut(items: Sequence[Item], case_of: Callable[[Item], Sliceable]) -> list[tuple[str, str, list[Item]]]:
    """Group items by the kind and then by the language of their case: what it was grouped by, the value, the items."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for by in ("kind", "lang"):
        for item in items:
            if value := getattr(case_of(item), by):
                groups.setdefault((by, value), []).append(item)
    return [(by, value, part) for (by, value), part in groups.items()]
