"""Drop demos that do not pay for their tokens: leave one out, score, and leave it out for good if nothing is lost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy

from programs.changes import estimate_tokens
from programs.meter import BudgetExceeded
from programs.rag import NaiveRAG

_SAME = 1e-9  # two means of the same scores


@dataclass(frozen=True, slots=True)
class Dropped:
    """A demo that was taken out: its place in the prompt before, from 1, and its estimated tokens."""

    predictor: str
    number: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """A program without the demos that did not pay, and its score before and after; None if the budget came first."""

    program: NaiveRAG
    dropped: tuple[Dropped, ...]
    n_tried: int
    score_before: float | None = None
    score_after: float | None = None
    stopped_at_budget: bool = False

    def say(self) -> str:
        """Say it in one line."""
        end = "; budget reached, the other demos stay untried" if self.stopped_at_budget else ""
        if self.score_before is None or self.score_after is None:
            return f"pruning: no demo was tried{end}"
        n_tokens = sum(one.n_tokens for one in self.dropped)
        scores = f"score {self.score_before:.3f} → {self.score_after:.3f}"
        return f"pruning: {len(self.dropped)} of {self.n_tried} demos dropped, ≈ {n_tokens:,} tokens; {scores}{end}"


def prune_demos(program: NaiveRAG, score: Callable[[NaiveRAG], float], min_gain: float = 0.0) -> Pruned:
    """Take demos out one by one, the longest first, and leave each out for good unless the score falls without it.

    The demos of a predictor that did not run are left alone: nothing says that they are not needed. The same program,
    score and LM answers give the same result; when a budget ends it, what was decided until then stands.

    Args:
        program: A compiled program; it is not changed.
        score: Runs a program over cases and returns its mean score. No demo should come from these cases, or it would
            pay by holding their answers.
        min_gain: What a demo must add to the mean score to stay; the score has to fall by more than this without it.
    """
    best: NaiveRAG = program.deepcopy()
    trace: list[tuple[Any, Any, Any]] = []
    dropped: list[Dropped] = []
    n_tried = 0
    before = now = None
    try:
        with dspy.context(trace=trace):
            before = now = score(best)
        for name, place, demo in _longest_first(best, trace):
            shorter = _without(best, name, demo)
            value = score(shorter)
            n_tried += 1
            if value >= now - min_gain - _SAME:
                best, now = shorter, value
                dropped.append(Dropped(name, place + 1, _length(demo)))
    except BudgetExceeded:
        return Pruned(best, tuple(dropped), n_tried, before, now, stopped_at_budget=True)
    return Pruned(best, tuple(dropped), n_tried, before, now)


def _longest_first(program: NaiveRAG, trace: list[tuple[Any, Any, Any]]) -> list[tuple[str, int, Any]]:
    ran = {id(predictor) for predictor, _, _ in trace}
    demos = [
        (name, place, demo)
        for name, predictor in sorted(program.named_predictors())
        if id(predictor) in ran
        for place, demo in enumerate(predictor.demos)
    ]
    return sorted(demos, key=lambda one: -_length(one[2]))


def _without(program: NaiveRAG, name: str, demo: Any) -> NaiveRAG:
    shorter: NaiveRAG = program.deepcopy()
    predictor = dict(shorter.named_predictors())[name]
    place = predictor.demos.index(demo)
    predictor.demos = [*predictor.demos[:place], *predictor.demos[place + 1 :]]
    return shorter


def _length(demo: Any) -> int:
    return estimate_tokens("\n".join(str(value) for value in dict(demo).values()))
