"""Typed decisions: yes or no as a probability, read from the next token. Only this file knows dspy.experimental."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import dspy
from dspy.experimental import Noul, ReAnchor
from dspy.lm15 import Config, Message, Request
from dspy.utils.exceptions import LMError

from programs.lms import MeteredLM

Program = TypeVar("Program", bound=dspy.Module)

_N_TOP = 20  # as many alternatives as OpenAI gives
_ENDS = (",", ".", " ", "\n")  # what may follow a yes; else the reply would count as cut off
_YES, _NO = ("yes", "是", "true"), ("no", "否", "不", "false")


class UndecidedError(ValueError):
    """The next token is neither of the options."""


class NothingToFitError(ValueError):
    """A program without a decision that has a threshold."""


def make_decider(signature: type[dspy.Signature], threshold: float) -> dspy.Predict:
    """Build a predictor whose outputs of type `bool` are decided by `P(yes) >= threshold`.

    The thresholds are part of its state (`fields`): saved with the program, and what `ReAnchor` fits.
    """
    names = [name for name, info in signature.output_fields.items() if info.annotation is bool]
    for name in names:
        signature = signature.with_updated_fields(name, type_=Noul)
    decider = dspy.Predict(signature)
    decider.fields = {name: {"threshold": threshold} for name in names}
    return decider


def threshold_of(decider: dspy.Predict, output: str) -> float:
    """Return the probability from which on an output is a yes."""
    return float(decider.fields[output]["threshold"])


def thresholds_of(program: dspy.Module) -> dict[str, float]:
    """Return the threshold of every decision of a program, by `predictor.output`."""
    return {
        f"{name}.{output}": float(state["threshold"])
        for name, predictor in sorted(program.named_predictors())
        for output, state in predictor.fields.items()
    }


def leave_out(decider: dspy.Predict) -> None:
    """Have a program go on without a decider, as at a threshold of 0, where any probability is a yes."""
    for state in decider.fields.values():
        state["threshold"] = 0.0


def decide(decider: dspy.Predict, **inputs: Any) -> dspy.Prediction:
    """Ask a decider: from the next token where the bound LM reports its options, else by a probability it writes.

    Raises:
        UndecidedError: The LM would answer neither yes nor no.
        AdapterParseError: What it wrote can't be read.
    """
    lm = dspy.settings.get("decision_lm") or dspy.settings.lm
    with dspy.context(lm=OptionReader(lm) if getattr(lm, "reports_options", False) else lm):
        return decider(**inputs)


class OptionReader:
    """An LM as DSPy's decision protocol wants it: one forward pass a question, and a token more for the reply to end.

    Inputs come before the question, so that several questions on the same inputs share what a server keeps cached.
    """

    supports_decision_requests = True

    def __init__(self, lm: MeteredLM) -> None:
        """Read from `lm`, which must report the probabilities of the next token."""
        self.lm = lm
        self.cache = lm.cache

    def __call__(self, state: Mapping[str, Any], questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Answer every question with `{"noul": P(yes)}`.

        Raises:
            UndecidedError: The LM would answer neither yes nor no.
            LMError: The call failed.
        """
        return {name: {"noul": self._read(state, str(one["instructions"]), name)} for name, one in questions.items()}

    def _read(self, state: Mapping[str, Any], question: str, name: str) -> float:
        messages: list[Message] = []
        for demo in state.get("demos", ()):
            if name in demo:
                said = "yes" if _is_yes(demo[name]) else "no"
                messages += [Message.user(_ask(state["inputs"], demo, question)), Message.assistant(said)]
        messages.append(Message.user(_ask(state["inputs"], state["inputs"], question)))
        config = Config(max_tokens=2, temperature=0.0, logprobs=_N_TOP, stop=_ENDS)
        request = Request(model=self.lm.model, system=state["instructions"], messages=tuple(messages), config=config)
        return probability_of_yes(self.lm(request))


def _ask(names: Mapping[str, Any], values: Mapping[str, Any], question: str) -> str:
    lines = [
        f"{name}:\n{value}" if "\n" in (value := str(values.get(name, ""))) else f"{name}: {value}" for name in names
    ]
    return "\n".join([*lines, f"{question} Reply yes or no."])


def _is_yes(value: Any) -> bool:
    return bool(value.get("value")) if isinstance(value, Mapping) else bool(value)


def probability_of_yes(response: Any) -> float:
    """Return P(yes) ÷ P(yes or no) of the first token of a response.

    Raises:
        UndecidedError: Neither is among the likeliest tokens, or the endpoint reports no probabilities.
    """
    first = (response.logprobs or (None,))[0]
    if first is None:
        raise UndecidedError("the endpoint reports no token probabilities")
    tokens = {one.token: one.logprob for one in (first, *first.top)}
    yes, no = (
        sum(math.exp(logprob) for token, logprob in tokens.items() if _says(token, words)) for words in (_YES, _NO)
    )
    if not yes + no:
        raise UndecidedError(f"the LM answers neither yes nor no but {first.token!r}")
    return yes / (yes + no)


