"""The gate: may a program replace the one in use? Better by proof, no slice worse, nothing that costs too much."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from trainsets.comparison import MIN_CASES, Comparison, compare_programs
from trainsets.records import scored_of
from trainsets.results import CaseResult, summarise
from trainsets.stats import Interval

GateVerdict = Literal["promote", "keep", "reject"]
_ORDER = ("reject", "keep", "promote", "note")  # the first that a reason argues for is the verdict


class LimitError(ValueError):
    """A limit of the gate that does not exist, or whose value can't be used."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the gate allows.

    - `min_cases`: fewer pairs prove nothing, whatever their interval (a bootstrap of five cases is too sure of itself).
    - `min_slice`: slices (kind, language) with fewer pairs are not looked at.
    - `slice_margin`: how much lower the mean score of a slice may be; a lower one rejects if its own interval proves
      it, else it is noted: with a dozen small slices, one of them falls by chance nearly always.
    - `error_margin`: how much higher the share of errored cases may be.
    - `calls_ratio`, `tokens_ratio`, `seconds_ratio`: mean calls and tokens of a case, and P95 of its seconds, as
      multiples of the baseline's. Published compiles multiply input tokens by 2.4 to 4.1.
    """

    min_cases: int = MIN_CASES
    min_slice: int = 10
    slice_margin: float = 0.1
    error_margin: float = 0.02
    calls_ratio: float = 1.5
    tokens_ratio: float = 4.5
    seconds_ratio: float = 2.0


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that was compared, in words, and the verdict that it argues for; a note argues for none."""

    verdict: GateVerdict | Literal["note"]
    text: str


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict and all reasons, those for the verdict first."""

    verdict: GateVerdict
    reasons: tuple[Reason, ...]
    limits: Limits

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a manifest."""
        return {
            "verdict": self.verdict,
            "reasons": [f"{reason.verdict}: {reason.text}" for reason in self.reasons],
            "limits": asdict(self.limits),
        }


def gate(
    candidate: Sequence[CaseResult],
    baselines: Mapping[str, Sequence[CaseResult]],
    limits: Limits | None = None,
    objections: Sequence[str] = (),
) -> GateResult:
    """Compare a program with what it would replace, on cases that no optimizer saw.

    - `promote`: proven better than the first baseline, which is the one in use, and no worse than any.
    - `reject`: proven worse than a baseline, in all or in a slice; over a ceiling; or there is an objection.
    - `keep`: neither is proven, so what is in use stays in use.

    Args:
        candidate: Results of the program in question.
        baselines: Name to results of the same cases in the same order; the first is the program in use.
        limits: What is allowed.
        objections: Reasons to reject that were found elsewhere, such as gold answers in the demos.

    Raises:
        ValueError: No baseline, or results of other cases.
    """
    if not baselines:
        raise ValueError("nothing to compare with, expected one baseline at least")
    limits = limits or Limits()
    reasons = [Reason("reject", text) for text in objections]
    for place, (name, results) in enumerate(baselines.items()):
        _check_same_cases(candidate, name, results)
        comparison = compare_programs("the new program", scored_of(candidate), name, scored_of(results))
        reasons += [_compare_scores(comparison, limits, in_use=place == 0), *_compare_slices(comparison, limits)]
        reasons += _compare_costs(candidate, name, results, limits)
    reasons.sort(key=lambda reason: _ORDER.index(reason.verdict))
    verdict = next(reason.verdict for reason in reasons if reason.verdict != "note")
    return GateResult(verdict, tuple(reasons), limits)


def parse_limits(settings: Sequence[str]) -> Limits:
    """Read limits from `NAME=VALUE` texts, the others as they are by default.

    Raises:
        LimitError: No such limit, or not a finite number above or equal to zero.
    """
    known = {field.name: type(getattr(Limits(), field.name)) for field in fields(Limits)}
    values: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in known:
            raise LimitError(f"no gate limit {name!r}, expected NAME=VALUE with one of {', '.join(known)}")
        try:
            values[name] = known[name](text)
        except ValueError:
            values[name] = -1
        if not (math.isfinite(values[name]) and values[name] >= 0):
            number = "a whole number" if known[name] is int else "a finite number"
            raise LimitError(f"gate limit {name}: {text!r}, expected {number} of 0 or more")
    return Limits(**values)


