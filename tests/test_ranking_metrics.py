"""Ranking metrics, held to their definitions written out and to random rankings."""

import math

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import R
from predictions import ranking

from trainsets.cases import Case
from trainsets.ranking import (
    all_evidence_recall_at_k,
    case_ranking_scores,
    gold_of,
    mrr,
    ndcg_at_k,
    ranked_ids,
    ranking_of,
    ranking_scores,
    recall_at_k,
    success_at_k,
)

CASE = Case(id="c", question="q", gold_ids=("a", "b"))

ids = st.lists(st.sampled_from("abcdefghij"), unique=True, max_size=10)


@settings(max_examples=60)
@given(st.sets(st.sampled_from("abcdefghij"), min_size=1), ids, st.integers(1, 10))
def test_random_rankings_agree_with_the_definitions(gold: set[str], order: list[str], k: int) -> None:
    case = Case(id="c", question="q", gold_ids=tuple(sorted(gold)))
    top = gold & set(order[:k])
    places = [place for place, id_ in enumerate(order, start=1) if id_ in gold]
    assert recall_at_k(case, order, k) == pytest.approx(len(top) / len(gold))
    assert success_at_k(case, order, k) == float(bool(top))
    assert all_evidence_recall_at_k(case, order, k) == float(top == gold)
    assert mrr(case, order) == pytest.approx(1 / places[0] if places else 0)
    gain = sum(1 / math.log2(place + 1) for place in places if place <= k)
    best = sum(1 / math.log2(place + 1) for place in range(1, min(k, len(gold)) + 1))
    assert ndcg_at_k(case, order, k) == pytest.approx(gain / best)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from("abcdefghij"), st.integers(0, 3), min_size=1), ids)
def test_graded_ndcg_agrees_with_the_definition(qrels: dict[str, int], order: list[str]) -> None:
    case = Case(id="c", question="q", qrels=qrels)
    scores = case_ranking_scores(case, order, (5,))
    if not any(qrels.values()):
        assert scores == {}
        return
    gain = sum(qrels.get(id_, 0) / math.log2(place + 1) for place, id_ in enumerate(order[:5], start=1))
    ideal = sorted(qrels.values(), reverse=True)[:5]
    assert scores["ndcg_at_5"] == pytest.approx(gain / sum(g / math.log2(p + 1) for p, g in enumerate(ideal, start=1)))


def test_several_cases_agree_with_ir_measures_called_directly() -> None:
    cases = [Case(id=f"q{i}", question="q", gold_ids=tuple("abc"[: i + 1])) for i in range(3)]
    rankings = {"q0": list("xa"), "q1": list("bxa"), "q2": []}
    table = ranking_scores(cases, rankings, ks=(2,))
    qrels = {case.id: dict.fromkeys(case.gold_ids, 1) for case in cases}
    run = {id_: {doc: 1 / (place + 1) for place, doc in enumerate(order)} for id_, order in rankings.items()}
    direct = {m.query_id: m.value for m in ir_measures.iter_calc([R @ 2], qrels, run)}
    assert {id_: scores["recall_at_2"] for id_, scores in table.items()} == direct
    assert table["q0"].keys() == {"mrr", "recall_at_2", "success_at_2", "ndcg_at_2", "all_evidence_recall_at_2"}


def test_the_order_of_the_list_is_the_ranking_even_with_ties_and_repeats() -> None:
    assert mrr(CASE, ["x", "x", "a", "x"]) == 0.5
    assert recall_at_k(CASE, ["z", "y", "b", "a"], 3) == 0.5


def test_a_document_stands_where_its_best_passage_stands() -> None:
    hits = ranking("x#1", "a#4", "x#0", "a#0", "b#2")
    assert ranking_of(CASE, hits) == ("x", "a", "b")
    by_passage = Case(id="p", question="q", gold_ids=("a#0", "b"))
    assert ranking_of(by_passage, hits) == ("x", "a", "a#0", "b")
    assert recall_at_k(by_passage, ranking_of(by_passage, hits), 3) == 0.5
    assert ranked_ids(CASE, ["no-number", "a"]) == ("no-number", "a")


def test_cases_without_evidence_have_no_ranking_score_and_an_empty_ranking_scores_nought() -> None:
    absent = Case(id="u", question="q", answerable=False)
    table = ranking_scores([CASE, absent], {"c": []})
    assert table.keys() == {"c"}
    assert set(table["c"].values()) == {0.0}
    assert recall_at_k(absent, ["a"], 5) is None
    assert ranking_scores([absent], {}) == {}


def test_a_case_without_a_ranking_is_an_error() -> None:
    with pytest.raises(KeyError):
        ranking_scores([CASE], {})


def test_gold_ids_count_for_recall_and_grades_for_ndcg() -> None:
    case = Case(id="g", question="q", gold_ids=("a",), qrels={"a": 3, "b": 1, "c": 0})
    assert gold_of(case) == ("a",)
    assert recall_at_k(case, ["b"], 1) == 0
    assert ndcg_at_k(case, ["b"], 1) == pytest.approx(1 / 3)
    assert gold_of(Case(id="h", question="q", qrels={"a": 0, "b": 2})) == ("b",)
