"""Whether the evidence of a case stands in given passages: what outcomes and the judge's accuracy are measured by."""

from collections.abc import Iterable

from trainsets.answers import contains_answer
from trainsets.cases import Case
from trainsets.prediction import HitLike, gold_found, ids_of
from trainsets.ranking import gold_of

_WHOLE = ("comparison", "aggregate")


def needs_all(case: Case) -> bool:
    """Say whether every gold id is needed: for multi-hop, comparison and aggregate one of them proves nothing."""
    return is_multi_hop(case) or case.kind in _WHOLE


def is_multi_hop(case: Case) -> bool:
    """Say whether the kind is multi-hop, also as public sets spell it (`multihop_2hop`)."""
    return case.kind.replace("_", "").startswith("multihop")


def missing_evidence(case: Case, hits: Iterable[HitLike]) -> list[str]:
    """List the gold ids that these passages lack for an answer.

    Nothing is missing when every gold id is there. Where one document may do (`needs_all` says no), several gold ids
    are alternatives, so nothing is missing either when the gold passages that are there hold the answer.
    """
    shown = list(hits)
    gold = gold_of(case)
    found = gold_found(gold, ids_of(shown))
    missing = [id_ for id_ in gold if id_ not in found]
    if missing and found and not needs_all(case):
        evidence = [hit.passage for hit in shown if gold_found(gold, [hit.passage.passage_id])]
        if holds_answer(case, "\n".join(f"{passage.title}\n{passage.text}" for passage in evidence)):
            return []
    return missing


def holds_answer(case: Case, text: str) -> bool:
    """Say whether a text holds an accepted answer: one of `answer`, or every group and every key point."""
    parts = (*case.answer_groups, *case.key_points)
    if case.answer and contains_answer(text, case.answer):
        return True
    return bool(parts) and all(contains_answer(text, part) for part in parts)
