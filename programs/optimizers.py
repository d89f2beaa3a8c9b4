"""DSPy's optimizers behind one call: bootstrap (BootstrapFewShot) and mipro (MIPROv2)."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dspy
from dspy.utils.callback import BaseCallback

from programs.meter import BudgetExceeded
from programs.rag import NaiveRAG

OptimizerName = Literal["bootstrap", "mipro"]
OPTIMIZERS: tuple[OptimizerName, ...] = ("bootstrap", "mipro")
Metric = Callable[[dspy.Example, dspy.Prediction, Any], float | bool]

_MAX_ERRORS = 10  # cases that an LM refuses (too long, say); one that is down ends the compile earlier
_INSTRUCTION_TOKENS = 800


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compile.

    `auto` sets the size of a mipro run unless `n_trials` does; `max_demos` bounds the demos of a predictor; a teacher
    runs the program while demos are collected.
    """

    optimizer: OptimizerName = "bootstrap"
    max_demos: int = 3
    auto: Literal["light", "medium", "heavy"] = "light"
    n_trials: int | None = None
    seed: int = 0
    n_threads: int = 1

    @property
    def label(self) -> str:
        """How tables and runs call it: the optimizer and its size."""
        if self.optimizer == "bootstrap":
            return self.optimizer
        return f"{self.optimizer} {f'{self.n_trials} trials' if self.n_trials else self.auto}"

    @property
    def effective_seed(self) -> int:
        """The seed that takes effect: MIPROv2 reads 0 as 9 (`seed or self.seed`), BootstrapFewShot always uses 0."""
        return (self.seed or 9) if self.optimizer == "mipro" else 0


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program, and whether the budget ended the compile early; then it is the best so far."""

    program: NaiveRAG
    stopped_at_budget: bool


def compile_program(
    program: NaiveRAG,
    metric: Metric,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example],
    settings: Settings,
    teacher: dspy.LM | None = None,
) -> Compiled:
    """Compile `program` with the LM that is bound.

    Args:
        program: The seed program; it is not changed.
        metric: `(example, prediction, trace)` → 0..1; with a trace, whether a run is good enough to become demos.
        trainset: Demos come from these.
        valset: mipro scores its candidates on these; bootstrap does not look at them.
        settings: How to compile.
        teacher: Runs the program while demos are collected; the bound LM if left out.

    Raises:
        EndpointDown: The LM failed several times in a row.
        LMError: It refused several train cases.
    """
    teacher_settings = {"lm": teacher, "decision_lm": teacher} if teacher else {}
    run = {"bootstrap": _bootstrap, "mipro": _mipro}[settings.optimizer]
    with contextlib.redirect_stdout(sys.stderr):  # optimizers print; stdout is for results
        return run(program, metric, list(trainset), list(valset), settings, teacher_settings)


def _bootstrap(
    program: NaiveRAG,
    metric: Metric,
    trainset: list[dspy.Example],
    valset: list[dspy.Example],
    settings: Settings,
    teacher_settings: dict[str, Any],
) -> Compiled:
    optimizer = dspy.BootstrapFewShot(
        metric=metric,
        max_bootstrapped_demos=settings.max_demos,
        max_labeled_demos=0,  # a raw gold case has no passages: as a demo it would teach answering from memory
        teacher_settings=teacher_settings,
        max_errors=_MAX_ERRORS,
    )
    try:
        return Compiled(optimizer.compile(program, trainset=trainset), stopped_at_budget=False)
    except BudgetExceeded:
        return Compiled(_with_demos_so_far(program, optimizer, settings.max_demos), stopped_at_budget=True)


def _with_demos_so_far(program: NaiveRAG, optimizer: Any, max_demos: int) -> NaiveRAG:
    best: NaiveRAG = program.reset_copy()
    traces = getattr(optimizer, "name2traces", {})
    for name, predictor in best.named_predictors():
        predictor.demos = traces.get(name, [])[:max_demos]
    return best


def _prompt_model(lm: dspy.LM) -> dspy.LM:
    """Return the LM that writes instructions: those are longer than answers, where answers are bounded at all."""
    return lm.copy(max_tokens=_INSTRUCTION_TOKENS) if lm.kwargs.get("max_tokens") else lm


class _BestSoFar(BaseCallback):
    """Keeps the program that scored best on all validation cases, for when the budget ends a mipro run early."""

    def __init__(self) -> None:
        """Nothing is scored yet."""
        self.program: NaiveRAG | None = None
        self._score = -1.0
        self._running: dict[str, NaiveRAG] = {}

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note which program is being scored on all cases."""
        if (inputs.get("callback_metadata") or {}).get("metric_key") == "eval_full":
            self._running[call_id] = inputs["program"]

    def on_evaluate_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Keep the program if none before it scored as well."""
        program = self._running.pop(call_id, None)
        if program is not None and outputs is not None and outputs.score > self._score:
            self.program, self._score = program.deepcopy(), outputs.score


def _mipro(
    program: NaiveRAG,
    metric: Metric,
    trainset: list[dspy.Example],
    valset: list[dspy.Example],
    settings: Settings,
    teacher_settings: dict[str, Any],
) -> Compiled:
    by_trials = settings.n_trials is not None
    optimizer = dspy.MIPROv2(
        metric=metric,
        prompt_model=_prompt_model(dspy.settings.lm),
        task_model=dspy.settings.lm,
        teacher_settings=teacher_settings,
        max_bootstrapped_demos=settings.max_demos,
        max_labeled_demos=0,
        auto=None if by_trials else settings.auto,
        num_candidates=min(settings.n_trials or 1, 4) if by_trials else None,
        num_threads=settings.n_threads,
        max_errors=_MAX_ERRORS,
        seed=settings.effective_seed,
    )
    best_so_far = _BestSoFar()
    try:
        with dspy.context(callbacks=[*dspy.settings.callbacks, best_so_far]):
            best = optimizer.compile(
                program,
                trainset=trainset,
                valset=valset,
                num_trials=settings.n_trials,
                seed=settings.effective_seed,
                minibatch=len(valset) > 50,
                program_aware_proposer=False,  # the source of the program would fill a small LM's context
            )
    except BudgetExceeded:
        return Compiled(best_so_far.program or program.deepcopy(), stopped_at_budget=True)
    return Compiled(best, stopped_at_budget=False)
