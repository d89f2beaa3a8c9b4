"""Looks before a compile spends: can this optimizer, with these LMs and cases, lead anywhere, and what will it cost."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Generic, Literal, TypeVar

import dspy

from programs.compile_lms import CompileLMs
from programs.decisions import thresholds_of, why_nothing_to_fit
from programs.estimate import Cost, Estimate, Plan, Task, estimate_compile, estimate_runs, plan_compile
from programs.lms import MeteredLM
from programs.meter import BudgetExceeded
from programs.probing import MOST_PROBED, ProbeRun, ask_once, mean_cost, probe, repeat_judgements
from programs.rag import NaiveRAG
from programs.settings import Limits

Item = TypeVar("Item")
Level = Literal["ok", "note", "doubt", "hopeless"]

_EXTRAS = {"mipro": ("optuna", "dspy[optuna]"), "gepa": ("gepa", "gepa")}
_BOOTSTRAPS = frozenset({"bootstrap", "knn"})  # what has no other way to change a program
_FITS_THRESHOLDS = "reanchor"
_TELLING_VAL = 20
_TELLING_DECISIONS = 10  # each of the five folds that a threshold is held against has two then
_LEAST_TRAIN = {"mipro": 2, "random-search": 2, "simba": 2, "gepa": 2, "reanchor": 2}

# Which of three causes an outcome of a failed case speaks for.
_CAUSES = {
    "not_in_index": "retrieval",
    "not_retrieved": "retrieval",
    "ranked_too_low": "retrieval",
    "dropped_by_threshold": "retrieval",
    "loop_exhausted": "retrieval",
    "wrong_with_evidence": "lm",
    "dropped_by_judge": "lm",
    "stopped_early": "lm",
    "should_have_abstained": "lm",
    "should_not_have_abstained": "lm",
    "errored": "lm",
    "right": "gold",
    "unsupported_right": "gold",
}
_ADVICE = {
    "retrieval": "the evidence is not found: is this the index of these cases (--index), are their gold ids in it",
    "lm": "the LM does not use what is found, or its replies can't be read: a larger --lm, or a --teacher-lm for demos",
    "gold": "the gold is narrower than right answers are: accept more answers and gold ids (python -m trainsets check)",
}


class CompileRefusedError(RuntimeError):
    """A compile that can't lead anywhere; the message is the whole preflight."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; `hopeless` means that the compile can't lead anywhere, for one of the likely `causes`."""

    what: str
    level: Level
    text: str
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preflight:
    """Everything that was looked at before a compile."""

    checks: tuple[Check, ...]

    @property
    def refusals(self) -> tuple[Check, ...]:
        """What makes the compile hopeless."""
        return tuple(check for check in self.checks if check.level == "hopeless")

    def say(self) -> str:
        """Say it, one line a check."""
        mark = {"ok": "ok", "note": "", "doubt": "doubt", "hopeless": "STOP"}
        lines = ["preflight:"]
        for one in self.checks:
            lines.append(f"  {mark[one.level]:<6}{one.what:<12}{one.text}")
            lines += ["        likely causes:"] * bool(one.causes)
            lines += [f"        {number}. {cause}" for number, cause in enumerate(one.causes, start=1)]
        return "\n".join(lines) + "\n"


def check_dependencies(stages: Iterable[str]) -> Check:
    """Check that what the optimizers import late is installed."""
    needed = [_EXTRAS[stage] for stage in stages if stage in _EXTRAS]
    missing = [package for module, package in needed if find_spec(module) is None]
    if missing:
        return Check("packages", "hopeless", f"not installed: pip install {' '.join(map(repr, missing))}")
    return Check("packages", "ok", ", ".join(package for _, package in needed) or "nothing beyond what is installed")


def check_sizes(stages: Sequence[str], n_train: int, n_val: int, n_dev: int, least_dev: int) -> Check:
    """Check the numbers of cases against what the optimizers and the gate need."""
    sizes = f"{n_train} train, {n_val} validation, {n_dev} dev cases"
    least = max((_LEAST_TRAIN.get(stage, 1) for stage in stages), default=1)
    if n_train < least:
        return Check("cases", "hopeless", f"{sizes}: {' and '.join(stages)} needs {least} train cases at least")
    doubts = []
    if 0 < n_val < _TELLING_VAL:
        doubts.append(f"on {n_val} validation cases one case is {1 / n_val:.0%}: candidates are chosen by luck")
    if n_dev < least_dev:
        doubts.append(f"{n_dev} dev cases prove nothing, the gate wants {least_dev}")
    return Check("cases", "doubt" if doubts else "ok", "; ".join([sizes, *doubts]))


def check_thresholds(stages: Iterable[str], program: dspy.Module) -> list[Check]:
    """Check that a program has a threshold, where one is to be fitted."""
    if _FITS_THRESHOLDS not in stages:
        return []
    if why := why_nothing_to_fit(program):
        return [Check("thresholds", "hopeless", f"{_FITS_THRESHOLDS} has nothing to fit: {why}")]
    return [Check("thresholds", "ok", ", ".join(f"{name} {at:g}" for name, at in thresholds_of(program).items()))]


@dataclass(frozen=True, slots=True)
class Subject(Generic[Item]):
    """A compile that is about to begin.

    Attributes:
        stages: Its optimizers, in order.
        program: What the optimizers start from: the seed program, or with `--step-demos` that with its demos.
        cases: Train cases in the order in which they are probed.
        run: Runs that program on a case, with the LMs that are bound.
        n_probes: How many cases are probed at least; 0 for none. A call budget is not spent on more than about a tenth.
        n_measured: How many runs of seed and compiled programs the comparison at the end takes.
        least_dev: How many dev cases the gate wants.
    """

    stages: Sequence[str]
    program: NaiveRAG
    task: Task
    cases: Sequence[Item]
    run: Callable[[Item], ProbeRun]
    lms: CompileLMs
    limits: Limits = field(default_factory=Limits)
    n_probes: int = 6
    n_dev: int = 0
    n_measured: tuple[int, int] = (0, 0)
    least_dev: int = 0
    n_threads: int = 1

    @property
    def starts_from_demos(self) -> bool:
        """Whether the program that is probed has demos, made of gold evidence, before any optimizer."""
        return any(predictor.demos for predictor in self.program.predictors())

    @property
    def who(self) -> str:
        """What the program that is probed is called."""
        return "the seed program" + " with its step demos" * self.starts_from_demos

    @property
    def asked(self) -> list[tuple[str, MeteredLM, dspy.Predict]]:
        """Every LM, what it is for, and what it will be asked."""
        proposing = dspy.Predict("question -> proposed_instruction")
        asked = [
            ("answer LM", self.lms.compiling.answer, self.program.answer),
            ("decision LM", self.lms.compiling.decision, getattr(self.program, "judge", None)),
            ("teacher LM", self.lms.teacher, self.program.answer),
            ("proposer LM", self.lms.proposer, proposing),
        ]
        return [(what, lm, predictor) for what, lm, predictor in asked if lm and predictor]


def look(subject: Subject[Any], *others: Check) -> Preflight:
    """Look at everything, the cheap first; what costs LM calls only while nothing is hopeless.

    Args:
        subject: The compile; its LMs are bound.
        *others: What was looked at elsewhere.

    Raises:
        LMError: An LM does not answer at all.
        EndpointDown: An LM stopped answering.
    """
    task = subject.task
    checks = [
        check_dependencies(subject.stages),
        check_sizes(subject.stages, task.n_train, task.n_val, subject.n_dev, subject.least_dev),
        *check_thresholds(subject.stages, subject.program),
        *others,
    ]
    for look_further in (_check_lms, _check_probes):
        if not any(check.level == "hopeless" for check in checks):
            try:
                checks += look_further(subject)
            except BudgetExceeded as spent:
                checks.append(Check("budget", "hopeless", f"{spent} before the compile has begun"))
    return Preflight(tuple(checks))


def _check_lms(subject: Subject[Any]) -> list[Check]:
    return [check_lm(what, lm, predictor) for what, lm, predictor in subject.asked]


def _check_probes(subject: Subject[Any]) -> list[Check]:
    """Run cases, and conclude from them how far there is to go and what the way will cost."""
    trace: list[tuple[Any, Any, Any]] = []
    with dspy.context(trace=trace):
        runs = probe(subject.run, subject.cases, subject.n_probes)
    if not runs:
        return [Check("probe", "note", "no case was run, so headroom and cost are not known")]
    teaching, who = _runs_of_the_teacher(subject, runs)
    checks = [check_headroom(runs, subject.who, is_all=not subject.starts_from_demos)]
    stages = [] if subject.starts_from_demos else subject.stages
    checks.append(check_bootstrap(teaching, len(subject.cases), stages, who))
    checks += [check_decided(runs, subject.task.n_train)] if _FITS_THRESHOLDS in subject.stages else []
    if not any(one.usage.cached_calls for one in runs):  # else this was asked before
        pairs = repeat_judgements(subject.program, trace, subject.lms.compiling.decision)
        checks += [check_agreement(pairs)] if pairs else []
    return [*checks, *_check_spending(subject, runs, teaching)]


def _runs_of_the_teacher(subject: Subject[Any], runs: Sequence[ProbeRun]) -> tuple[Sequence[ProbeRun], str]:
    if subject.lms.teacher is None:
        return runs, subject.who
    with dspy.context(lm=subject.lms.teacher, decision_lm=subject.lms.teacher, trace=[]):
        taught = probe(subject.run, subject.cases, 1, stop=lambda seen: any(one.passed for one in seen))
    return taught, subject.lms.teacher.label


def _check_spending(subject: Subject[Any], runs: Sequence[ProbeRun], teaching: Sequence[ProbeRun]) -> list[Check]:
    task, cost = subject.task, mean_cost(runs)
    pass_rate = sum(one.passed for one in teaching) / len(teaching)
    plan = plan_compile(subject.stages, task, pass_rate)
    measured = estimate_runs(*subject.n_measured, cost, task, subject.n_threads)
    measuring = Check("measuring", "ok", measured.say())
    if plan is None:
        return [
            Check("compile", "note", f"how often {' and '.join(subject.stages)} runs the program is not known"),
            measuring,
        ]
    estimate = estimate_compile(plan, cost, task, subject.n_threads)
    is_priced = bool(cost.cost_usd) or all(lm.label.startswith("local:") for _, lm, _ in subject.asked)
    return [check_cost(plan, estimate, cost, subject.limits, is_priced=is_priced), measuring]


def check_lm(what: str, lm: MeteredLM, predictor: dspy.Predict) -> Check:
    """Check that an LM gives the structured output of a predictor.

    Raises:
        LMError: The LM does not answer at all.
    """
    unreadable = ask_once(lm, predictor)
    if unreadable is None:
        return Check(what, "ok", f"{lm.label} gives the structured output that is asked for")
    fields = ", ".join(predictor.signature.output_fields)
    return Check(what, "hopeless", f"{lm.label} gives no JSON with {fields}, but: {unreadable[:80]}")


def check_headroom(runs: Sequence[ProbeRun], who: str = "the seed program", *, is_all: bool = True) -> Check:
    """Check that there is something to win; `is_all` tells that nothing is won yet, as by step demos."""
    n_passed = sum(one.passed for one in runs)
    text = f"{who} passes {n_passed} of {len(runs)} train cases"
    if n_passed < len(runs):
        return Check("headroom", "ok", text)
    if not is_all:
        return Check(
            "headroom", "doubt", f"{text}: little is left to win; what the demos brought shows on the dev cases"
        )
    if len(runs) < MOST_PROBED:
        return Check("headroom", "doubt", f"{text}: little to win")
    causes = (
        "the cases are too easy: add some that fail",
        "the gold accepts too much: make answers and gold ids more exact",
        "the seed program is good enough: use it as it is",
    )
    return Check("headroom", "hopeless", f"{text}: nothing to win", causes)


def check_bootstrap(runs: Sequence[ProbeRun], n_train: int, stages: Iterable[str], who: str) -> Check:
    """Check that some run by `who` passes at all: only such runs become demos, and none may be all there is."""
    n_passed = sum(one.passed for one in runs)
    if n_passed:
        return Check("demos", "ok", f"{n_passed} of {len(runs)} runs by {who} may become demos")
    text = f"no run of {len(runs)} by {who} is good enough to become a demo"
    is_certain = len(runs) >= min(MOST_PROBED, n_train)
    level: Level = "hopeless" if is_certain and _BOOTSTRAPS.intersection(stages) else "doubt"
    return Check("demos", level, text, _explain_failures(runs))


def check_decided(runs: Sequence[ProbeRun], n_train: int) -> Check:
    """Check that enough runs come to a decision for its threshold to be fitted on them."""
    n_decided = sum(one.is_decided for one in runs)
    expected = n_decided / len(runs) * n_train
    text = f"{n_decided} of {len(runs)} runs came to a decision with a threshold"
    if expected >= _TELLING_DECISIONS:
        return Check("decisions", "ok", f"{text}: about {expected:.0f} of {n_train} train cases to fit it on")
    few = f"about {expected:.0f} of {n_train} train cases to fit it on: too few to trust"
    return Check("decisions", "doubt", f"{text}: {few if n_decided else 'nothing to fit, rules settle the answers'}")


def _explain_failures(runs: Sequence[ProbeRun]) -> tuple[str, ...]:
    """Return the three likely causes of failing everywhere, the one that most cases speak for first."""
    n_unread = sum(one.usage.parse_failures for one in runs)
    failed = {cause: [one for one in runs if _CAUSES.get(one.outcome, "lm") == cause] for cause in _ADVICE}
    causes = []
    for cause in sorted(_ADVICE, key=lambda cause: -len(failed[cause])):
        facts = [f"{len(failed[cause])} of {len(runs)} cases"]
        facts += [f"{n_unread} unreadable replies"] if cause == "lm" and n_unread else []
        facts += [f"such as {one.shown}" for one in failed[cause][:1] if one.shown]
        causes.append(f"{_ADVICE[cause]} – {', '.join(facts)}")
    return tuple(causes)


def check_agreement(pairs: Sequence[tuple[str, str]]) -> Check:
    """Check that the judge says the same of the same passages twice."""
    n_same = sum(first == second for first, second in pairs)
    text = f"{n_same} of {len(pairs)} verdicts were the same when asked again"
    if n_same == len(pairs):
        return Check("judge", "ok", text)
    return Check("judge", "doubt", f"{text}: scores will vary by themselves, so trust no small gain")


def check_cost(plan: Plan, estimate: Estimate, cost: Cost, limits: Limits, *, is_priced: bool = True) -> Check:
    """Check what the compile is expected to cost against its budget."""
    text = estimate.say()
    amounts = [
        ("LM calls", limits.max_lm_calls, estimate.lm_calls, cost.lm_calls),
        ("dollars", limits.max_cost, estimate.cost_usd, cost.cost_usd),
        ("minutes", limits.max_minutes, _in_minutes(estimate.seconds), (cost.seconds or 0) / 60),
    ]
    doubts = []
    if limits.max_cost is not None and not is_priced:
        doubts.append("no price is known for an LM of this compile, so --max-cost can't hold")
    for unit, limit, expected, of_a_run in amounts:
        if limit is None or expected is None:
            continue
        if least := _too_little(limit, plan.n_least * of_a_run):
            return Check(
                "compile", "hopeless", f"{text}; {limit:g} {unit} end it before there is anything to keep, {least}"
            )
        if limit < expected[0]:
            doubts.append(f"{limit:g} {unit} are about {limit / expected[0]:.0%} of that, the best until then is kept")
    return Check("compile", "doubt" if doubts else "ok", "; ".join([text, *doubts]))


def _in_minutes(seconds: tuple[float, float] | None) -> tuple[float, float] | None:
    return (seconds[0] / 60, seconds[1] / 60) if seconds else None


def _too_little(limit: float, least: float) -> str:
    return f"which takes about {least:,.1f}" if limit < least else ""
