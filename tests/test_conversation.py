import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.conversation import find_subjects, follow_on, format_conversation, keeps_to
from programs.narrowing import Fields
from trainsets.cases import load_sample

FIELDS = Fields(
    {"product": "string", "region": "string"},
    {"product": ("NX-220", "KX-330"), "region": ("Nordics", "华南区", "华东区")},
)


def turns(*texts: str) -> list[dict[str, str]]:
    """A conversation; the user begins."""
    return [{"role": ("user", "assistant")[n % 2], "text": text} for n, text in enumerate(texts)]


SIX = ("q1", "a1", "q2", "a2", "q3", "a3")


def test_a_short_conversation_is_shown_as_it_is() -> None:
    history = turns("What is the warranty?", "36 months")
    assert format_conversation(history) == "user: What is the warranty?\nassistant: 36 months"


def test_the_conversations_of_the_sample_are_shown_whole() -> None:
    cases = [case for split in ("train", "dev", "test") for case in load_sample(split) if case.history]
    for case in cases:
        history = [{"role": turn.role, "text": turn.text} for turn in case.history]
        assert format_conversation(history) == "\n".join(f"{turn['role']}: {turn['text']}" for turn in history)
    assert len(cases) >= 10


def test_older_turns_are_kept_by_what_they_name() -> None:
    history = turns(
        "What is the lead time of Kestrel Components for the relay?", "Nine weeks, shipped from Bergen.",
        "2025 年第三季度华南区 KX-330 订了多少台？", "198 台，见《2025 年订单表》。",
        "What does INC-778832 say?", "A bad lot.",
        "thanks a lot", "You are welcome.",
        *SIX,
    )  # fmt: skip
    first, *recent = format_conversation(history, FIELDS).splitlines()
    assert first == ("earlier: Kestrel Components; Bergen; 华南区; KX-330; 2025 年订单表; INC-778832; thanks a lot")
    assert recent == ["user: q1", "assistant: a1", "user: q2", "assistant: a2", "user: q3", "assistant: a3"]


def test_an_older_question_that_names_nothing_keeps_its_first_words() -> None:
    history = turns("退货期是多久，需要哪些手续，运费谁付，" + "还要等多久" * 20, "三十天。", *SIX)
    [first] = [line for line in format_conversation(history).splitlines() if line.startswith("earlier")]
    assert first.startswith("earlier: 退货期是多久")
    assert first.endswith(" …")
    assert len(first) < 60


def test_what_the_last_turns_say_is_not_said_twice() -> None:
    history = turns("Where is the NX-220 made?", "In Porto.", "And the NX-220 fuse?", *SIX[1:])
    assert format_conversation(history).splitlines()[0] == "earlier: Porto"


def test_a_subject_that_comes_up_again_counts_where_it_was_last() -> None:
    history = turns("E-1024?", "ok", "E-1025?", "ok", "E-1024 again?", "ok", *SIX)
    assert format_conversation(history).splitlines()[0] == "earlier: E-1025; E-1024"


def test_of_too_many_subjects_the_latest_stay() -> None:
    history = turns(*(text for n in range(1000, 1200) for text in (f"What does E-{n} mean?", "ok")), *SIX)
    first = format_conversation(history).splitlines()[0]
    assert first.endswith("; E-1198; E-1199")
    assert "E-1100" not in first
    assert len(first) <= 250


def test_of_a_long_turn_the_start_stays_and_what_the_rest_names() -> None:
    text = "It trips below 19.2 V. " * 40 + "See INC-778832 and ask Polhavn Logistics."
    shown = format_conversation(turns("Why?", text)).splitlines()[1]
    assert shown.endswith("… (INC-778832; Polhavn Logistics)")
    assert len(shown) < 400


@pytest.mark.parametrize(
    ("text", "subjects"),
    [
        ("Which extra part lets an NX-220 talk RS-232?", ("NX-220", "RS-232")),
        ("Who supplies it? Falk Relais does, from the Nordics.", ("Falk Relais", "Nordics")),
        ("Yes, from six participants on.", ()),
        ("What Is The warranty?", ()),
        ("那华东区呢？", ("华东区",)),
        ("按《差旅费用管理办法》，每天 120 元。", ("差旅费用管理办法",)),
        ("", ()),
    ],
)
def test_subjects_are_ids_names_titles_and_values_of_the_index(text: str, subjects: tuple[str, ...]) -> None:
    assert find_subjects(text, ("NX-220", "Nordics", "华东区")) == subjects


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant"]), st.text(alphabet="ABc1-. \n中文区《》E？", max_size=400)),
        max_size=30,
    ),
    st.integers(1, 40),
)
def test_any_conversation_is_bounded_and_ends_with_its_last_turn(made: list[tuple[str, str]], times: int) -> None:
    history = [{"role": role, "text": text * times} for role, text in made]
    shown = format_conversation(history, FIELDS)
    assert len(shown) <= 2_700
    if history:
        last = history[-1]
        assert f"{last['role']}: {last['text'][:300].rstrip()}" in shown
    if len(history) <= 6 and all(len(turn["text"]) <= 300 for turn in history):
        assert shown == "\n".join(f"{turn['role']}: {turn['text']}" for turn in history)


HISTORY = turns("How much memory does the KX-330 have?", "8 MB.")


@pytest.mark.parametrize(
    ("standalone", "question", "expected"),
    [
        ("How much memory does the NX-400 have?", "And for the NX-400?", True),
        ("KX-310 的内存是多少？", "310 呢？", True),
        ("How much memory did the KX-330 have in 2024?", "And a year before?", True),
        ("How much memory does the NX-999 have?", "And for the other one?", False),
        ("How much memory does it have in the east?", "那华东区呢？", False),
        ("What about " + "the memory " * 60, "And then?", False),
        ("", "And then?", False),
        ("How much memory does the KX-330 have?", "And a year before?", False),  # the question before it
        ("How much memory does the KX-330 have?", "How much does it have?", True),  # there is nothing new in it
    ],
)
def test_a_question_made_to_stand_alone_is_still_that_question(standalone: str, question: str, expected: bool) -> None:
    assert keeps_to(standalone, question, HISTORY) is expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("310 呢？", "一台 KX-330 最多能配几块 PV-7？ 310 呢？"),
        ("要是没买保价呢，最多能赔多少？", "要是没买保价呢，最多能赔多少？"),
        ("And how much notice must be given to leave it?", "And how much notice must be given to leave it?"),
    ],
)
def test_what_could_not_be_made_to_stand_alone_follows_the_last_question_if_it_says_little(
    question: str, expected: str
) -> None:
    assert follow_on(question, turns("一台 KX-330 最多能配几块 PV-7？", "最多 3 块。")) == expected
    assert follow_on(question, turns("长" * 301, "最多 3 块。")) == follow_on(question, []) == question


def test_a_question_made_to_stand_alone_in_chinese_is_not_the_one_before_it() -> None:
    history = turns("现在出差餐补一天多少？", "按 2025 版 HR-51，每天 120 元。")
    assert not keeps_to("现在出差餐补一天多少？", "自己开车去的话怎么补？", history)
    assert keeps_to("现在出差自己开车去怎么补？", "自己开车去的话怎么补？", history)
