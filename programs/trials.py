"""Watches an optimizer at work: every program it scores is a trial, the best is kept, progress is told."""

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from programs.budget import Budget
from programs.export import render_prompts
from programs.journal import Journal, Trial
from programs.progress import in_minutes
from programs.rag import NaiveRAG


@dataclass(frozen=True, slots=True)
class Standing:
    """How an optimizer stands after a trial; `place` counts in its stage, of `n_trials` if that is known."""

    trial: Trial
    place: int
    n_trials: int | None
    best_score: float
    seconds_left: float | None

    def line(self) -> str:
        """Tell it in one line: number, score, best score, spend, time left."""
        trial, of = self.trial, f"/{self.n_trials}" if self.n_trials else ""
        parts = [f"{trial.stage} trial {self.place}{of}", f"score {trial.score:.3f}", f"best {self.best_score:.3f}"]
        parts.append(f"{trial.lm_calls} LM calls")
        if trial.cost_usd:
            parts.append(f"${trial.cost_usd:.2f}")
        if (left := self.seconds_left) is not None:
            parts.append(f"about {in_minutes(left)} left")
        return " · ".join(parts)


class Watch(BaseCallback):
    """Sees every evaluation of an optimizer as a DSPy callback, on any thread.

    Keeps the best program of the stage that is running, for when the budget ends it; writes trials to the journal.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        journal: Journal | None = None,
        tell: Callable[[Standing], None] = lambda standing: None,
        cost_usd: Callable[[], float] = lambda: 0.0,
        log: Callable[[Trial, NaiveRAG], None] = lambda trial, program: None,
    ) -> None:
        """Watch for a compile.

        Args:
            budget: Counts the calls that trials are recorded with.
            journal: Where trials are put down.
            tell: Called after every trial.
            cost_usd: Tells what the compile has cost so far.
            log: Called after every trial with the program that was scored.
        """
        self.budget = budget or Budget()
        self.best: NaiveRAG | None = None
        self.trials: list[Trial] = []
        self._journal = journal
        self._tell = tell
        self._cost_usd = cost_usd
        self._log = log
        self._lock = threading.RLock()
        self._running: dict[str, Any] = {}
        self.begin("", [])

    def begin(
        self,
        stage: str,
        scored_on: Sequence[dspy.Example],
        n_trials: int | None = None,
        metric: Callable[..., Any] | None = None,
        n_runs: int = 0,
    ) -> None:
        """Watch a new stage: evaluations on all of `scored_on` are its trials.

        With a `metric`, a program counts as scored after `n_runs` runs: for an optimizer that evaluates without
        DSPy's `Evaluate`.
        """
        self.best, self._best_score = None, -1.0
        self._stage, self._n_trials, self._place = stage, n_trials, 0
        self._began_at, self._calls_before = self.budget.seconds, self.budget.n_calls
        self._scored_on = {example.id: example for example in scored_on}
        self._metric, self._n_runs = metric, n_runs
        self._scores: dict[str, list[float]] = defaultdict(list)

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note which program is being scored, if it is on all cases."""
        cases = inputs.get("devset") or instance.devset
        if isinstance(inputs["program"], NaiveRAG) and {case.id for case in cases} == set(self._scored_on):
            self._running[call_id] = inputs["program"]

    def on_evaluate_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Take a score for a trial."""
        program = self._running.pop(call_id, None)
        if program is not None and outputs is not None:
            self.record(program, outputs.score / 100, len(self._scored_on))

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note a run of a program that is scored run by run; one at another temperature is an exploration."""
        if self._metric and isinstance(instance, NaiveRAG) and not any(one.lm for one in instance.predictors()):
            question = inputs["kwargs"].get("question")
            example = next((one for one in self._scored_on.values() if one.question == question), None)
            self._running[call_id] = (instance, example)

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Score a run; enough of them are a trial."""
        program, example = self._running.pop(call_id, (None, None))
        is_over = exception is not None and not isinstance(exception, Exception)  # the budget ended it: no score
        if example is None or self._metric is None or is_over:
            return
        score = float(self._metric(example, outputs)) if outputs is not None else 0.0
        with self._lock:
            scores = self._scores[name_of(program)]
            scores.append(score)
            if len(scores) == self._n_runs:
                self.record(program, sum(scores) / len(scores), len(scores))

    def record(self, program: NaiveRAG, score: float, n_cases: int) -> None:
        """Put down a trial, and keep the program if none of this stage scored better before it."""
        with self._lock:
            is_best = score > self._best_score
            if is_best:
                self.best, self._best_score = program.deepcopy(), score
            number, spent = len(self.trials) + 1, round(self._cost_usd(), 6)
            trial = Trial(
                number, self._stage, round(score, 6), n_cases, name_of(program), is_best, self.budget.n_calls, spent
            )
            self.trials.append(trial)
            self._place += 1
            if self._journal:
                self._journal.add(trial)
            self._log(trial, program)
            self._tell(Standing(trial, self._place, self._n_trials, self._best_score, self._seconds_left()))

    def _seconds_left(self) -> float | None:
        """Estimate the time to the end of the stage or of the budget of calls, whichever comes first."""
        seconds, calls = self.budget.seconds - self._began_at, self.budget.n_calls - self._calls_before
        left = [seconds / self._place * max(0, self._n_trials - self._place)] if self._n_trials else []
        if self.budget.max_calls is not None and calls:
            left.append(seconds / calls * (self.budget.max_calls - self.budget.n_calls))
        return min(left, default=None)


def name_of(program: dspy.Module) -> str:
    """Name a program by a hash of its prompts, in which its thresholds stand."""
    return hashlib.sha256(render_prompts(program).encode()).hexdigest()[:12]
