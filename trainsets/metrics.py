"""Everything a gold case can say about one prediction: answer, citations, evidence, abstention, plan, judge, rewriter.

A metric that a case cannot measure is None and stays out of means. No metric turns an exception into a score.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainsets.answers import (
    NoGoldAnswerError,
    answer_score,
    contains_answer,
    exact_match,
    falls_for_trap,
    group_recall,
    has_gold_answer,
    is_right,
    key_point_recall,
    token_f1,
)
from trainsets.cases import Case
from trainsets.evidence import missing_evidence
from trainsets.normalize import facts, fold
from trainsets.prediction import HitLike, HopLike, PredictionLike, gold_found, ids_of
from trainsets.ranking import KS, case_ranking_scores, gold_of, ranking_of

__all__ = [
    "WEIGHTS",
    "NoGoldAnswerError",
    "abstention_scores",
    "answer_score",
    "case_scores",
    "citation_precision",
    "citation_recall",
    "citation_validity",
    "combined_score",
    "contains_answer",
    "context_precision",
    "context_recall",
    "exact_match",
    "falls_for_trap",
    "filter_f1",
    "group_recall",
    "has_gold_answer",
    "is_right",
    "judge_accuracy",
    "key_point_recall",
    "mean_scores",
    "plan_size",
    "rewriter_gain",
    "rule_faithfulness",
    "token_f1",
    "tool_f1",
]

WEIGHTS = {"answer": 0.7, "evidence": 0.15, "citations": 0.1, "faithfulness": 0.05}
"""What `combined_score` is made of; the reasons stand in its docstring."""

_QUOTE = re.compile(r'"([^"]{4,})"|“([^”]{4,})”|「([^」]{4,})」|『([^』]{4,})』')
_CITED = r"[\[【](?:\d{1,2}(?:\s*,\s*\d{1,2})*|[^\[\]【】\s]*#\d+)[\]】]"
_MARKERS = re.compile(rf"{_CITED}|^\s*\d{{1,2}}[.)、]\s", re.MULTILINE)


def citation_precision(case: Case, prediction: PredictionLike) -> float | None:
    """Give cited passages that are gold evidence ÷ cited passages; None without gold evidence or without a citation.

    Source: ALCE, Gao et al. 2023, arXiv:2305.14627, with gold ids in place of its entailment model.
    """
    gold, cited = gold_of(case), tuple(dict.fromkeys(prediction.citations))
    if not gold or not cited:
        return None
    return sum(bool(gold_found(gold, [id_])) for id_ in cited) / len(cited)


def citation_recall(case: Case, prediction: PredictionLike) -> float | None:
    """Give gold ids that are cited ÷ gold ids; None without gold evidence, or if the program abstained.

    Source: as `citation_precision`.
    """
    gold = gold_of(case)
    if not gold or prediction.abstained:
        return None
    return len(gold_found(gold, prediction.citations)) / len(gold)


def citation_validity(prediction: PredictionLike) -> float | None:
    """Give cited ids that were among the passages shown ÷ cited ids; None without a citation."""
    cited, shown = tuple(dict.fromkeys(prediction.citations)), set(ids_of(prediction.context))
    return sum(id_ in shown for id_ in cited) / len(cited) if cited else None


def context_precision(case: Case, prediction: PredictionLike) -> float | None:
    """Give the mean of precision@k over the places k that hold gold evidence: 1 if all of it comes first.

    None without gold evidence or without context; 0 if none of the context is gold.

    Source: RAGAS, Es et al. 2023, arXiv:2309.15217, context precision with reference ids.
    """
    gold = gold_of(case)
    if not gold or not prediction.context:
        return None
    relevant = [bool(gold_found(gold, [id_])) for id_ in ids_of(prediction.context)]
    precisions = [sum(relevant[: place + 1]) / (place + 1) for place, good in enumerate(relevant) if good]
    return sum(precisions) / len(precisions) if precisions else 0.0


def context_recall(case: Case, prediction: PredictionLike) -> float | None:
    """Give gold ids among the passages shown to the answerer ÷ gold ids; None without gold evidence.

    Source: as `context_precision`.
    """
    gold = gold_of(case)
    return len(gold_found(gold, ids_of(prediction.context))) / len(gold) if gold else None


def rule_faithfulness(case: Case, prediction: PredictionLike) -> float | None:
    """Give numbers, ids and quotes of the answer that stand in the cited passages ÷ all of them.

    What the question says already is no claim of the answer. Citation marks and list numbers are not either. None if
    the program abstained or the answer holds nothing that can be checked to the letter. A value that the answer had
    to compute (a sum, a difference) stands in no passage: read aggregates apart.

    Source: the rule half of faithfulness in Es et al. 2023, arXiv:2309.15217; the other half needs a grader.
    """
    if prediction.abstained:
        return None
    passages = _cited_text(prediction)
    answer = _MARKERS.sub(" ", prediction.answer)
    claims = facts(answer) - facts(case.question)
    quotes = [next(part for part in groups if part) for groups in _QUOTE.findall(answer)]
    checks = [claim in facts(passages) for claim in claims] + [fold(quote) in fold(passages) for quote in quotes]
    return sum(checks) / len(checks) if checks else None


def abstention_scores(pairs: Iterable[tuple[Case, PredictionLike]]) -> dict[str, float | None]:
    """Score abstention over many cases.

    Returns:
        `abstention_precision`: abstained and not answerable ÷ abstained; None if the program never abstained.
        `abstention_recall`: abstained and not answerable ÷ not answerable; None if every case is answerable.

    Source: Rajpurkar et al. 2018, arXiv:1806.03822 (SQuAD 2.0), abstention as the class to find.
    """
    seen = [(case.answerable, prediction.abstained) for case, prediction in pairs]
    hits = sum(abstained and not answerable for answerable, abstained in seen)
    abstentions, unanswerable = sum(a for _, a in seen), sum(not answerable for answerable, _ in seen)
    return {
        "abstention_precision": hits / abstentions if abstentions else None,
        "abstention_recall": hits / unanswerable if unanswerable else None,
    }


def tool_f1(case: Case, prediction: PredictionLike) -> float | None:
    """Give the F1 of the set of tools used against the tools an ideal run uses; None if the case names none."""
    if not case.tools:
        return None
    return _set_f1({hop.tool for hop in prediction.hops}, set(case.tools))


def filter_f1(case: Case, prediction: PredictionLike) -> float | None:
    """Give the best F1 of a hop's filter conditions against those of an ideal run; None if the case names none.

    A condition is key, operator and value; `{"year": 2025}` is the same as `{"year": {"$eq": 2025}}`, and `gte` as
    `$gte`.
    """
    if not case.filters:
        return None
    ideal = _conditions(case.filters)
    return max((_set_f1(_conditions(hop.filters or {}), ideal) for hop in prediction.hops), default=0.0)


def plan_size(prediction: PredictionLike) -> int:
    """Count the searches planned before the first verdict: fewer is better where the answer is the same."""
    return len(_first_round(prediction.hops))


def count_rounds(prediction: PredictionLike) -> int:
    """Count the retrieve–judge turns; searches that no judge read are one turn."""
    return sum(hop.verdict is not None for hop in prediction.hops) or int(bool(prediction.hops))


def judge_accuracy(case: Case, prediction: PredictionLike) -> float | None:
    """Give verdicts that agree with the gold ÷ verdicts; None without a verdict, or without gold evidence.

    Evidence is sufficient when `missing_evidence` finds nothing missing, and never for a case that is not answerable.
    `conflict` says that there is evidence, so it agrees with sufficient. A verdict is measured on the passages that
    the judge read for it.
    """
    gold = gold_of(case)
    if case.answerable and not gold:
        return None
    agreements = []
    found: dict[str, HitLike] = {}
    for hop in prediction.hops:
        found |= {hit.passage.passage_id: hit for hit in hop.hits}
        if hop.verdict is None:
            continue
        read = [found[id_] for id_ in hop.judged if id_ in found]
        sufficient = case.answerable and not missing_evidence(case, read)
        agreements.append((hop.verdict != "insufficient") == sufficient)
    return sum(agreements) / len(agreements) if agreements else None


def rewriter_gain(case: Case, prediction: PredictionLike) -> float | None:
    """Give gold ids first found by a rewritten query ÷ gold ids that were missing before it.

    None if nothing was missing after the first round, or the LM rewrote no query; what a rule asked is not counted.
    """
    first = _first_round(prediction.hops)
    later = [hop for hop in prediction.hops[len(first) :] if hop.decided_by == "lm"]
    missing = set(gold_of(case)) - gold_found(gold_of(case), _hit_ids(first))
    if not missing or not later:
        return None
    return len(missing & gold_found(gold_of(case), _hit_ids(later))) / len(missing)


def combined_score(case: Case, prediction: PredictionLike) -> float:
    """Weigh everything into the one number, 0..1, that an optimizer raises.

    - answer 0.70: what the user gets. Alone it is coarse: most steps of a small program leave it at 0 or 1.
    - evidence 0.15: context recall, so that a better query counts before the answerer can use it.
    - citations 0.10: F1 of citation precision and recall, so that a guess without its source is worth less.
    - faithfulness 0.05: the rule part; small, because it also fails honest sums.

    What a case can't measure is left out and the rest is scaled up. Where nothing is to be found (not answerable,
    chit-chat) the answer score is all: passages gathered for an unanswerable question are no merit. Cost is not in it:
    calls are bounded in code, and a cheaper wrong answer is not better.

    Raises:
        NoGoldAnswerError: the case has neither a gold answer nor gold evidence.
    """
    if not case.answerable or (has_gold_answer(case) and not gold_of(case)):
        return answer_score(case, prediction.answer, prediction.abstained)
    parts = {
        "answer": answer_score(case, prediction.answer, prediction.abstained) if has_gold_answer(case) else None,
        "evidence": context_recall(case, prediction),
        "citations": _citation_f1(case, prediction),
        "faithfulness": rule_faithfulness(case, prediction),
    }
    measured = {name: value for name, value in parts.items() if value is not None}
    if not measured:
        raise NoGoldAnswerError(f"case {case.id}: neither a gold answer nor gold evidence, so nothing can be scored")
    return sum(WEIGHTS[name] * value for name, value in measured.items()) / sum(WEIGHTS[name] for name in measured)


def case_scores(case: Case, prediction: PredictionLike, ks: Sequence[int] = KS) -> dict[str, float | None]:
    """Measure everything for one case; None where the case or the prediction leaves nothing to measure.

    The ranking scores read the context first and then the other hits, so that k beyond the context still counts.
    """
    has_answer, texts = has_gold_answer(case), _accepted(case)
    answer = prediction.answer if not prediction.abstained else ""
    scores: dict[str, float | None] = {
        "answer_score": answer_score(case, prediction.answer, prediction.abstained) if has_answer else None,
        "exact_match": exact_match(answer, texts) if texts else None,
        "token_f1": token_f1(answer, texts) if texts else None,
        "key_point_recall": key_point_recall(case, answer),
        "group_recall": group_recall(case, answer),
        "trapped": float(falls_for_trap(case, answer)) if case.wrong_answers else None,
        "citation_precision": citation_precision(case, prediction),
        "citation_recall": citation_recall(case, prediction),
        "citation_validity": citation_validity(prediction),
        "context_precision": context_precision(case, prediction),
        "context_recall": context_recall(case, prediction),
        "faithfulness": rule_faithfulness(case, prediction),
        "tool_f1": tool_f1(case, prediction),
        "filter_f1": filter_f1(case, prediction),
        "plan_size": float(plan_size(prediction)),
        "rounds": float(count_rounds(prediction)),
        "judge_accuracy": judge_accuracy(case, prediction),
        "rewriter_gain": rewriter_gain(case, prediction),
        "combined": combined_score(case, prediction) if has_answer or gold_of(case) else None,
    }
    return scores | case_ranking_scores(case, ranking_of(case, retrieved(prediction)), ks)


def mean_scores(scores: Iterable[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Give the mean of every metric over the cases that could measure it; None where none could."""
    rows = list(scores)
    names = dict.fromkeys(name for row in rows for name in row)
    means: dict[str, float | None] = {}
    for name in names:
        values = [value for row in rows if (value := row.get(name)) is not None]
        means[name] = sum(values) / len(values) if values else None
    return means


