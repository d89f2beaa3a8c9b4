import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs import rules
from trainsets.cases import SAMPLE_DIR, load_sample

CASES = [case for split in ("train", "dev", "test") for case in load_sample(split)]
DOCUMENTS = [
    json.loads(line)
    for path in sorted((SAMPLE_DIR / "corpus").glob("*.jsonl"))
    for line in path.read_text(encoding="utf-8").splitlines()
]


def test_small_talk_of_the_sample_is_small_talk_and_its_questions_are_not() -> None:
    wrong = [case.question for case in CASES if rules.is_small_talk(case.question) != (case.kind == "chitchat")]
    assert wrong == []


@pytest.mark.parametrize("text", ["hi!", "Thanks, that's all for now.", "你好呀", "非常感谢！", "OK", "Ｈｅｌｌｏ"])
def test_greetings_and_thanks_are_small_talk(text: str) -> None:
    assert rules.is_small_talk(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "?",
        "hi, what does E-1024 mean?",
        "你好，保修期是多久？",
        "Is the OK lamp green?",
        "thanks to whom was it fixed?",
        "highest torque",
    ],
)
def test_a_question_that_begins_politely_is_no_small_talk(text: str) -> None:
    assert not rules.is_small_talk(text)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("E-1024 or E-1025, E-1024 again", ("E-1024", "E-1025")),
        ("工单INC-778801的状态", ("INC-778801",)),
        ("FK-22-B and NX40 and IO8A-x", ("FK-22-B", "NX40")),
        ("Ｅ－１０２４", ("E-1024",)),
        ("a 2024-05-01 date, 19.2 V, part two, v1", ()),
        ("", ()),
    ],
)
def test_ids_are_found_whole(text: str, ids: tuple[str, ...]) -> None:
    assert rules.find_ids(text) == ids


@pytest.mark.parametrize(
    ("identifier", "text", "expected"),
    [
        ("E-1024", "see e-1024.", True),
        ("E-1024", "E-10245", False),
        ("E-1024", "XE-1024", False),
        ("E-1024", "代码Ｅ－１０２４表示", True),
        ("FK-22", "FK-22-B", True),
        ("A.B", "AxB", False),
    ],
)
def test_an_id_is_not_found_inside_a_longer_one(identifier: str, text: str, expected: bool) -> None:
    assert rules.holds_id(identifier, text) is expected


def test_every_id_that_a_sample_question_names_stands_in_the_corpus_unless_it_is_unanswerable() -> None:
    corpus = "\n".join(f"{one['title']}\n{one['text']}" for one in DOCUMENTS)
    lost = {case.id: rules.lacking_ids(case.question, corpus) for case in CASES if case.answerable}
    assert {id_: ids for id_, ids in lost.items() if ids} == {}


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What does E-1024 mean?", True),
        ("控制器的保修期是多久？", True),
        ("Compare the NX40 and the NX60", False),
        ("NX40 和 NX60 有什么区别？", False),
        ("Which town does the supplier that supplies the relays of the RX line come from?", False),
        ("Does E-1024 come before E-1025?", False),
        ("word " * 23, False),
        ("字" * 43, False),
    ],
)
def test_only_a_short_question_of_one_fact_is_plain(question: str, expected: bool) -> None:
    assert rules.is_plain(question) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("How long is the warranty?", True),
        ("When was it delivered?", True),
        ("保修期是多久？", True),
        ("需要几个螺丝？", True),
        ("哪一年发布的？", True),
        ("Who supplies the relays?", False),
        ("继电器由谁供应？", False),
        ("Why is whenever misspelt?", False),
        ("Which lamp is lit when the code shows?", False),
        ("The pump failed. Since when is it repaired?", True),
    ],
)
def test_questions_for_a_number_are_told(text: str, expected: bool) -> None:
    assert rules.asks_for_number(text) is expected


def test_questions_for_a_number_are_answered_with_one_in_the_sample() -> None:
    # The rule withholds an answer, so where it says "number" the gold answer has to hold one.
    wrong = [
        (case.question, case.answer)
        for case in CASES
        if case.answerable
        and case.answer
        and rules.asks_for_number(case.question)
        and not any(map(rules.has_number, case.answer))
    ]
    assert wrong == []


@pytest.mark.parametrize("text", ["36 months", "thirty-six", "Once a year", "三十六个月", "每半年", "５０", "in May"])
def test_a_number_may_stand_in_words(text: str) -> None:
    assert rules.has_number(text)


@pytest.mark.parametrize("text", ["", "soon", "更换", "someone"])
def test_no_number_is_no_number(text: str) -> None:
    assert not rules.has_number(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("保修期", True),
        ("NX40 的保修期", True),
        ("What is 保修?", True),
        ("What is the meaning of 保修?", False),
        ("warranty", False),
        ("", False),
        ("123", False),
    ],
)
def test_the_language_of_a_text_is_told(text: str, expected: bool) -> None:
    assert rules.is_chinese(text) is expected


def test_the_language_of_every_sample_question_is_told() -> None:
    wrong = [case.question for case in CASES if case.lang and rules.is_chinese(case.question) != (case.lang == "zh")]
    assert wrong == []


def test_numbers_are_read_without_their_separators() -> None:
    assert rules.numbers("E-1024: 1,200 mA at １９.2 V, 1200") == {"1024", "1200", "19.2"}
    assert rules.numbers("none") == set()


@given(st.text())
def test_folding_is_stable(text: str) -> None:
    assert rules.fold(rules.fold(text)) == rules.fold(text)
    assert rules.bare(rules.bare(text)) == rules.bare(text)


def test_half_characters_are_replaced_and_whole_ones_kept() -> None:
    assert rules.repair("a\ud800b 中 😀 \ude00") == "a\ufffdb 中 😀 \ufffd"
    assert rules.repair("plain") == "plain"


@given(st.text(max_size=60))
def test_no_text_breaks_a_rule(text: str) -> None:
    rules.is_small_talk(text)
    rules.is_plain(text)
    rules.words(text)
    assert all(rules.holds_id(one, text) for one in rules.find_ids(text))
    assert rules.lacking_ids(text, text) == ()


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("保修期是多久？", "36 months", True),
        ("保修期是多久？", "36 个月", False),
        ("供应商是谁？", "Halden", False),
        ("用哪个型号？", "NX-220", False),
        ("How long is the warranty?", "36 months", False),
    ],
)
def test_english_words_for_a_chinese_question_are_the_other_language(
    question: str, answer: str, expected: bool
) -> None:
    assert rules.is_in_other_language(question, answer) is expected
