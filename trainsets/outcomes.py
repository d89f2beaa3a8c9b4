"""Why a case failed: one outcome a case, by the first stage of the pipeline that lost the evidence."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from trainsets.answers import contains_answer, has_gold_answer, is_right
from trainsets.cases import Case
from trainsets.evidence import holds_answer, missing_evidence, needs_all
from trainsets.prediction import PredictionLike, doc_of, gold_found, ids_of
from trainsets.ranking import gold_of

OutcomeName = Literal[
    "right",
    "not_in_index",
    "not_retrieved",
    "ranked_too_low",
    "dropped_by_threshold",
    "dropped_by_judge",
    "stopped_early",
    "loop_exhausted",
    "wrong_with_evidence",
    "unsupported_right",
    "should_have_abstained",
    "should_not_have_abstained",
    "errored",
]
OUTCOMES: tuple[OutcomeName, ...] = get_args(OutcomeName)

# What a program notes where its LM asks for a tool that there is not, or writes a query that fails.
_MADE_UP = ("no tool ", "no answer from the query: ")
_LOOP_ENDS = ("max_rounds", "repeated_query", "no_new_evidence", "budget", "timeout")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case. `rank` is that of evidence which ranked too low; `detail` says which evidence or error."""

    name: OutcomeName
    rank: int | None = None
    detail: str = ""


def attribute(
    case: Case,
    prediction: PredictionLike | None,
    error: str | None = None,
    indexed_ids: Container[str] | None = None,
    deep_ranks: Mapping[str, int] | None = None,
) -> Outcome:
    """Name the one outcome of a case. The first line that holds decides:

    - `errored`: no prediction, stop reason `error`, or a wrong answer after a tool raised; one that the LM made up, or
      a query of its own that failed, did not.
    - not answerable: `right` if the program abstained, else `should_have_abstained`.
    - the answer is right: `right`; `unsupported_right` if no cited passage is gold evidence or holds the answer.
    - nothing to find (chit-chat): `should_not_have_abstained`, or `wrong_with_evidence` for an empty answer.
    - what was shown lacked no evidence (`missing_evidence`): `should_not_have_abstained` or `wrong_with_evidence`.
    - evidence is not in the index, and no alternative to it is: `not_in_index`.
    - some evidence was a hit and not shown: `dropped_by_judge` if the judge had read it, `dropped_by_threshold` if it
      was rated too little relevant for the judge to read, else `ranked_too_low`.
    - it was never a hit, and a judged run went on to answer, or none was searched: `stopped_early`.
    - it was never a hit, other evidence was, and the loop came to its end: `loop_exhausted`.
    - it was never a hit: `ranked_too_low` if `deep_ranks` knows its rank, else `not_retrieved`.

    A case without gold ids counts its evidence as shown when the context holds an accepted answer. A retrieval-only
    case (evidence, but no gold answer) is right when all its evidence was shown.

    Args:
        case: the gold.
        prediction: None if the program raised or ran out of time.
        error: what was raised; the case is `errored` then.
        indexed_ids: documents in the index (and passages, if gold ids name any). None: taken as complete.
        deep_ranks: gold id to its rank in a deeper search for the question than the program made.

    Raises:
        NoGoldAnswerError: the case is answerable and has neither a gold answer nor gold evidence.
    """  # noqa: D415
    if prediction is None or error is not None:
        return Outcome("errored", detail=error or "no prediction")
    if prediction.stop_reason == "error":
        return Outcome("errored", detail=getattr(prediction, "error", None) or "stop reason error")
    right = _is_right(case, prediction)
    raised = [hop.error for hop in prediction.hops if hop.error and not hop.error.startswith(_MADE_UP)]
    if raised and not right:
        return Outcome("errored", detail=raised[0])
    if not case.answerable:
        return Outcome("right") if right else Outcome("should_have_abstained")
    if right:
        return Outcome("right" if _is_supported(case, prediction) else "unsupported_right")
    missing = _missing(case, prediction)
    if not missing:
        return Outcome("should_not_have_abstained" if prediction.abstained else "wrong_with_evidence")
    return _why_missing(prediction, missing, case, indexed_ids, deep_ranks or {})


