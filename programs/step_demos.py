"""Demos of single steps, made from gold evidence: the real program runs on the real index, the gold in its LM's place.

A predictor that is called several times in a run gets one demo a run from DSPy's optimizers, and only from runs that
came out right, so a judge hardly ever sees what insufficient evidence looks like. Here every call of a run is written
down with the inputs that the program itself formatted and the output that the gold evidence calls for. No LM is called;
the same index and cases give the same demos.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from programs.decisions import leave_out
from programs.gold_guide import GoldLike, Guide, NoGuidance, Step
from programs.rag import NaiveRAG
from programs.rules import has_number, is_chinese
from programs.shortening import shorten
from retrievers.records import Hit

Demos = Mapping[str, Sequence[dspy.Example]]
Kind = tuple[str, str]


class StepDemoError(ValueError):
    """The program has a predictor whose outputs the gold guide does not fill."""


@dataclass(frozen=True, slots=True)
class GuidedCase:
    """One train case: the example an optimizer sees, and the gold behind it."""

    example: dspy.Example
    gold: GoldLike


def build_step_demos(
    program: NaiveRAG,
    cases: Iterable[GuidedCase],
    accept: Callable[[dspy.Example, dspy.Prediction], bool],
    is_allowed: Callable[[Sequence[str]], bool] = lambda texts: True,
) -> dict[str, list[dspy.Example]]:
    """Make demos for every predictor of `program` that gold evidence says something about.

    Args:
        program: Any program; it is not changed.
        cases: Train cases. A follow-up is left out: the gold does not say how it stands alone.
        accept: Whether the run that was guided by the gold came out right; its steps are demos only then.
        is_allowed: Whether a demo with these texts may be shown; keeps out what cases held out for measuring hold.

    Returns:
        Predictor → demos; of one case one demo a predictor and kind of output. Those whose output can be seen from
        their inputs go first, of these the short ones, since every call pays for the tokens of its demos.

    Raises:
        StepDemoError: The program's predictors are not those the guide knows.
    """
    demos: dict[str, list[tuple[bool, dspy.Example]]] = {name: [] for name, _ in program.named_predictors()}
    for case in cases:
        if case.example.get("history"):
            continue
        kinds = set()
        for step in _guided_run(program, case, accept):
            demo = _demo(program, step, case.example)
            kind = (step.predictor, _kind(demo))
            if kind not in kinds and is_allowed([str(value) for value in demo.values()]):
                kinds.add(kind)
                demos[step.predictor].append((not step.clear, demo))
    ranked = {name: sorted(each, key=lambda one: (one[0], _length(one[1]))) for name, each in demos.items() if each}
    return {name: [demo for _, demo in each] for name, each in ranked.items()}


def choose_demos(demos: Sequence[dspy.Example], n: int, seed: int | None = None) -> list[dspy.Example]:
    """Pick `n` demos so that kinds of output (verdicts, forms of answers, plan sizes, tools) and languages take turns.

    Frequent kinds come first in the choice and stand last in the prompt, next to the question, since a small LM leans
    on what it read last. Within a kind demos keep their order; with a seed they are shuffled.

    Source: Zhao et al. 2021, Calibrate Before Use (the recency bias of few-shot prompts).
    """
    order = list(demos)
    if seed is not None:
        random.Random(seed).shuffle(order)
    groups: dict[tuple[Kind, bool], list[dspy.Example]] = defaultdict(list)
    for demo in order:
        groups[_kind(demo), _is_chinese(demo)].append(demo)
    queues = [groups[key] for key in _taking_turns(groups)]
    turns = [(turn, queue[place]) for place in range(n) for turn, queue in enumerate(queues) if place < len(queue)]
    return [demo for _, demo in sorted(turns[:n], key=lambda one: -one[0])]


def with_demos(program: NaiveRAG, demos: Demos, n: int) -> NaiveRAG:
    """Copy a program and give every predictor the `n` demos that `choose_demos` picks for it."""
    copy: NaiveRAG = program.deepcopy()
    for name, predictor in copy.named_predictors():
        predictor.demos = choose_demos(demos.get(name, ()), n)
    return copy


@dataclass(frozen=True, slots=True)
class _Recorded:
    guide: Guide
    tool: str

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        return self.guide.search(self.tool, query, k, filters)


def _guided_run(
    program: NaiveRAG, case: GuidedCase, accept: Callable[[dspy.Example, dspy.Prediction], bool]
) -> list[Step]:
    """Run a copy of the program with the gold in place of its predictors; no step unless the run comes out right."""
    guide = Guide(case.gold, case.example.question, program.retrievers, program.bounds)
    guided = program.deepcopy()
    guided.retrievers = {tool: _Recorded(guide, tool) for tool in program.retrievers}
    for name, predictor in guided.named_predictors():
        if predictor.fields:  # the answer is the gold one: nobody need be asked whether it holds
            leave_out(predictor)
        else:
            setattr(guided, name, _stand_in(name, predictor, guide))
    try:
        prediction = guided(question=case.example.question)
    except NoGuidance:
        return []
    return [step for step in guide.steps if step.certain] if accept(case.example, prediction) else []


def _stand_in(name: str, predictor: Any, guide: Guide) -> Callable[..., dspy.Prediction]:
    answer = guide.answer_for(name)

    def call(**inputs: Any) -> dspy.Prediction:
        outputs = answer(**inputs)
        if unfilled := set(predictor.signature.output_fields) - set(outputs):
            raise StepDemoError(f"predictor {name}: the gold says nothing about its output {', '.join(unfilled)}")
        return dspy.Prediction(**outputs)

    return call


def _demo(program: NaiveRAG, step: Step, example: dspy.Example) -> dspy.Example:
    """Turn a step into a demo that bears the id of its train case, its passages cut to what the output rests on."""
    inputs, outputs = dict(step.inputs), dict(step.outputs)
    if "passages" in inputs:
        inputs["passages"], numbers = shorten(step.shown, step.quotes, example.question)
        if "citations" in outputs:
            outputs["citations"] = [numbers[number] for number in outputs["citations"]]
    fields = getattr(program, step.predictor).signature.fields
    shown = {name: value for name, value in (inputs | outputs).items() if name in fields}
    return dspy.Example(augmented=True, **shown, from_case=example.id)


def _kind(demo: dspy.Example) -> Kind:
    """Name what a demo shows, and whether in a special way: a verdict, a form of answer, a tool, how many searches."""
    if verdict := demo.get("verdict"):
        return str(verdict), "a part" if verdict == "insufficient" and demo.get("quotes") else ""
    if "answer" in demo:
        several = len(demo.get("citations") or ()) > 1
        return "several" if several else "number" if has_number(str(demo.answer)) else "words", ""
    return str(demo.get("tool") or len(demo.get("steps") or ())), ""


def _is_chinese(demo: dspy.Example) -> bool:
    return is_chinese(str(demo.get("question", "")))


def _length(demo: dspy.Example) -> int:
    return sum(len(str(value)) for value in demo.values())


def _taking_turns(groups: Mapping[tuple[Kind, bool], Sequence[dspy.Example]]) -> list[tuple[Kind, bool]]:
    """Order kinds and languages so that neighbours differ in both: sufficient en, insufficient zh, conflict en."""
    size: dict[str, int] = defaultdict(int)
    for ((name, _), _), each in groups.items():
        size[name] += len(each)
    kinds = sorted({kind for kind, _ in groups}, key=lambda kind: (kind[1], -size[kind[0]], kind))
    wanted = [(kind, place % 2 == 1) for place, kind in enumerate(kinds)]
    first = [(kind, zh if (kind, zh) in groups else not zh) for kind, zh in wanted]
    return [*first, *(other for kind, zh in first if (other := (kind, not zh)) in groups)]
