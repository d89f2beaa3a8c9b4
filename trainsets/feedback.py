"""What a predictor did well or badly in one run, in words, for an LM that is to rewrite its instructions."""

from collections.abc import Sequence

from trainsets.answers import falls_for_trap, is_right
from trainsets.cases import Case
from trainsets.evidence import missing_evidence
from trainsets.metrics import citation_precision, combined_score
from trainsets.prediction import HitLike, HopLike, PredictionLike, gold_found, ids_of
from trainsets.ranking import gold_of

_QUOTE_CHARS = 200


def explain(case: Case, prediction: PredictionLike | None, predictor: str) -> str:
    """Compare the record of a run with the gold, from the place of one predictor.

    Args:
        case: the gold.
        prediction: the record; None if the run failed.
        predictor: `plan`, `judge`, `rewrite` or `answer`; of another one only the outcome is told.

    Returns:
        A few sentences; the last one is the score of the whole run.
    """
    if prediction is None:
        return "The run failed before it came to an answer."
    tell = {"plan": _plan, "judge": _judge, "rewrite": _rewrite, "answer": _answer}.get(predictor)
    parts = [*(tell(case, prediction) if tell else []), *(_outcome(case, prediction) if predictor != "answer" else [])]
    return " ".join([*parts, f"Score of the whole run: {combined_score(case, prediction):.2f} of 1."])


def _plan(case: Case, prediction: PredictionLike) -> list[str]:
    first = _rounds(prediction.hops)[:1]
    asked = [_asked(hop) for hops in first for hop in hops]
    if not asked:
        return ["Nothing was searched."]
    return [f"The plan searched for {'; '.join(asked)}.", _found(case, [hop for hops in first for hop in hops])]


def _rewrite(case: Case, prediction: PredictionLike) -> list[str]:
    earlier: set[str] = set()
    told = []
    for number, hops in enumerate(_rounds(prediction.hops)):
        found = gold_found(gold_of(case), [id_ for hop in hops for id_ in ids_of(hop.hits)])
        rewritten = [hop for hop in hops if hop.decided_by == "lm"]
        if number and rewritten:
            new = f"{len(found - earlier)} new piece(s) of evidence" if found - earlier else "no new evidence"
            told.append(f"The new query {'; '.join(map(_asked, rewritten))} brought {new}.")
        earlier |= found
    return [*told, _found(case, prediction.hops)]


def _judge(case: Case, prediction: PredictionLike) -> list[str]:
    told = []
    hits: dict[str, HitLike] = {}
    for hop in prediction.hops:
        hits |= {hit.passage.passage_id: hit for hit in hop.hits}
        if hop.verdict is None:
            continue
        lacking = missing_evidence(case, [hits[id_] for id_ in hop.judged if id_ in hits])
        enough = case.answerable and not lacking
        right = (hop.verdict != "insufficient") == enough
        because = "they hold the evidence" if enough else _why_lacking(case, lacking)
        told.append(f"The verdict {hop.verdict} was {'right' if right else 'WRONG'}: of the passages read, {because}.")
    return told or ["No verdict was given."]


def _why_lacking(case: Case, lacking: Sequence[str]) -> str:
    if not case.answerable:
        return "none answers the question, and no document does"
    return f"none is {' or '.join(lacking)}"


def _answer(case: Case, prediction: PredictionLike) -> list[str]:
    told = _outcome(case, prediction)
    lacking = missing_evidence(case, prediction.context) if gold_of(case) else []
    if lacking:
        told.append(f"The passages it was given lack {', '.join(lacking)}.")
    elif gold_of(case):
        told.append("The passages it was given hold the evidence" + _evidence(case) + ".")
    if falls_for_trap(case, prediction.answer):
        told.append("It gave an answer that another document misleads to.")
    precision = citation_precision(case, prediction)
    if precision is not None and precision < 1:
        told.append("It cited passages that are no evidence.")
    return told


def _outcome(case: Case, prediction: PredictionLike) -> list[str]:
    given = "It abstained" if prediction.abstained else f"The answer was {_short(prediction.answer)!r}"
    right = is_right(case, prediction.answer, prediction.abstained) if case.answer or not case.answerable else None
    if right:
        return [f"{given}, which is right."]
    if not case.answerable:
        return [f"{given}; no document holds an answer, so it had to abstain."]
    gold = case.answer[:1] or tuple(group[0] for group in (*case.answer_groups, *case.key_points))
    return [f"{given}; expected {'; '.join(gold)!r}."] if gold else [f"{given}."]


def _found(case: Case, hops: Sequence[HopLike]) -> str:
    gold = gold_of(case)
    if not gold:
        return "There is no evidence to be found." if not case.answerable else ""
    found = gold_found(gold, [id_ for hop in hops for id_ in ids_of(hop.hits)])
    missed = [id_ for id_ in gold if id_ not in found]
    return f"That found {len(found)} of {len(gold)} documents with evidence" + (
        f" and missed {', '.join(missed)}{_evidence(case)}." if missed else "."
    )


def _evidence(case: Case) -> str:
    return f" ({'; '.join(_short(span) for span in case.gold_spans)})" if case.gold_spans else ""


def _rounds(hops: Sequence[HopLike]) -> list[list[HopLike]]:
    """Split hops after each verdict."""
    rounds: list[list[HopLike]] = [[]]
    for hop in hops:
        rounds[-1].append(hop)
        if hop.verdict is not None:
            rounds.append([])
    return [one for one in rounds if one]


def _asked(hop: HopLike) -> str:
    return f"{_short(hop.query)!r} with {hop.tool}"


def _short(text: str) -> str:
    return text if len(text) <= _QUOTE_CHARS else text[:_QUOTE_CHARS] + "…"
