"""Score rankings against gold evidence through ir-measures: recall, success, all-evidence recall, MRR, nDCG."""

from collections.abc import Iterable, Mapping, Sequence

import ir_measures
from ir_measures import RR, Qrel, R, ScoredDoc, Success, nDCG

from trainsets.cases import Case
from trainsets.prediction import HitLike, doc_of

KS = (1, 3, 5, 10)


def ranked_ids(case: Case, passage_ids: Iterable[str]) -> tuple[str, ...]:
    """Turn a ranking of passages into one of the ids that the case judges.

    A passage stands for itself where the case names it (`doc_id#n`), else for its document. An id keeps its best
    place: a document is as good as its best passage.

    Source: MaxP, Dai and Callan 2019, arXiv:1905.09217.
    """
    judged = {*case.gold_ids, *case.qrels}
    return tuple(dict.fromkeys(id_ if id_ in judged else doc_of(id_) for id_ in passage_ids))


def ranking_of(case: Case, hits: Iterable[HitLike]) -> tuple[str, ...]:
    """Turn hits, best first, into a ranking of the ids that the case judges."""
    return ranked_ids(case, (hit.passage.passage_id for hit in hits))


def ranking_scores(
    cases: Iterable[Case], rankings: Mapping[str, Sequence[str]], ks: Sequence[int] = KS
) -> dict[str, dict[str, float]]:
    """Score one ranking a case.

    - `recall_at_k`: gold ids in the first k ÷ gold ids.
    - `success_at_k`: 1 if any gold id is in the first k.
    - `all_evidence_recall_at_k`: 1 if every gold id is (what a multi-hop answer needs).
    - `mrr`: 1 ÷ rank of the first gold id, over the whole ranking.
    - `ndcg_at_k`: with the grades of `qrels` where the case has them, else gold ids at grade 1.

    Args:
        cases: those without gold ids and without positive `qrels` are left out: they have no ranking score.
        rankings: case id to ids, best first, as `ranked_ids` gives them.
        ks: the cuts.

    Returns:
        Case id to metric to value. An empty ranking scores 0.

    Raises:
        KeyError: a case has no ranking.

    Source: trec_eval through ir-measures (MacAvaney et al. 2022, arXiv:2111.13466); all-evidence recall as in HoVer
    (Jiang et al. 2020, arXiv:2011.03088).
    """
    scored = [case for case in cases if gold_of(case)]
    run = [doc for case in scored for doc in _run_lines(case.id, rankings[case.id])]
    binary = [Qrel(case.id, id_, 1) for case in scored for id_ in gold_of(case)]
    graded = [Qrel(case.id, id_, grade) for case in scored for id_, grade in _grades(case).items()]
    table: dict[str, dict[str, float]] = {case.id: {} for case in scored}
    if not scored:
        return table
    for metric in ir_measures.iter_calc([RR, *(m @ k for k in ks for m in (R, Success))], binary, run):
        table[metric.query_id][_name(str(metric.measure))] = metric.value
    for metric in ir_measures.iter_calc([nDCG @ k for k in ks], graded, run):
        table[metric.query_id][_name(str(metric.measure))] = metric.value
    for scores in table.values():
        scores.update({f"all_evidence_recall_at_{k}": float(scores[f"recall_at_{k}"] == 1.0) for k in ks})
    return table


def case_ranking_scores(case: Case, ranking: Sequence[str], ks: Sequence[int] = KS) -> dict[str, float]:
    """Score the ranking of one case; empty if the case has no gold evidence."""
    return ranking_scores([case], {case.id: ranking}, ks).get(case.id, {})


def recall_at_k(case: Case, ranking: Sequence[str], k: int) -> float | None:
    """Give gold ids in the first k ÷ gold ids; None without gold evidence."""
    return case_ranking_scores(case, ranking, (k,)).get(f"recall_at_{k}")


def success_at_k(case: Case, ranking: Sequence[str], k: int) -> float | None:
    """Say whether any gold id is in the first k, 1 or 0; None without gold evidence."""
    return case_ranking_scores(case, ranking, (k,)).get(f"success_at_{k}")


def all_evidence_recall_at_k(case: Case, ranking: Sequence[str], k: int) -> float | None:
    """Say whether every gold id is in the first k, 1 or 0; None without gold evidence."""
    return case_ranking_scores(case, ranking, (k,)).get(f"all_evidence_recall_at_{k}")


def mrr(case: Case, ranking: Sequence[str]) -> float | None:
    """Give 1 ÷ rank of the first gold id, 0 if none is ranked; None without gold evidence."""
    return case_ranking_scores(case, ranking, (1,)).get("mrr")


def ndcg_at_k(case: Case, ranking: Sequence[str], k: int) -> float | None:
    """Give the discounted gain of the first k ÷ the best possible; None without gold evidence."""
    return case_ranking_scores(case, ranking, (k,)).get(f"ndcg_at_{k}")


def to_retrieval_cases(cases: Iterable[Case]) -> list[Case]:
    """Keep of each case with gold evidence what a search is measured by; the others have nothing to find."""
    kept = ("id", "question", "gold_ids", "qrels", "kind", "lang")
    return [Case(**{name: getattr(case, name) for name in kept}) for case in cases if gold_of(case)]


def gold_of(case: Case) -> tuple[str, ...]:
    """List the ids that hold the evidence: `gold_ids`, or without them the `qrels` of grade 1 and up."""
    return tuple(dict.fromkeys(case.gold_ids)) or tuple(id_ for id_, grade in case.qrels.items() if grade > 0)


def _grades(case: Case) -> dict[str, int]:
    return case.qrels if any(grade > 0 for grade in case.qrels.values()) else dict.fromkeys(gold_of(case), 1)


def _run_lines(case_id: str, ranking: Sequence[str]) -> list[ScoredDoc]:
    # trec_eval ranks by score and ignores the order of lines, so the place is the score.
    unique = list(dict.fromkeys(ranking))
    return [ScoredDoc(case_id, id_, float(len(unique) - place)) for place, id_ in enumerate(unique)]


def _name(measure: str) -> str:
    name, _, k = measure.partition("@")
    return {"RR": "mrr", "R": "recall_at_", "Success": "success_at_", "nDCG": "ndcg_at_"}[name] + k
