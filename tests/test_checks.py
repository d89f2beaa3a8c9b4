"""Defects planted one at a time in a clean gold set are found, and the clean set gives no error."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainsets.cases import Case, Turn
from trainsets.checks import Finding, check_cases, check_leaks, near_duplicates
from trainsets.normalize import tokens

DOCUMENTS = {
    "wiring": "NX-220 wiring\nThe supply of the NX-220 is 24 V DC, protected by a 2 A fuse.",
    "kestrel": "Kestrel\nKestrel supplies the power unit of the NX-220 and ships from Bergen.",
    "fault": "E-1024\nE-1024 means undervoltage on the supply.",
    "policy": "差旅\n自2025年起，国内住宿标准为每晚500元。",
}
CLEAN = Case(
    id="c1",
    question="How is the NX-220 fed?",
    answer=("24V DC", "24 volts"),
    gold_ids=("wiring",),
    gold_spans=("The  supply of the NX-220",),
    wrong_answers=("48 V",),
    kind="single_hop",
    lang="en",
)
CHINESE = Case(
    id="c2", question="出差住一晚最多报多少？", answer=("500 元",), gold_ids=("policy",), kind="lookup", lang="zh"
)


def problems(case: Case, documents: dict[str, str] | None = DOCUMENTS) -> list[Finding]:
    return check_cases([case], documents)


def test_clean_cases_give_nothing() -> None:
    absent = Case(id="u", question="Who makes the fuse?", answerable=False, kind="unanswerable")
    greeting = Case(id="h", question="hi", kind="chitchat")
    computed = Case(id="s", question="Sum?", answer=("26",), gold_ids=("wiring", "fault"), kind="aggregate")
    yes = Case(id="y", question="Is there a fuse?", answer=("yes",), gold_ids=("wiring",))
    ranked = Case(id="r", question="Which sheet is on wires?", gold_ids=("wiring",), kind="retrieval_only")
    written = Case(id="w", question="Why?", answer=("because " + "it is so and " * 4,), gold_ids=("fault",))
    turn = Case(id="t", question="And then?", answer=("24 V",), gold_ids=("wiring",), kind="multi_turn")
    cases = [CLEAN, CHINESE, absent, greeting, computed, yes, ranked, written, turn]
    assert check_cases(cases, DOCUMENTS) == []


@pytest.mark.parametrize(
    ("text", "answer", "is_held"),
    [
        ("| Part | Torque (Nm) |\n|---|---|\n| Flange | 14 |\n| Valve | 25 |", "25 Nm", True),
        ("| Part | Torque (Nm) |\n|---|---|\n| Flange | 14 |\n\nOrder 25 of them.", "25 Nm", False),
        ("Part: FM-12\nPrice EUR: 61.5", "61.50 EUR", True),
        ("Part: FM-12\nPrice EUR: 61.5", "61.5 USD", False),
        ("| 部件 | 扭矩（牛米） |\n|---|---|\n| 阀 | 25 |", "25 牛米", True),
        ("The fuse is in Nm; 25 of them.", "25 Nm", False),
    ],
)
def test_a_unit_may_stand_in_the_header_of_a_table(text: str, answer: str, is_held: bool) -> None:
    case = Case(id="t", question="How tight?", answer=(answer,), gold_ids=("table",))
    assert (check_cases([case], {"table": text}) == []) == is_held


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"gold_ids": ("nowhere",)}, "nowhere is not in the corpus"),
        ({"gold_ids": ("fault",), "gold_spans": ()}, "no gold document holds 24V DC / 24 volts"),
        (
            {"gold_spans": ("The supply of the NX-400",)},
            "the span stands in no gold document: The supply of the NX-400",
        ),
        ({"answer_groups": (("24 V",), ("3 A", "3 amperes"))}, "no gold document holds 3 A / 3 amperes"),
        ({"key_points": (("Oslo",),)}, "no gold document holds Oslo"),
        ({"wrong_answers": ("24 V dc",)}, "a wrong answer is also accepted"),
        ({"answerable": False}, "not answerable, but it has an answer or gold ids"),
        ({"answer": (), "gold_ids": (), "gold_spans": ()}, "answerable, but it has neither an answer nor evidence"),
        ({"kind": "multi_hop"}, "multi-hop, but it has fewer than two gold ids"),
        ({"kind": "multihop_inference"}, "multi-hop, but it has fewer than two gold ids"),
        ({"kind": "follow_up"}, "a follow-up without history"),
        ({"bad_ids": ("wiring",)}, "a gold id is also a bad id"),
    ],
)
def test_a_planted_error_is_the_one_that_is_found(change: dict[str, object], what: str) -> None:
    found = problems(CLEAN.model_copy(update=change))
    assert Finding("error", "c1", what) in found
    assert len([finding for finding in found if finding.level == "error"]) == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"question": "Is the NX-220 fed with 24 V DC?"}, "the question holds its answer"),
        (
            {"question": "So the supply of the NX-220 is 24 V DC, protected by what?"},
            "the question copies its evidence: ",
        ),
        (
            {"answerable": False, "answer": (), "gold_ids": (), "gold_spans": ()},
            "not answerable, but of kind single_hop",
        ),
    ],
)
def test_doubtful_gold_is_a_doubt_and_no_error(change: dict[str, object], what: str) -> None:
    found = problems(CLEAN.model_copy(update=change))
    assert any(finding.level == "doubt" and finding.what.startswith(what) for finding in found)
    assert all(finding.level == "doubt" for finding in found)


def test_another_document_that_answers_as_well_is_a_doubt() -> None:
    twin = DOCUMENTS | {"twin": "NX-220 data\nThe NX-220 is fed with 24 V DC."}
    [finding] = problems(CLEAN, twin)
    assert finding == Finding("doubt", "c1", "may also be answered from twin, not among the gold ids")
    assert problems(CLEAN.model_copy(update={"bad_ids": ("twin",)}), twin) == []
    assert problems(CLEAN, DOCUMENTS | {"other": "NX-400 data\nHow the NX-400 is fed: 24 V DC."}) == []


def test_a_chinese_question_that_copies_is_a_doubt() -> None:
    copied = CHINESE.model_copy(update={"question": "自2025年起国内住宿标准为每晚多少"})
    assert problems(copied)[0].what.startswith("the question copies its evidence")


def test_passage_gold_ids_are_looked_up_by_their_document() -> None:
    assert problems(CLEAN.model_copy(update={"gold_ids": ("wiring#3",)})) == []


def test_without_a_corpus_the_form_is_still_checked() -> None:
    assert problems(CLEAN.model_copy(update={"gold_ids": ("nowhere",)}), None) == []
    assert problems(CLEAN.model_copy(update={"kind": "multi_hop"}), None)[0].level == "error"


def ask(id_: str, question: str, **fields: object) -> Case:
    return Case.model_validate({"id": id_, "question": question} | fields, strict=False)


def test_the_same_question_in_other_words_is_a_near_duplicate_unless_it_names_another_id() -> None:
    one = ask("1", "What does error E-1024 on the panel mean?")
    assert list(near_duplicates([one, ask("2", "what does the error E-1024 mean, on a panel")]))
    assert not list(near_duplicates([one, ask("2", "What does error E-1042 on the panel mean?")]))
    assert not list(near_duplicates([one, ask("2", "Who repairs E-1024 in Oslo?")]))


def test_questions_of_one_pattern_that_rest_on_other_facts_ask_for_other_things() -> None:
    pump = ask("1", "After how many hours is the pump exchanged?", answer=["2,800 h"], gold_ids=["pump.md#0"])
    fan = ask("2", "After how many hours is the fan exchanged?", answer=["900 h"], gold_ids=["fan.md"])
    assert not list(near_duplicates([pump, fan]))
    assert check_leaks({"train": [pump], "dev": [fan]}) == []
    for same in ({"gold_ids": ("pump.md#3",)}, {"answer": ("2,800 H",)}, {"gold_ids": ()}, {"question": pump.question}):
        assert list(near_duplicates([pump, fan.model_copy(update=same)]))


@given(st.lists(st.lists(st.sampled_from("abcdefgh12"), min_size=1, max_size=7), max_size=12))
def test_the_shortcut_finds_the_pairs_that_comparing_all_would_find(questions: list[list[str]]) -> None:
    cases = [ask(str(i), " ".join(words)) for i, words in enumerate(questions)]
    found = {(one.id, other.id) for one, other in near_duplicates(cases)}
    for one, other in combinations(cases, 2):
        a, b = set(tokens(one.question)), set(tokens(other.question))
        same_numbers = {x for x in a if x.isdigit()} == {x for x in b if x.isdigit()}
        alike = len(a & b) > 0.7 * len(a | b) and same_numbers
        assert ((one.id, other.id) in found) == alike


def test_a_follow_up_is_compared_with_what_it_follows() -> None:
    def turn(text: str) -> list[Turn]:
        return [Turn(role="user", text=text)]

    one = ask("1", "那华东区呢？", history=turn("一季度华北区订单多少？"))
    assert not list(near_duplicates([one, ask("2", "那华东区呢？", history=turn("仓库主管是谁？"))]))
    assert list(near_duplicates([one, ask("3", "那华东区呢", history=turn("一季度华北区订单多少"))]))


def test_a_question_asked_twice_in_one_split_is_an_error() -> None:
    found = check_cases([CLEAN, CLEAN.model_copy(update={"id": "c9"})])
    assert found == [Finding("error", "c9", "asks the same as c1: How is the NX-220 fed?")]


def test_leaks_between_splits_are_found() -> None:
    two_hop = ask(
        "m", "Where does its maker ship from?", answer=["Bergen"], gold_ids=["kestrel", "wiring"], kind="multi_hop"
    )
    same_evidence = ask("n", "What is fused?", answer=["Kestrel"], gold_ids=["wiring", "kestrel"], kind="multi_hop")
    same_fact = ask("f", "Welche Spannung?", answer=["24 V DC"], gold_ids=["wiring"])
    other_fact = ask("g", "Which fuse?", answer=["2 A"], gold_ids=["wiring"])
    reworded = ask("r", "how is an NX-220 fed")
    assert check_leaks({"train": [CLEAN, two_hop], "test": [other_fact, CHINESE]}) == []
    assert [f.case_id for f in check_leaks({"train": [two_hop], "test": [same_evidence]})] == ["n"]
    assert [f.case_id for f in check_leaks({"train": [CLEAN], "test": [same_fact]})] == ["f"]
    assert [f.case_id for f in check_leaks({"train": [CLEAN], "dev": [reworded]})] == ["r"]
    assert check_leaks({"train": [CLEAN, same_fact, reworded, two_hop, same_evidence]}) == []
