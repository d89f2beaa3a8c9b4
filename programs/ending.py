"""How a run ends: with a cited answer, an abstention that says what was searched, small talk, a question back."""

from collections.abc import Sequence
from dataclasses import dataclass

import dspy

from programs import rules
from programs.prompting import SMALL_TALK, say_not_found
from programs.record import Check, StopReason, make_prediction
from programs.run import Run
from retrievers.records import Hit
from signatures import Verdict


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer before it is checked: the passages it cites, those it was written from, and why it is empty."""

    answer: str
    cited: tuple[Hit, ...]
    context: tuple[Hit, ...]
    error: str | None = None


def end_small_talk(run: Run) -> dspy.Prediction:
    """Answer a greeting or the like, for which nothing was searched."""
    text = SMALL_TALK["zh" if rules.is_chinese(run.question) else "en"]
    return end(run, "no_search_needed", None, answer=text)


def finish(
    run: Run,
    draft: Draft,
    stop_reason: StopReason,
    verdict: Verdict | None,
    citations: tuple[Hit, ...] | None = None,
    check: Check | None = None,
) -> dspy.Prediction:
    """Give out an answer, citing `citations` where a check found them; an answer that is none is an abstention."""
    if draft.error:
        return abstain(run, "error", verdict, error=draft.error)
    cited = tuple(hit.passage.passage_id for hit in (draft.cited if citations is None else citations))
    return end(run, stop_reason, verdict, answer=draft.answer, citations=cited, context=draft.context, check=check)


def abstain(
    run: Run,
    stop_reason: StopReason,
    verdict: Verdict | None,
    *,
    error: str | None = None,
    check: Check | None = None,
    known: Sequence[str] = (),
) -> dspy.Prediction:
    """Say that the documents do not tell, what was searched, and the nearest words found: those `known`."""
    text = say_not_found(run.question, run.queries, known)
    return end(run, stop_reason, verdict, answer=text, abstained=True, context=run.context(), error=error, check=check)


def end(
    run: Run,
    stop_reason: StopReason,
    verdict: Verdict | None,
    *,
    answer: str,
    citations: tuple[str, ...] = (),
    context: tuple[Hit, ...] = (),
    abstained: bool = False,
    error: str | None = None,
    check: Check | None = None,
) -> dspy.Prediction:
    """End a run with an answer of any kind, and all that is on record of it."""
    return make_prediction(
        question=run.question,
        answer=answer,
        citations=citations,
        abstained=abstained,
        verdict=verdict,
        stop_reason=stop_reason,
        hops=tuple(run.hops),
        context=context,
        usage=run.meter.taken(round(run.seconds, 3)),
        error=error,
        check=check,
    )
