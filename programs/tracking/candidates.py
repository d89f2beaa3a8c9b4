"""Watches an optimizer: every program that it scores becomes a trial of the run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from programs.tracking.runs import TrackedRun, prompt_text


class Candidates(BaseCallback):
    """A DSPy callback that sees every evaluation of an optimizer, whichever it is."""

    def __init__(self, tracked: TrackedRun, n_val: int) -> None:
        """Log to `tracked`; a score over `n_val` cases is one over all."""
        self._tracked = tracked
        self._n_val = n_val
        self._running: dict[str, tuple[Any, int, float]] = {}
        self._n_trials = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the evaluations of this block."""
        with dspy.context(callbacks=[*dspy.settings.callbacks, self]):
            yield

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note which program is being scored, on how many cases."""
        cases = inputs.get("devset") or instance.devset
        self._running[call_id] = (inputs["program"], len(cases), time.monotonic())

    def on_evaluate_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Log the trial; one that was broken off has no score."""
        program, n_cases, began = self._running.pop(call_id)
        if outputs is None:
            return
        self._n_trials += 1
        self._tracked.log_trial(
            self._n_trials,
            outputs.score / 100,
            is_full=n_cases >= self._n_val,
            n_cases=n_cases,
            seconds=round(time.monotonic() - began, 3),
            n_demos={name: len(one.demos) for name, one in program.named_predictors()},
            prompts={name: prompt_text(one) for name, one in program.named_predictors()},
        )
