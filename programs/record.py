"""The record of one run: hops, context, usage; and its JSON form, from which a run can be read again."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import dspy

from programs.meter import Usage
from retrievers.records import Hit, Passage
from signatures import Verdict

StopReason = Literal[
    "sufficient",
    "no_search_needed",
    "needs_clarification",
    "max_rounds",
    "repeated_query",
    "no_new_evidence",
    "budget",
    "timeout",
    "error",
]


@dataclass(frozen=True, slots=True)
class Hop:
    """One search and what was made of it.

    `hits` are all hits, best first, `relevance` a number from 0 to 1 for each (see `relevance.rate`); `kept` the ids of
    those that were new to the run. A verdict is given once a round, so it stands on the last hop of the round, with the
    ids of the passages the judge read, of those `left_out` for too little relevance, and the words it quoted;
    `decided_by` says whether a rule or the LM asked for this search. `error` is why a tool could not be asked or
    failed; `dropped` are filters that no passage met, or that the index can't answer, so it was searched without them.
    """

    goal: str
    tool: str
    query: str
    filters: Mapping[str, Any] | None
    decided_by: Literal["rule", "lm"]
    hits: tuple[Hit, ...]
    kept: tuple[str, ...]
    seconds: float
    verdict: Verdict | None = None
    judged_by: Literal["rule", "lm"] | None = None
    missing: str = ""
    quotes: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()
    error: str | None = None
    dropped: Mapping[str, Any] | None = None
    relevance: tuple[float, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def is_aside(self) -> bool:
        """Whether it was no round of its own: the same query filtered beside the plain one, or a call that failed."""
        return bool(self.filters or self.dropped or self.error)


@dataclass(frozen=True, slots=True)
class Check:
    """What was made of the answer: why it is doubtful or fails, and how sure an LM was, if it was asked."""

    outcome: Literal["holds", "computed", "doubtful", "fails"]
    reason: str = ""
    by: Literal["rule", "lm"] = "rule"
    probability: float | None = None


def make_prediction(
    *,
    question: str,
    answer: str,
    citations: tuple[str, ...],
    abstained: bool,
    stop_reason: StopReason,
    hops: tuple[Hop, ...],
    context: tuple[Hit, ...],
    usage: Usage,
    verdict: Verdict | None = None,
    error: str | None = None,
    check: Check | None = None,
) -> dspy.Prediction:
    """Build the result of a run; every value in it is immutable.

    `question` is the one that was searched for (a follow-up stands alone here), `context` the passages shown to the
    answerer, best first, and `citations` the ids of those the answer rests on.
    """
    return dspy.Prediction(
        question=question,
        answer=answer,
        citations=citations,
        abstained=abstained,
        verdict=verdict,
        stop_reason=stop_reason,
        hops=hops,
        context=context,
        usage=usage,
        error=error,
        check=check,
    )


def to_json(prediction: dspy.Prediction) -> dict[str, Any]:
    """Return a prediction as plain data; hits keep their text, so the record can be read without the index."""
    plain = {name: prediction[name] for name in prediction.keys()}
    plain["check"] = asdict(prediction.check) if prediction.check else None
    plain["usage"] = asdict(prediction.usage)
    plain["hops"] = [asdict(hop) | {"hits": [_hit_id(hit) for hit in hop.hits]} for hop in prediction.hops]
    plain["context"] = [_hit(hit) for hit in prediction.context]
    return plain


def from_json(plain: Mapping[str, Any]) -> dspy.Prediction:
    """Read a prediction again from its plain data; hits that are not in the context come without their text."""
    context = [_read_hit(hit) for hit in plain["context"]]
    shown = {hit.passage.passage_id: hit.passage for hit in context}
    hops = [
        Hop(**_frozen(hop) | {"hits": tuple(_read_hit(hit, shown) for hit in hop["hits"])}) for hop in plain["hops"]
    ]
    values = {"hops": tuple(hops), "context": tuple(context), "usage": Usage(**plain["usage"])}
    return dspy.Prediction(**_frozen(plain) | values)


def _frozen(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def _read_hit(plain: Mapping[str, Any], shown: Mapping[str, Passage] | None = None) -> Hit:
    id_ = plain["passage_id"]
    passage = (shown or {}).get(id_)
    if passage is None:
        passage = Passage(id_, id_.rpartition("#")[0], plain.get("title", ""), plain.get("text", ""))
    return Hit(passage, plain["score"], plain["rank"])


def _hit_id(hit: Hit) -> dict[str, Any]:
    return {"passage_id": hit.passage.passage_id, "score": round(hit.score, 6), "rank": hit.rank}


def _hit(hit: Hit) -> dict[str, Any]:
    return _hit_id(hit) | {"title": hit.passage.title, "text": hit.passage.text}
