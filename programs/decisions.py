"""Typed decisions: yes or no as a probability, read from the next token. Only this file knows dspy.experimental."""

import math
from collections.abc import Mapping
from typing import Any

import dspy
from dspy.experimental import Noul
from dspy.lm15 import Config, Message, Request

from programs.lms import MeteredLM

_N_TOP = 20  # as many alternatives as OpenAI gives
_ENDS = (",", ".", " ", "\n")  # what may follow a yes; else the reply would count as cut off
_YES, _NO = ("yes", "是", "true"), ("no", "否", "不", "false")


class UndecidedError(ValueError):
    """The next token is neither of the options."""


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
