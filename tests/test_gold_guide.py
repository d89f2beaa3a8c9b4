from dataclasses import replace

import guided
import pytest

from programs.gold_guide import Guide, NoGuidance, Step
from programs.prompting import format_passages
from programs.rag import AgenticRAG
from programs.run import Bounds
from trainsets.gold import Gold


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


def test_only_evidence_is_cited_where_another_passage_holds_the_same_words(program: AgenticRAG) -> None:
    case = guided.gold_case("zh").model_copy(update={"gold_spans": ("KX-310 的",), "answer": ("KX-310 的",)})
    guide = Guide(Gold(case), "KX-310 的盖子和风扇", program.retrievers, program.bounds)
    hits = [hit for query in ("盖子", "风扇") for hit in guide.search("keyword", query, 1)]
    outputs = guide.answer_for("answer")(passages=format_passages(hits, guide.question, guide.bounds), question="")
    assert [hits[number - 1].passage.doc_id for number in outputs["citations"]] == ["zh-fan"]
    assert {hit.passage.doc_id for hit in hits} == {"zh-fan", "zh-cover"}


def test_a_passage_that_was_not_retrieved_and_an_unknown_predictor_have_no_guidance(program: AgenticRAG) -> None:
    guide = guide_of(program, "zh")
    with pytest.raises(NoGuidance, match="not retrieved"):
        guide.answer_for("judge")(passages="<passage 1> Made up\nno such text\n</passage>", question="")
    with pytest.raises(NoGuidance, match="condense"):
        guide.answer_for("condense")(question="")


def judge_all(program: AgenticRAG, **changes: object) -> Step:
    """Let the guide judge both passages of the supplier case, with other gold."""
    case = guided.gold_case("hop").model_copy(update=changes)
    guide = Guide(Gold(case), case.question, program.retrievers, program.bounds)
    hits = [*guide.search("keyword", "sixteen", 1), *guide.search("keyword", "weeks", 1)]
    guide.answer_for("judge")(passages=format_passages(hits, guide.question, guide.bounds), question=guide.question)
    return guide.steps[-1]


def test_a_part_of_an_answer_in_parts_is_not_enough(program: AgenticRAG) -> None:
    parts = {"kind": "single_hop", "answer": (), "answer_groups": (("nine weeks",), ("blue",))}
    assert judge_all(program, **parts, gold_spans=("it takes nine weeks",)).outputs["verdict"] == "sufficient"
    spans = ("it takes nine weeks", "its lid is blue")
    assert judge_all(program, **parts, gold_spans=spans).outputs["verdict"] == "insufficient"


def test_a_step_is_clear_where_its_quotes_state_the_answer_and_speak_of_the_question(program: AgenticRAG) -> None:
    assert judge_all(program).clear
    assert not judge_all(program, question="Which colour will the sky have tomorrow?").clear
    assert not judge_all(program, answer=("sixty-three days",)).clear
    assert not judge_all(program, kind="aggregate", gold_spans=("it takes nine weeks",)).clear  # a sum of one


def test_words_that_only_dress_a_question_are_not_searched_for(program: AgenticRAG) -> None:
    case = guided.gold_case("never").model_copy(update={"question": "Tell me now: is the IO-16R still in use?"})
    guide = Guide(Gold(case), case.question, program.retrievers, program.bounds)
    assert judged(guide, "lamp")["missing"] == "IO-16R"
