"""Small trials before a compile: a few cases run, one call to every LM, the judge asked twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError

from programs.estimate import Cost
from programs.lms import MeteredLM
from programs.meter import Usage

Item = TypeVar("Item")

MOST_PROBED = 20
"""So many cases without a single pass (or a single miss) leave a pass rate below 14 % (above 86 %) at 95 %."""

_SHOWN_CHARS = 200
_PASSAGES = "<passage 1> Fuse manual\nThe fuse F3 is rated 4 A.\n</passage>"
_QUESTION = "How is the fuse F3 rated?"


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """One train case run by the seed program.

    `passed` means that the run may become a demo, `is_decided` that a decision with a threshold settled the answer.
    """

    passed: bool
    outcome: str
    usage: Usage
    seconds: float
    shown: str = ""
    is_decided: bool = False


def describe_run(
    question: str, prediction: Any, passed: bool, outcome: str, error: str | None, seconds: float
) -> ProbeRun:
    """Note what came of a run; without a prediction, `error` says why."""
    shown = f"“{question}” → “{prediction.answer if prediction is not None else error}”"
    shown = shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"
    if prediction is None:
        return ProbeRun(passed, outcome, Usage(), seconds, shown)
    is_decided = prediction.check is not None and prediction.check.by == "lm"
    return ProbeRun(passed, outcome, prediction.usage, seconds, shown, is_decided)


def _is_mixed(runs: Sequence[ProbeRun]) -> bool:
    return len({one.passed for one in runs}) == 2


def probe(
    run: Callable[[Item], ProbeRun],
    cases: Sequence[Item],
    n: int,
    most: int = MOST_PROBED,
    stop: Callable[[Sequence[ProbeRun]], bool] = _is_mixed,
) -> list[ProbeRun]:
    """Run cases one after another: `n` of them, then more until `stop` holds, `most` in all.

    By default that is until one has passed and one has not.
    """
    runs: list[ProbeRun] = []
    for case in cases[: max(n, most)] if n else []:
        if len(runs) >= n and stop(runs):
            break
        runs.append(run(case))
    return runs


def mean_cost(runs: Sequence[ProbeRun]) -> Cost:
    """Return the mean cost of a run; time only from those that no cached LM answer sped up.

    Raises:
        ValueError: No runs.
    """
    if not runs:
        raise ValueError("no runs, expected at least one")
    n = len(runs)
    timed = [one.seconds for one in runs if not one.usage.cached_calls]
    return Cost(
        lm_calls=sum(one.usage.lm_calls for one in runs) / n,
        tokens=sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in runs) / n,
        cost_usd=sum(one.usage.cost_usd for one in runs) / n,
        seconds=sum(timed) / len(timed) if timed else None,
    )


def ask_once(lm: MeteredLM, predictor: dspy.Predict) -> str | None:
    """Ask an LM once what a predictor asks, about a made-up passage, and see whether its output can be read.

    Returns:
        None if it can; else the reply that can't.

    Raises:
        LMError: The LM does not answer at all.
    """
    made_up = {"passages": _PASSAGES, "question": _QUESTION}
    inputs = {name: made_up.get(name, _QUESTION) for name in predictor.signature.input_fields}
    try:
        with dspy.context(lm=lm, trace=None):
            predictor(**inputs)
    except AdapterParseError as error:
        return str(error.lm_response).strip() or "(nothing)"
    return None


def repeat_judgements(
    program: dspy.Module, trace: Sequence[tuple[Any, Any, Any]], lm: MeteredLM, n: int = 3
) -> list[tuple[str, str]]:
    """Ask the judge again what it was asked, past the cache.

    Args:
        program: The program that ran.
        trace: What DSPy noted of its runs: predictor, inputs, output.
        lm: The LM that decides.
        n: How many judgements are asked for again.

    Returns:
        Each verdict and its repeat; nothing if the program has no judge. A repeat that can't be read is `unreadable`.
    """
    judge = getattr(program, "judge", None)
    judged = [(inputs, output.verdict) for predictor, inputs, output in trace if predictor is judge][:n]
    again = lm.copy(cache=False)
    return [(verdict, _judge_again(judge, inputs, again)) for inputs, verdict in judged]


def _judge_again(judge: Any, inputs: dict[str, Any], lm: MeteredLM) -> str:
    try:
        with dspy.context(lm=lm, trace=None):
            return str(judge(**inputs).verdict)
    except AdapterParseError:
        return "unreadable"
