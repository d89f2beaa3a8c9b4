"""Metrics of one prediction against one gold case, each on a run made by hand."""

from dataclasses import replace

import pytest
from predictions import Hit, Hop, Passage, Prediction, hop, ranking

from trainsets.cases import Case
from trainsets.metrics import (
    WEIGHTS,
    NoGoldAnswerError,
    abstention_scores,
    case_scores,
    citation_precision,
    citation_recall,
    citation_validity,
    combined_score,
    context_precision,
    context_recall,
    filter_f1,
    judge_accuracy,
    mean_scores,
    plan_size,
    rewriter_gain,
    rule_faithfulness,
    tool_f1,
)

TWO_HOP = Case(id="c", question="q", answer=("24 V",), gold_ids=("a", "b#1"), kind="multi_hop")
ABSENT = Case(id="u", question="q", answerable=False)


def test_citations_are_measured_against_documents_and_passages() -> None:
    prediction = Prediction(citations=("a#0", "b#0", "c#2"), context=ranking("a#0", "b#0"))
    assert citation_precision(TWO_HOP, prediction) == pytest.approx(1 / 3)  # b#0 is not the passage b#1
    assert citation_recall(TWO_HOP, prediction) == 0.5
    assert citation_validity(prediction) == pytest.approx(2 / 3)


def test_what_cannot_be_measured_is_none_and_not_nought() -> None:
    assert citation_precision(TWO_HOP, Prediction()) is None
    assert citation_recall(TWO_HOP, Prediction()) == 0
    assert citation_recall(TWO_HOP, Prediction(abstained=True)) is None
    assert citation_recall(ABSENT, Prediction()) is None
    assert citation_validity(Prediction()) is None
    assert context_precision(TWO_HOP, Prediction()) is None
    assert context_recall(ABSENT, Prediction(context=ranking("a#0"))) is None


@pytest.mark.parametrize(
    ("passages", "precision", "recall"),
    [
        (("a#0", "b#1", "x#0"), 1.0, 1.0),
        (("x#0", "a#0", "y#0", "b#1"), (1 / 2 + 2 / 4) / 2, 1.0),
        (("x#0", "y#0", "a#3"), 1 / 3, 0.5),
        (("x#0", "b#0"), 0.0, 0.0),
    ],
)
def test_context_precision_rewards_evidence_that_comes_first(
    passages: tuple[str, ...], precision: float, recall: float
) -> None:
    prediction = Prediction(context=ranking(*passages))
    assert context_precision(TWO_HOP, prediction) == pytest.approx(precision)
    assert context_recall(TWO_HOP, prediction) == recall


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("The NX-220 needs 24 V.", 1.0),
        ("The NX-220 needs 48 V.", 0.0),
        ("It needs 24 V and 5 A.", 0.5),
        ("24V [1] [a#0]", 1.0),
        ("1. 24 V\n2. ok", 1.0),
        ('It says "rated supply".', 1.0),
        ("写着“额定电流”，24 V", 0.5),
        ("It is fine.", None),
        ("NX-220", None),  # the question says so
    ],
)
def test_numbers_ids_and_quotes_of_the_answer_must_stand_in_the_cited_passages(
    answer: str, share: float | None
) -> None:
    case = Case(id="c", question="What does the NX-220 need?", answer=("24 V",), gold_ids=("a",))
    cited = Hit(Passage("a#0", "Rated  supply: 24 V DC"))
    other = Hit(Passage("b#0", "48 V, 5 A"))
    prediction = Prediction(answer=answer, citations=("a#0",), context=(other, cited))
    assert rule_faithfulness(case, prediction) == share


def test_an_abstention_makes_no_claims() -> None:
    assert rule_faithfulness(TWO_HOP, Prediction(answer="nothing about 24 V", abstained=True)) is None


def test_abstention_precision_and_recall_over_cases() -> None:
    answerable = Case(id="a", question="q", answer=("x",))
    pairs = [(ABSENT, True), (ABSENT, False), (ABSENT, False), (answerable, True), (answerable, False)]
    scores = abstention_scores((case, Prediction(abstained=abstained)) for case, abstained in pairs)
    assert scores == {"abstention_precision": 0.5, "abstention_recall": pytest.approx(1 / 3)}
    assert abstention_scores([(answerable, Prediction())]) == {
        "abstention_precision": None,
        "abstention_recall": None,
    }


def test_tools_and_filters_are_compared_as_sets() -> None:
    case = Case(id="c", question="q", tools=("keyword",), filters={"product": "NX-220", "date": {"$gte": "2025-01-01"}})
    used = Prediction(hops=(hop("a#0", tool="keyword"), hop("a#0", tool="dense", filters={"product": "nx-220"})))
    assert tool_f1(case, used) == pytest.approx(2 / 3)
    assert filter_f1(case, used) == pytest.approx(2 / 3)
    exact = {"product": {"$eq": "NX-220"}, "date": {"$gte": "2025-01-01"}}
    assert filter_f1(case, Prediction(hops=(hop("a#0", filters=exact),))) == 1
    assert filter_f1(case, Prediction()) == 0
    assert tool_f1(ABSENT, used) is None
    assert filter_f1(ABSENT, used) is None


LOOP = (hop("a#0"), hop("x#0", verdict="insufficient"), hop("b#1", judged=("a#0", "b#1"), verdict="sufficient"))


def test_the_plan_ends_at_the_first_verdict() -> None:
    assert plan_size(Prediction(hops=LOOP)) == 2
    assert plan_size(Prediction(hops=(hop("a#0"),))) == 1
    assert plan_size(Prediction()) == 0


