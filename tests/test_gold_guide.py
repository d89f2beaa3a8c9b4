from dataclasses import replace

import guided
import pytest

from programs.gold_guide import Guide, NoGuidance, Shown, content_words, shorten
from programs.prompting import format_passages
from programs.rag import AgenticRAG
from programs.run import Bounds
from retrievers.records import Hit, Passage


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> AgenticRAG:
    return guided.make_program(tmp_path_factory.mktemp("guided"))


def guide_of(program: AgenticRAG, id_: str) -> Guide:
    case = guided.guided_case(id_)
    return Guide(case.gold, case.example.question, program.retrievers, program.bounds)


def judged(guide: Guide, query: str) -> dict[str, object]:
    hits = guide.search("keyword", query, 1)
    passages = format_passages(hits, guide.question, guide.bounds)
    return dict(guide.answer_for("judge")(passages=passages, question=guide.question))


def test_evidence_for_half_a_question_is_insufficient_and_all_of_it_is_enough(program: AgenticRAG) -> None:
    guide = guide_of(program, "hop")
    assert judged(guide, "sixteen")["verdict"] == "insufficient"
    assert judged(guide, "weeks")["verdict"] == "insufficient"
    hits = [*guide.search("keyword", "sixteen", 1), *guide.search("keyword", "weeks", 1)]
    passages = format_passages(hits, guide.question, guide.bounds)
    assert guide.answer_for("judge")(passages=passages, question=guide.question)["verdict"] == "sufficient"


def test_a_passage_that_is_not_about_the_question_is_no_demo_of_a_miss(program: AgenticRAG) -> None:
    guide = guide_of(program, "never")
    judged(guide, "风扇")
    judged(guide, "lamp")
    assert [step.certain for step in guide.steps] == [False, True]


def test_a_plan_is_the_fewest_searches_that_find_the_evidence(program: AgenticRAG) -> None:
    one = guide_of(program, "one").answer_for("plan")(question="")["steps"]
    assert [step.query for step in one] == ["relays IO-16R"]
    assert len(guide_of(program, "hop").answer_for("plan")(question="")["steps"]) == 1
    narrow = replace(guide_of(program, "hop"), bounds=Bounds(n_passages=1))  # one search does not find both there
    assert [step.query for step in narrow.answer_for("plan")(question="")["steps"]] == [
        "spare relay IO-16R",
        "delivery",
    ]
    guide = guide_of(program, "never")
    guide.answer_for("plan")(question="")
    assert not guide.steps[0].certain  # nothing is to be found, so no plan is the right one


def test_no_answer_is_given_that_the_passages_do_not_hold(program: AgenticRAG) -> None:
    guide = guide_of(program, "zh")
    hits = guide.search("keyword", "盖子", 1)
    with pytest.raises(NoGuidance, match="do not hold the answer"):
        guide.answer_for("answer")(passages=format_passages(hits, guide.question, guide.bounds), question="")


def test_a_passage_that_was_not_retrieved_and_an_unknown_predictor_have_no_guidance(program: AgenticRAG) -> None:
    guide = guide_of(program, "zh")
    with pytest.raises(NoGuidance, match="not retrieved"):
        guide.answer_for("judge")(passages="<passage 1> Made up\nno such text\n</passage>", question="")
    with pytest.raises(NoGuidance, match="condense"):
        guide.answer_for("condense")(question="")


def test_content_words_are_in_order_as_written_and_without_function_words() -> None:
    assert content_words("What is the lead time of P-4471?") == ["lead", "time", "P-4471"]
    assert content_words("KX-310 的风扇多久更换一次？")[:2] == ["KX-310", "风扇"]


def shown(number: int, body: str) -> Shown:
    return Shown(
        f"title {number}", body, Hit(Passage(f"d{number}#0", f"d{number}", f"title {number}", body), 1.0, number)
    )


def test_shortening_keeps_quotes_word_for_word_and_numbers_anew() -> None:
    long = " ".join(f"Sentence {n} says nothing." for n in range(40)) + " The torque is 0.6 Nm. " + "More of it. " * 40
    text, numbers = shorten(
        [shown(1, "x. " * 300), shown(2, "y"), shown(3, long)], ["The torque is 0.6 Nm."], "torque?", 80
    )
    assert numbers == {1: 1, 3: 2}
    assert "The torque is 0.6 Nm." in text
    assert text.startswith("<passage 1> title 1\n")
    assert "<passage 2> title 3\n" in text
    assert len(text) < 400


def test_a_quote_that_can_not_be_cut_out_keeps_its_passage_whole() -> None:
    body = "First line of it.\nThe torque\nis 0.6 Nm.\n" + "More. " * 60
    text, _ = shorten([shown(1, body)], ["torque is 0.6 Nm"], "torque?", 10)
    assert "is 0.6 Nm." in text
