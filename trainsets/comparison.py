"""Two programs on the same cases: how much better, how sure, where, and which cases moved from which outcome."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainsets.normalize import fold
from trainsets.outcomes import OutcomeName, count_transitions
from trainsets.records import RecordError, Scored, scored_of
from trainsets.results import CaseResult, cut, mean
from trainsets.stats import Interval, McNemar, mcnemar, paired_bootstrap, stability

MIN_CASES = 20
"""Fewer pairs prove nothing, whatever their interval: a bootstrap of five cases is too sure of itself."""

Pair = tuple[Scored, Scored]


@dataclass(frozen=True, slots=True)
class Transition:
    """Cases that had one outcome in the baseline and have another, or the same, now."""

    before: OutcomeName
    after: OutcomeName
    n: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SliceDifference:
    """The mean scores of both on the cases of one kind or language."""

    by: str
    value: str
    n: int
    baseline: float
    program: float
    difference: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Comparison:
    """A program held against a baseline. `interval` is of the mean of program − baseline; None if `n` is 0.

    `n` counts cases scored in both. `n_left_out` counts those that errored in one of them or stand in one only.
    Of the `n_answered` cases in which both said something, both said and cited the same in `n_same_answers`.
    """

    name: str
    baseline: str
    n: int
    n_left_out: int
    interval: Interval | None
    mcnemar: McNemar
    transitions: tuple[Transition, ...]
    slices: tuple[SliceDifference, ...]
    n_answered: int = 0
    n_same_answers: int = 0

    @property
    def is_regression(self) -> bool:
        """Whether the program is worse beyond chance: the whole 95 % interval lies below zero."""
        return self.interval is not None and self.interval.high < 0

    @property
    def moves(self) -> tuple[Transition, ...]:
        """The transitions between two different outcomes, most frequent first."""
        return tuple(one for one in self.transitions if one.before != one.after)


@dataclass(frozen=True, slots=True)
class Stability:
    """How alike repeats of a program are. Agreements are the chance that two runs say the same of a case.

    `scores` has the mean score of each run. Cases that errored in any run are left out of the agreements; `n` counts
    the others. `verdict` is of the judge's first verdict, None if no run had one.
    """

    n_repeats: int
    n: int
    scores: tuple[float | None, ...]
    right: float | None
    answer: float | None
    verdict: float | None


def compare_programs(name: str, ours: Sequence[Scored], baseline: str, theirs: Sequence[Scored]) -> Comparison:
    """Compare a program with a baseline, case by case; right means the outcome `right`.

    Raises:
        RecordError: A case of one id asks two different questions, or no case stands in both.
    """
    pairs = _pair(ours, baseline, theirs)
    both = [(old, new) for old, new in pairs if old.score is not None and new.score is not None]
    answered = [(old, new) for old, new in pairs if old.said and new.said]
    ids = {one.id for one in (*ours, *theirs)}
    return Comparison(
        name=name,
        baseline=baseline,
        n=len(both),
        n_left_out=len(ids) - len(both),
        interval=_difference(both) if both else None,
        mcnemar=mcnemar([old.outcome == "right" for old, _ in both], [new.outcome == "right" for _, new in both]),
        transitions=_transitions(pairs),
        slices=tuple(_slices(both)),
        n_answered=len(answered),
        n_same_answers=sum(old.said == new.said for old, new in answered),
    )


def compare(name: str, results: Sequence[CaseResult], other: str, others: Sequence[CaseResult]) -> str:
    """Say in one line how much better or worse one program is than another on the same cases, and how sure that is.

    Cases that errored in either are left out of the interval, and said.
    """
    return describe_interval(compare_programs(name, scored_of(results), other, scored_of(others)))


def describe_interval(comparison: Comparison) -> str:
    """Say in one line how much better or worse the program is, and how sure that is."""
    name, other, interval = comparison.name, comparison.baseline, comparison.interval
    if interval is None:
        return f"{name} against {other}: no case was scored in both"
    few = f" here, but fewer than {MIN_CASES} cases prove nothing" if comparison.n < MIN_CASES else ""
    if interval.low > 0:
        verdict = f"{name} is better{few}"
    elif interval.high < 0:
        verdict = f"{name} is WORSE{few}"
    else:
        verdict = "no difference is proven"
    skipped = f"; {comparison.n_left_out} left out" if comparison.n_left_out else ""
    return (
        f"{name} − {other}: {interval.value:+.3f}, 95 % interval {interval.low:+.3f} … {interval.high:+.3f} "
        f"(paired bootstrap, {comparison.n} cases{skipped}) → {verdict}"
    )


def describe_comparison(comparison: Comparison) -> list[str]:
    """Say all of a comparison but its slices: the interval, McNemar's test, the cases that moved, the same answers."""
    test = comparison.mcnemar
    lines = [
        describe_interval(comparison),
        f"  right only in {comparison.name}: {test.only_second}, only in {comparison.baseline}: {test.only_first} "
        f"(McNemar, p {f'= {test.p_value:.3f}' if test.p_value >= 0.001 else '< 0.001'})",
    ]
    for move in comparison.moves:
        lines.append(f"  {move.n} {'case' if move.n == 1 else 'cases'} moved from {move.before} to {move.after}")
    if n := comparison.n_answered:
        lines.append(f"  the same answer, citing the same passages, in {comparison.n_same_answers} of {n} cases")
    return lines


