import json

import pytest

from trainsets.cases import Case, load_sample
from trainsets.leaks import find_leaks

CABLE = Case(id="cable", question="How long may the sync cable of the RX-40 be?", answer=("140 m",))
SUPPLY = Case(id="supply", question="Which supply voltage does the CX-7 controller need?", answer=("24 V",))
FAN = Case(id="fan", question="风扇多久必须更换一次？", answer=("两年", "2年"))
CASES = [CABLE, SUPPLY, FAN]


def leaks(text: str, *cases: Case) -> list[tuple[str, str]]:
    return [(finding.case_id, finding.what) for finding in find_leaks({"here": text}, cases or CASES)]


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("Such as: how long may the sync cable of the RX-40 be", "cable"),
        ("例如“风扇多久必须更换一次”。", "fan"),
        ("风扇 多久必须 更换一次?", "fan"),  # spacing and width do not hide it
        ("question: Ｗhich supply voltage does the CX-7 controller need？", "supply"),
    ],
)
def test_a_held_out_question_word_for_word_is_a_leak(text: str, case: str) -> None:
    assert leaks(text) == [(case, "its question stands in here")]


def test_the_same_question_in_other_words_is_a_leak() -> None:
    assert leaks("How long may a sync cable of the RX-40 ever be?") == [("cable", "the same is asked in here")]
    assert leaks("How long may a sync cable of the RX-50 ever be?") == []  # about another product
    assert leaks("一次更换风扇必须多久？") == [("fan", "the same is asked in here")]


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("Know that the RX-40 takes a sync cable of 140 m.", "cable"),
        ("Be brief. The CX-7 controller needs a supply voltage of 24 V. Cite.", "supply"),
        ("记住：风扇每2年必须更换。", "fan"),  # another accepted form of the number
    ],
)
def test_an_answer_with_what_is_asked_is_a_leak(text: str, case: str) -> None:
    assert leaks(text) == [(case, "its answer stands with what is asked in here")]


@pytest.mark.parametrize(
    "text",
    [
        "Give the unit, as in 24 V or 140 m.",
        "answer: 24 V",
        "The mast is 140 m high. A cable of the RX-40 is blue.",  # apart from each other
        "回答要简短，例如“两年”。",
        "Which supply voltage does the fan need?\n24 V",
        "Answer the question from the passages, in the language of the question, as briefly as possible.",
    ],
)
def test_a_short_answer_alone_is_no_leak(text: str) -> None:
    assert leaks(text) == []


def test_a_question_that_holds_its_answer_or_asks_for_yes_or_no_is_no_leak_by_its_words() -> None:
    choice = Case(id="c", question="Is the RX-40 faster or the CX-7?", answer=("the RX-40",))
    yes = Case(id="y", question="Does the RX-40 have a sync cable?", answer=("yes",))
    assert leaks("Compare: is CX-7 or the RX-40 the faster product of the two?", choice) == []
    assert leaks("Say yes when the RX-40 has it", yes) == []


def test_a_follow_up_leaks_only_with_what_it_follows() -> None:
    history = [{"role": "user", "text": "How many controllers were sold in 2024?"}]
    line = {"id": "f", "question": "And how many of them were sent back?", "answer": ["12"], "history": history}
    follow_up = Case.model_validate_json(json.dumps(line))
    assert leaks("And how many of them were sent back?", follow_up) == []
    whole = "user: How many controllers were sold in 2024?\nAnd how many of them were sent back?"
    assert leaks(whole, follow_up) == [("f", "its question stands in here")]


def test_a_train_question_of_the_same_pattern_is_no_leak_where_it_asks_for_other_facts() -> None:
    pump, fan, again = (
        Case(id=id_, question=f"After how many hours is the {id_} exchanged?", answer=(answer,), gold_ids=(gold,))
        for id_, answer, gold in (("pump", "2800 h", "p.md"), ("fan", "900 h", "f.md"), ("old fan", "900 h", "f.md"))
    )
    demo = {"answer demo 1": f"{pump.question}\n2800 h"}
    assert find_leaks(demo, [fan], [pump]) == []
    assert [one.what for one in find_leaks(demo, [fan])] == ["the same is asked in answer demo 1"]
    assert find_leaks({"answer demo 1": again.question}, [fan], [pump, again])


def test_the_place_is_named() -> None:
    texts = {"plan demo 1": "nothing", "answer instructions": CABLE.question}
    [finding] = find_leaks(texts, CASES)
    assert (finding.level, finding.case_id) == ("error", "cable")
    assert finding.what == "its question stands in answer instructions"


def test_demos_from_the_train_cases_of_the_sample_set_leak_nothing_and_those_of_dev_do() -> None:
    held_out = [*load_sample("dev"), *load_sample("test")]
    train = {case.id: f"{case.question}\n{' '.join(case.answer[:1])}" for case in load_sample("train")}
    assert find_leaks(train, held_out) == []
    dev = [case for case in load_sample("dev") if not case.history and len(case.question) > 20]
    found = {finding.case_id for finding in find_leaks({"demo": "\n".join(case.question for case in dev)}, dev)}
    assert found == {case.id for case in dev}