def _says(token: str, words: tuple[str, ...]) -> bool:
    return token.strip().strip('"').casefold() in words


def why_nothing_to_fit(program: dspy.Module) -> str | None:
    """Say why a program has no threshold to fit, and what to do; None if it has one."""
    thresholds = thresholds_of(program)
    if any(thresholds.values()):
        return None
    if not thresholds:
        return (
            f"{type(program).__name__} decides nothing at a threshold that could be fitted; "
            "use --program agentic, or another --optimizer"
        )
    return (
        f"{' and '.join(thresholds)} has a threshold of 0, so it is left out and never asked; "
        "start from a program with one above 0, or use another --optimizer"
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of fitting the threshold of `decision` (`check.supported`).

    `n_read` probabilities were read in a run over all cases; the scores are means over these cases. `is_refused` tells
    that another threshold scored better on all of them, but not on those that it was not chosen on.
    """

    decision: str
    before: float
    after: float
    n_read: int
    score_before: float
    score_after: float
    is_refused: bool = False

    def say(self) -> str:
        """Say it in one line."""
        if self.after != self.before:
            why = f"from {self.n_read} decisions, score {self.score_before:.3f} → {self.score_after:.3f}"
            return f"{self.decision}: threshold {self.before:g} → {self.after:g}: {why}"
        if not self.n_read:
            why = "no case came to this decision"
        elif self.is_refused:
            why = "another scored better on all cases, but not on those that it was not chosen on"
        else:
            why = f"from {self.n_read} decisions, none scored better than {self.score_before:.3f}"
        return f"{self.decision}: threshold {self.before:g} stays: {why}"


def fit_thresholds(
    program: Program, trainset: Sequence[dspy.Example], metric: Callable[..., Any], n_threads: int = 1
) -> tuple[Program, tuple[Fit, ...]]:
    """Fit the thresholds of a copy of `program` to the metric, with the LMs that are bound: DSPy's ReAnchor.

    One run over all cases gives the probabilities; every threshold between two of them is then tried in another run,
    whose requests are answered from the LM cache, but for those that a decision which now turns leads to.

    Args:
        program: It is not changed.
        trainset: What it is fitted on.
        metric: `(example, prediction)` → score; a case that the LM refuses scores 0.
        n_threads: How many cases run at the same time.

    Raises:
        NothingToFitError: No decision has a threshold above 0.
        LMError: The LM refused more cases than `dspy.settings.max_errors`.
    """
    if why := why_nothing_to_fit(program):
        raise NothingToFitError(why)
    runs = _Runs(program.deepcopy(), {}, [])

    def score(example: dspy.Example, prediction: Any) -> float:
        return 0.0 if prediction is None else float(metric(example, prediction))

    # Its check for a cache looks at the LM that is bound while it is set up. Ours for decisions is bound by `decide`
    # in each call; both are cached by `bind`, and a budget counts what is new.
    optimizer = ReAnchor(score, num_threads=n_threads, require_cache=False)
    try:
        fitted: Program = optimizer.compile(runs, trainset=list(trainset)).program
    except Exception:
        if runs.fatal:  # ReAnchor only says that it was cancelled
            raise runs.fatal[0] from None
        raise
    before = thresholds_of(program)
    return fitted, tuple(_read_fit(row, before) for row in optimizer.report["fitted"])


class _Runs:
    """A program as ReAnchor is to see it.

    It would take any output of the type `Literal` or `bool` for a decision, and ask for a probability where a verdict
    is asked for; so only those that are left in are shown. An error in a run would end it; here a case that the LM
    refuses is a run without a prediction, as in DSPy's `Evaluate`.
    """

    def __init__(self, program: dspy.Module, refused: dict[str, LMError], fatal: list[Exception]) -> None:
        self.program, self.refused, self.fatal = program, refused, fatal

    def deepcopy(self) -> "_Runs":
        return _Runs(self.program.deepcopy(), self.refused, self.fatal)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        for name, predictor in self.program.named_predictors():
            if any(state["threshold"] for state in predictor.fields.values()):
                yield name, predictor

    def __call__(self, **inputs: Any) -> Any:
        try:
            return self.program(**inputs)
        except Exception as error:
            if isinstance(error, LMError):
                self.refused[repr(inputs)] = error
                if len(self.refused) <= dspy.settings.max_errors:
                    return None
            self.fatal.append(error)
            raise


def _read_fit(row: Mapping[str, Any], before: Mapping[str, float]) -> Fit:
    decision = f"{row['predictor']}.{row['field']}"
    checked = row["fold_check"]
    return Fit(
        decision=decision,
        before=before[decision],
        after=row.get("value", before[decision]),
        n_read=row["observed"]["calls"],
        score_before=row["train_score_original"],
        score_after=row["train_score"],
        is_refused=bool(checked["failed"] or checked["passed"]) and "value" not in row,
    )