def say(result: GateResult) -> str:
    """Say the verdict and its reasons, one a line."""
    meaning = {
        "promote": "proven better than what is in use",
        "keep": "not proven better: what is in use stays in use",
        "reject": "do not use it",
    }
    lines = [f"gate: {result.verdict.upper()} – {meaning[result.verdict]}"]
    return "\n".join([*lines, *(f"  {reason.verdict:<8}{reason.text}" for reason in result.reasons)]) + "\n"


def _check_same_cases(candidate: Sequence[CaseResult], name: str, results: Sequence[CaseResult]) -> None:
    if [one.case.id for one in candidate] != [one.case.id for one in results]:
        raise ValueError(f"the results of {name} are not of the same cases in the same order")


def _compare_scores(comparison: Comparison, limits: Limits, *, in_use: bool) -> Reason:
    name, interval = comparison.baseline, comparison.interval
    if interval is None:
        return Reason("reject", f"no case was scored both here and in {name}")
    shown = f"{name}: {_shown(interval)}"
    if comparison.n < limits.min_cases:
        return Reason("keep", f"{shown}; fewer than {limits.min_cases} cases prove nothing")
    if interval.high < 0:
        return Reason("reject", f"worse than {shown}")
    if interval.low > 0:
        return Reason("promote", f"better than {shown}")
    return Reason("keep" if in_use else "promote", f"{'not proven better' if in_use else 'not worse'} than {shown}")


def _compare_slices(comparison: Comparison, limits: Limits) -> list[Reason]:
    reasons = []
    for part in comparison.slices:
        if limits.min_slice <= part.n < comparison.n and part.difference < -limits.slice_margin:
            level: Literal["reject", "note"] = "reject" if part.interval.high < 0 else "note"
            text = f"{part.value} cases lower than with {comparison.baseline}: {_shown(part.interval)}"
            reasons.append(Reason(level, text))
    return reasons


def _compare_costs(
    candidate: Sequence[CaseResult], name: str, results: Sequence[CaseResult], limits: Limits
) -> list[Reason]:
    mine, theirs = summarise(candidate), summarise(results)
    reasons = []
    rate, other = mine.n_errors / max(1, mine.n), theirs.n_errors / max(1, theirs.n)
    if rate > other + limits.error_margin:
        reasons.append(Reason("reject", f"{mine.n_errors} of {mine.n} cases errored, with {name} {theirs.n_errors}"))
    for what, value, base, ratio, digits in (
        ("LM calls a case", mine.lm_calls, theirs.lm_calls, limits.calls_ratio, 1),
        ("tokens a case", mine.tokens, theirs.tokens, limits.tokens_ratio, 0),
        ("seconds at P95", *_latencies(candidate, results, limits), limits.seconds_ratio, 1),
    ):
        if value is not None and base and value > ratio * base:
            text = f"{value:,.{digits}f} {what}, {value / base:.1f} × {name} (at most {ratio:g} ×)"
            reasons.append(Reason("reject", text))
    return reasons


def _latencies(
    candidate: Sequence[CaseResult], results: Sequence[CaseResult], limits: Limits
) -> tuple[float | None, float | None]:
    """Return P95 of both where both ran enough cases without cached answers, else None: those tell no time."""
    mine, theirs = ([one for one in each if _is_timed(one)] for each in (candidate, results))
    if min(len(mine), len(theirs)) < limits.min_cases:  # P95 of few is their worst
        return None, None
    return summarise(mine).seconds_p95, summarise(theirs).seconds_p95


def _is_timed(result: CaseResult) -> bool:
    return result.prediction is not None and not result.prediction.usage.cached_calls


def _shown(interval: Interval) -> str:
    bounds = f"95 % interval {interval.low:+.3f} … {interval.high:+.3f}"
    return f"{interval.value:+.3f}, {bounds} (paired bootstrap, {interval.n} cases)"
