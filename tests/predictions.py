"""Hand-made predictions for the tests of metrics and outcomes: what a program returns, without a program."""

from dataclasses import dataclass
from typing import Any

from programs.meter import Usage
from trainsets.cases import Case
from trainsets.results import CaseResult


@dataclass(frozen=True)
class Passage:
    passage_id: str
    text: str = ""
    title: str = ""

    @property
    def doc_id(self) -> str:
        return self.passage_id.rpartition("#")[0]


@dataclass(frozen=True)
class Hit:
    passage: Passage
    score: float = 1.0
    rank: int = 1


@dataclass(frozen=True)
class Hop:
    hits: tuple[Hit, ...] = ()
    kept: tuple[str, ...] = ()
    verdict: str | None = None
    judged: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    decided_by: str = "lm"
    goal: str = ""
    tool: str = "hybrid"
    query: str = "q"
    filters: dict[str, object] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Prediction:
    answer: str = ""
    citations: tuple[str, ...] = ()
    abstained: bool = False
    verdict: str | None = None
    stop_reason: str = "sufficient"
    context: tuple[Hit, ...] = ()
    hops: tuple[Hop, ...] = ()
    usage: object = None


def ranking(*passage_ids: str, text: str = "") -> tuple[Hit, ...]:
    return tuple(Hit(Passage(id_, text), 1 / rank, rank) for rank, id_ in enumerate(passage_ids, start=1))


def hop(*passage_ids: str, keep: tuple[str, ...] | None = None, **fields: object) -> Hop:
    """Make a hop that keeps all its hits, and whose judge, if there is a verdict, read them all."""
    kept = passage_ids if keep is None else keep
    fields = {"judged": kept if fields.get("verdict") else ()} | fields
    return Hop(hits=ranking(*passage_ids), kept=kept, **fields)  # type: ignore[arg-type]


def numbered_case(number: int, **fields: Any) -> Case:
    """Case c3 asks `question 3`, whose answer is yes and stands in document d3."""
    facts = {"id": f"c{number}", "question": f"question {number}", "answer": ("yes",), "gold_ids": (f"d{number}",)}
    return Case(**{**facts, **fields})


def numbered_prediction(question: str = "question 0", answer: str = "yes", **fields: Any) -> Prediction:
    """What a program that is right says to the question of a numbered case."""
    number = question.rpartition(" ")[2]
    passages = ranking(f"d{number}#0", text="yes")
    facts = {"answer": answer, "citations": (f"d{number}#0",), "context": passages, "hops": (hop(f"d{number}#0"),)}
    return Prediction(**{**facts, "usage": Usage(lm_calls=2, prompt_tokens=90, completion_tokens=10), **fields})


def results_with(*scores: float | None, seconds: float = 1.0, cached: int = 0) -> list[CaseResult]:
    """Results of numbered cases with these combined scores; None is an error."""
    usage = Usage(
        lm_calls=2, cached_calls=cached, prompt_tokens=70, completion_tokens=30, cost_usd=0.5, parse_failures=1
    )
    made = numbered_prediction(usage=usage)
    return [
        CaseResult(numbered_case(n), None, {}, "errored", "ValueError: x", seconds)
        if score is None
        else CaseResult(numbered_case(n), made, {"combined": score}, "right", None, seconds)
        for n, score in enumerate(scores)
    ]