def retrieved(prediction: PredictionLike) -> tuple[HitLike, ...]:
    """List all hits of a run, best first: the context as it was shown, then the other hits by rank and hop."""
    others = sorted((hit for hop in prediction.hops for hit in hop.hits), key=lambda hit: hit.rank)
    return (*prediction.context, *others)


def _accepted(case: Case) -> tuple[str, ...]:
    return case.answer if case.answerable else ()


def _cited_text(prediction: PredictionLike) -> str:
    cited = set(prediction.citations)
    shown = [hit.passage for hit in prediction.context if hit.passage.passage_id in cited]
    return "\n".join(f"{passage.title}\n{passage.text}" for passage in shown)


def _citation_f1(case: Case, prediction: PredictionLike) -> float | None:
    precision, recall = citation_precision(case, prediction), citation_recall(case, prediction)
    if recall is None:
        return None
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


def _first_round(hops: Sequence[HopLike]) -> Sequence[HopLike]:
    """Take the hops up to the first verdict; later ones were asked for by a rewrite."""
    return hops[: next((place for place, hop in enumerate(hops, start=1) if hop.verdict), len(hops))]


def _hit_ids(hops: Sequence[HopLike]) -> list[str]:
    return [id_ for hop in hops for id_ in ids_of(hop.hits)]


def _conditions(filters: Mapping[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (key, operator.removeprefix("$"), fold(str(value)))
        for key, test in filters.items()
        for operator, value in (test.items() if isinstance(test, Mapping) else [("eq", test)])
    }


def _set_f1(used: set[Any], ideal: set[Any]) -> float:
    return 2 * len(used & ideal) / (len(used) + len(ideal))
