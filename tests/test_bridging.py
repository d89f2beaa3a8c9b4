import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.bridging import content_words, lead_on, phrase, pick_linked
from retrievers.records import Hit, Passage


def hit(text: str, name: str = "a") -> Hit:
    return Hit(Passage(f"{name}#0", name, "", text, {}), 1.0, 1)


RECALL = hit("The recall of 2024 concerned relay P-4471 in all panels.")
RECALLED = "What does a pack of the relay from the 2024 recall cost and how long is its lead time?"
QUOTES = ("concerned relay P-4471",)


def test_the_next_search_holds_what_was_quoted_and_what_is_open() -> None:
    assert lead_on(RECALLED, QUOTES, [RECALL]) == "concerned relay P-4471 pack cost long lead time"


def test_chinese_words_that_stand_together_stay_together() -> None:
    found = hit("INC-778886：更换 P-4552 一只。")
    query = lead_on("INC-778886 换上去的零件，框架合同到哪天为止？", ("更换 P-4552 一只",), [found])
    assert query.startswith("更换 P-4552 一只 ")
    assert "框架合同" in query


@pytest.mark.parametrize(
    ("question", "quotes", "text"),
    [
        ("Which relay did the recall concern?", ("relay P-4471",), RECALL.passage.text),  # all of it is held
        (RECALLED, (), RECALL.passage.text),
        (RECALLED, ("the relay from the 2024 recall",), RECALL.passage.text),  # nothing that was not said
        ("召回涉及的继电器一包多少钱，交期多久？", QUOTES, RECALL.passage.text),  # another language
        ("", QUOTES, RECALL.passage.text),
        (RECALLED, QUOTES, ""),
    ],
)
def test_where_nothing_leads_on_there_is_no_search(question: str, quotes: tuple[str, ...], text: str) -> None:
    assert lead_on(question, quotes, [hit(text)]) == ""


def test_hits_that_speak_of_what_was_quoted_are_picked_and_only_the_first_ones() -> None:
    price, lamp, stock = hit("P-4471: 31.20", "price"), hit("lamps", "lamp"), hit("P-4471: 3 left", "stock")
    assert pick_linked([price, lamp, stock], RECALLED, QUOTES) == (price,)
    assert pick_linked([], RECALLED, QUOTES) == ()


def test_content_words_are_in_order_as_written_and_without_function_words() -> None:
    assert content_words("What is the lead time of P-4471?") == ["lead", "time", "P-4471"]
    assert content_words("KX-310 的风扇多久更换一次？")[:2] == ["KX-310", "风扇"]


def test_chinese_words_that_stand_together_in_the_text_stay_together() -> None:
    assert phrase(["KX-350", "典型", "功耗"], "KX-350 比 KX-310 典型功耗高出多少") == "KX-350 典型功耗"
    assert phrase(["lead", "time", "P-4471"], "What is the lead time of P-4471?") == "lead time P-4471"
    assert phrase([], "x") == ""


@given(st.text(max_size=60), st.lists(st.text(max_size=30), max_size=3), st.text(max_size=60))
def test_no_text_breaks_it(question: str, quotes: list[str], text: str) -> None:
    assert isinstance(lead_on(question, quotes, [hit(text)]), str)
    assert len(pick_linked([hit(text)], question, quotes)) <= 1


def test_a_text_that_was_pasted_is_no_question_with_two_halves() -> None:
    pasted = " ".join([RECALLED, *(f"word{n}" for n in range(15_000))])
    assert lead_on(pasted, QUOTES, [RECALL]) == ""
    assert lead_on(RECALLED, QUOTES, [RECALL]) != ""