def count_transitions(
    before: Mapping[str, OutcomeName], after: Mapping[str, OutcomeName]
) -> dict[tuple[OutcomeName, OutcomeName], int]:
    """Count how cases moved between two versions, most frequent first.

    Args:
        before: case id to outcome.
        after: the same cases under the other version.

    Raises:
        ValueError: the two do not hold the same cases.
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ValueError(f"{len(odd)} cases stand in one version only, the first is {odd[0]}; expected the same cases")
    return dict(Counter((before[id_], after[id_]) for id_ in before).most_common())


def find_ranks(gold_ids: Sequence[str], rankings: Iterable[Sequence[str]]) -> dict[str, int]:
    """Give the best rank, from 1, that each gold id has in any of these rankings of passage ids; absent if in none."""
    ranks: dict[str, int] = {}
    for ranking in rankings:
        for rank, passage_id in enumerate(ranking, start=1):
            for id_ in gold_found(gold_ids, [passage_id]):
                ranks[id_] = min(rank, ranks.get(id_, rank))
    return ranks


def _is_right(case: Case, prediction: PredictionLike) -> bool:
    if has_gold_answer(case) or not gold_of(case):
        return is_right(case, prediction.answer, prediction.abstained)
    return not _missing(case, prediction)


def _is_supported(case: Case, prediction: PredictionLike) -> bool:
    if not (gold_of(case) and has_gold_answer(case)) or gold_found(gold_of(case), prediction.citations):
        return True
    cited = [hit.passage for hit in prediction.context if hit.passage.passage_id in set(prediction.citations)]
    return any(contains_answer(f"{p.title}\n{p.text}", _accepted(case)) for p in cited)


def _accepted(case: Case) -> list[str]:
    return [*case.answer, *(text for group in (*case.answer_groups, *case.key_points) for text in group)]


def _missing(case: Case, prediction: PredictionLike) -> list[str]:
    if gold_of(case):
        return missing_evidence(case, prediction.context)
    if not _accepted(case):
        return []
    return [] if any(holds_answer(case, hit.passage.text) for hit in prediction.context) else ["the answer"]


def _why_missing(
    prediction: PredictionLike,
    missing: Sequence[str],
    case: Case,
    indexed_ids: Container[str] | None,
    deep_ranks: Mapping[str, int],
) -> Outcome:
    gold = gold_of(case)
    absent = [id_ for id_ in missing if gold and indexed_ids is not None and not _is_indexed(id_, indexed_ids)]
    if absent and (needs_all(case) or len(absent) == len(missing)):
        return Outcome("not_in_index", detail=absent[0])
    judged = any(hop.verdict for hop in prediction.hops)
    lost = _lost_hit(prediction, missing)
    if lost:
        return lost
    detail = missing[0]
    if not prediction.hops or (judged and prediction.stop_reason not in _LOOP_ENDS):
        return Outcome("stopped_early", detail=detail)
    found = gold_found(gold, [id_ for hop in prediction.hops for id_ in ids_of(hop.hits)])
    if judged and found and prediction.stop_reason in _LOOP_ENDS:
        return Outcome("loop_exhausted", detail=f"{detail} ({prediction.stop_reason})")
    deep = min((deep_ranks[id_], id_) for id_ in missing if id_ in deep_ranks) if deep_ranks.keys() & missing else None
    return Outcome("ranked_too_low", deep[0], deep[1]) if deep else Outcome("not_retrieved", detail=detail)


def _lost_hit(prediction: PredictionLike, missing: Sequence[str]) -> Outcome | None:
    """Find evidence that was a hit and did not reach the answerer; what a judge read and left out goes first."""
    ranks: dict[str, int] = {}
    for hit in (hit for hop in prediction.hops for hit in hop.hits):
        for id_ in gold_found(missing, [hit.passage.passage_id]):
            ranks[id_] = min(hit.rank, ranks.get(id_, hit.rank))
    if not ranks:
        return None
    read = gold_found(missing, [id_ for hop in prediction.hops for id_ in hop.judged])
    left_out = gold_found(missing, [id_ for hop in prediction.hops for id_ in hop.left_out])
    causes: tuple[tuple[OutcomeName, frozenset[str]], ...] = (
        ("dropped_by_judge", read),
        ("dropped_by_threshold", left_out),
    )
    for name, lost in causes:
        if dropped := next((id_ for id_ in missing if id_ in lost and id_ in ranks), None):
            return Outcome(name, ranks[dropped], dropped)
    lowest = max(ranks, key=ranks.__getitem__)
    return Outcome("ranked_too_low", ranks[lowest], lowest)


def _is_indexed(gold_id: str, indexed_ids: Container[str]) -> bool:
    return gold_id in indexed_ids or (gold_id != doc_of(gold_id) and doc_of(gold_id) in indexed_ids)