def measure_stability(repeats: Sequence[Sequence[CaseResult]]) -> Stability:
    """Measure how alike the runs of one program over the same cases are.

    Raises:
        ValueError: Fewer than two runs, or runs over different cases.
    """
    kept = [runs for runs in zip(*repeats, strict=True) if all(one.error is None for one in runs)]

    def agreement(value_of: Callable[[CaseResult], Hashable]) -> float | None:
        return stability([[value_of(one) for one in run] for run in zip(*kept, strict=True)]) if kept else None

    judged = any(_first_verdict(one) for runs in kept for one in runs)
    return Stability(
        n_repeats=len(repeats),
        n=len(kept),
        scores=tuple(mean(one.score for one in run) for run in repeats),
        right=agreement(lambda one: one.outcome == "right"),
        answer=agreement(lambda one: fold(one.prediction.answer) if one.prediction else None),
        verdict=agreement(_first_verdict) if judged else None,
    )


def _first_verdict(result: CaseResult) -> str | None:
    hops = result.prediction.hops if result.prediction else ()
    return next((hop.verdict for hop in hops if hop.verdict), None)


class Asked(Protocol):
    """A question with its id: a gold case, or what a record keeps of it."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def question(self) -> str: ...  # noqa: D102


def check_same_set(baseline: str, theirs: Iterable[Asked], ours: Iterable[Asked]) -> None:
    """Refuse to compare what was asked different questions.

    Raises:
        RecordError: A case of one id asks two different questions, or no case stands in both.
    """
    known = {one.id: one.question for one in theirs}
    shared = [one for one in ours if one.id in known]
    if not shared:
        raise RecordError(f"{baseline}: no case in common with these; expected records of the same gold set")
    if odd := next((one for one in shared if one.question != known[one.id]), None):
        raise RecordError(f"{baseline}: case {odd.id} asks something else; expected records of the same gold set")


def _pair(ours: Sequence[Scored], baseline: str, theirs: Sequence[Scored]) -> list[Pair]:
    check_same_set(baseline, theirs, ours)
    old = {one.id: one for one in theirs}
    return [(old[one.id], one) for one in ours if one.id in old]


def _difference(pairs: Sequence[Pair]) -> Interval:
    return paired_bootstrap([old.score or 0.0 for old, _ in pairs], [new.score or 0.0 for _, new in pairs])


def _transitions(pairs: Sequence[Pair]) -> tuple[Transition, ...]:
    before: Mapping[str, OutcomeName] = {old.id: old.outcome for old, _ in pairs}
    after: Mapping[str, OutcomeName] = {new.id: new.outcome for _, new in pairs}
    counted = count_transitions(before, after)
    return tuple(
        Transition(was, now, n, tuple(old.id for old, new in pairs if (old.outcome, new.outcome) == (was, now)))
        for (was, now), n in counted.items()
    )


def _slices(pairs: Sequence[Pair]) -> list[SliceDifference]:
    slices = []
    for by, value, part in cut(pairs, lambda pair: pair[1]):
        interval = _difference(part)
        old, new = mean(pair[0].score for pair in part) or 0.0, mean(pair[1].score for pair in part) or 0.0
        slices.append(SliceDifference(by, value, len(part), old, new, interval.value, interval))
    return slices