def test_verdicts_agree_with_the_gold_when_all_evidence_is_or_is_not_there() -> None:
    assert judge_accuracy(TWO_HOP, Prediction(hops=LOOP)) == 1
    assert judge_accuracy(TWO_HOP, Prediction(hops=(*LOOP[:2], hop("b#1", verdict="sufficient")))) == 0.5
    early = (hop("a#0", verdict="sufficient"),)
    assert judge_accuracy(TWO_HOP, Prediction(hops=early)) == 0
    assert judge_accuracy(ABSENT, Prediction(hops=early)) == 0
    assert judge_accuracy(ABSENT, Prediction(hops=(hop("a#0", verdict="insufficient"),))) == 1
    assert judge_accuracy(TWO_HOP, Prediction(hops=(hop("a#0", "b#1", verdict="conflict"),))) == 1
    unread = (hop("a#0", "b#1", judged=("a#0",), verdict="insufficient"),)
    assert judge_accuracy(TWO_HOP, Prediction(hops=unread)) == 1  # it can't be blamed for what it was not shown
    assert judge_accuracy(TWO_HOP, Prediction(hops=(hop("a#0"),))) is None
    assert judge_accuracy(Case(id="x", question="q", answer=("y",)), Prediction(hops=early)) is None


def test_the_rewriter_gains_what_the_first_round_missed() -> None:
    assert rewriter_gain(TWO_HOP, Prediction(hops=LOOP)) == 1
    by_rule = (LOOP[0], *(replace(hop, decided_by="rule") for hop in LOOP[1:]))
    assert rewriter_gain(TWO_HOP, Prediction(hops=by_rule)) is None
    useless = (hop("a#0", verdict="insufficient"), hop("y#0"))
    assert rewriter_gain(TWO_HOP, Prediction(hops=useless)) == 0
    assert rewriter_gain(TWO_HOP, Prediction(hops=(hop("a#0", "b#1", verdict="insufficient"), hop("y#0")))) is None
    assert rewriter_gain(TWO_HOP, Prediction(hops=(hop("a#0", verdict="sufficient"),))) is None


def test_the_combined_score_weighs_its_parts() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1)
    context = (Hit(Passage("a#0", "24 V")), Hit(Passage("b#1", "x")))
    full = Prediction(answer="24 V", citations=("a#0", "b#1"), context=context)
    assert combined_score(TWO_HOP, full) == pytest.approx(1)
    no_citation = Prediction(answer="24 V", context=context)
    assert combined_score(TWO_HOP, no_citation) == pytest.approx(0.7 + 0.15)
    wrong = Prediction(answer="48 V", citations=("a#0",), context=context[:1])
    assert combined_score(TWO_HOP, wrong) == pytest.approx(0.15 * 0.5 + 0.1 * (2 / 3))
    wordy = Case(id="c", question="q", answer=("relay",), gold_ids=("a",))
    unmeasured = Prediction(answer="relay", citations=("a#0",), context=context)
    assert combined_score(wordy, unmeasured) == pytest.approx(1)  # nothing to check to the letter: scaled up


def test_only_the_answer_counts_where_nothing_is_to_be_found() -> None:
    found = ranking("a#0")
    assert combined_score(ABSENT, Prediction(abstained=True, context=found)) == 1
    assert combined_score(ABSENT, Prediction(answer="24 V", citations=("a#0",), context=found)) == 0
    greeting = Case(id="h", question="hi", kind="chitchat")
    assert combined_score(greeting, Prediction(answer="Hello", stop_reason="no_search_needed")) == 1


def test_a_retrieval_only_case_is_scored_by_its_evidence_and_an_empty_one_raises() -> None:
    retrieval = Case(id="r", question="q", gold_ids=("a", "b"))
    assert combined_score(retrieval, Prediction(answer="x", context=ranking("a#0"))) == pytest.approx(0.15 * 0.5 / 0.25)
    with pytest.raises(NoGoldAnswerError):
        combined_score(Case(id="e", question="q"), Prediction(answer="x"))


def test_an_exception_is_not_turned_into_a_score() -> None:
    broken = Prediction(answer=None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        combined_score(TWO_HOP, broken)


def test_all_scores_of_a_case_have_a_name_and_means_leave_out_what_was_not_measured() -> None:
    right = Prediction(
        answer="24 V", citations=("a#0",), context=ranking("x#0", "a#0"), hops=(hop("x#0", "a#0", "b#1"),)
    )
    scores = case_scores(TWO_HOP, right, ks=(1, 3))
    assert scores["answer_score"] == 1
    assert scores["all_evidence_recall_at_3"] == 1  # b#1 was a hit, though it was not shown
    assert scores["recall_at_1"] == 0
    assert scores["mrr"] == 0.5
    assert scores["judge_accuracy"] is None
    absent = case_scores(ABSENT, Prediction(answer="24 V"))
    assert absent["answer_score"] == 0
    assert absent["exact_match"] is None
    means = mean_scores([scores, absent])
    assert means["answer_score"] == 0.5
    assert means["exact_match"] == 1
    assert means["recall_at_1"] == 0
    assert means["judge_accuracy"] is None


def test_an_abstention_is_no_answer_to_any_text_metric() -> None:
    scores = case_scores(TWO_HOP, Prediction(answer="24 V is not in it", abstained=True, hops=(Hop(),)))
    assert scores["token_f1"] == 0
    assert scores["answer_score"] == 0
