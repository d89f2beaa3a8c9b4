import guided
import pytest
from predictions import Prediction, hop, ranking

from trainsets.feedback import explain

HOP = guided.gold_case("hop")


def test_the_planner_hears_what_it_asked_and_what_was_missed() -> None:
    prediction = Prediction("", abstained=True, hops=(hop("io#0", query="IO-16R", verdict="insufficient"),))
    text = explain(HOP, prediction, "plan")
    assert "searched for 'IO-16R' with hybrid" in text
    assert "found 1 of 2 documents with evidence and missed supplier" in text
    assert "it takes nine weeks" in text  # what the missed evidence says
    assert "It abstained; expected 'nine weeks'" in text
    assert text.endswith("of 1.")


def test_the_judge_hears_which_verdict_was_wrong_and_why() -> None:
    hops = (hop("io#0", verdict="sufficient"), hop("supplier#0", verdict="sufficient"))
    text = explain(HOP, Prediction("two weeks", context=ranking("io#0"), hops=hops), "judge")
    assert text.count("WRONG") == 2  # each round read half of it
    assert "none is supplier" in text
    text = explain(guided.gold_case("one"), Prediction("sixteen", hops=(hop("io#0", verdict="sufficient"),)), "judge")
    assert "sufficient was right: of the passages read, they hold the evidence" in text
    never = Prediction("5 kg", hops=(hop("io#0", verdict="sufficient"),))
    assert "WRONG: of the passages read, none answers the question" in explain(
        guided.gold_case("never"), never, "judge"
    )
    assert "No verdict was given." in explain(HOP, Prediction("x"), "judge")


def test_the_rewriter_hears_what_each_new_query_brought() -> None:
    hops = (
        hop("io#0", verdict="insufficient"),
        hop("io#0", query="again", verdict="insufficient"),
        hop("supplier#0", query="P-4471", tool="keyword", verdict="sufficient"),
    )
    text = explain(HOP, Prediction("nine weeks", hops=hops, context=ranking("io#0", "supplier#0")), "rewrite")
    assert "'again' with hybrid brought no new evidence" in text
    assert "'P-4471' with keyword brought 1 new piece(s) of evidence" in text
    assert "'q'" not in text  # the first search was the planner's


def test_the_answerer_hears_the_gold_the_trap_and_its_citations() -> None:
    case = guided.gold_case("conflict")
    shown = ranking("pay-old#0", "pay-new#0", "io#0")
    text = explain(case, Prediction("45 days", citations=("io#0",), context=shown), "answer")
    assert "The answer was '45 days'; expected '60 days'." in text
    assert "hold the evidence (due after 60 days)" in text
    assert "another document misleads to" in text
    assert "cited passages that are no evidence" in text
    lacking = explain(HOP, Prediction("x", context=ranking("io#0")), "answer")
    assert "lack supplier" in lacking


@pytest.mark.parametrize("predictor", ["plan", "judge", "rewrite", "answer", "condense"])
def test_a_right_answer_is_called_right_and_a_failed_run_is_no_error(predictor: str) -> None:
    done = Prediction("nine weeks", context=ranking("io#0", "supplier#0"))
    assert "The answer was 'nine weeks', which is right." in explain(HOP, done, predictor)
    assert explain(HOP, None, predictor) == "The run failed before it came to an answer."


def test_where_nothing_is_to_be_found_an_answer_is_wrong() -> None:
    text = explain(guided.gold_case("never"), Prediction("5 kg", hops=(hop("io#0"),)), "plan")
    assert "There is no evidence to be found." in text
    assert "had to abstain" in text
