"""Answer scores, held to an independent English EM/F1 and to Chinese checked by hand."""

import re
import string
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainsets.answers import (
    NoGoldAnswerError,
    answer_score,
    contains_answer,
    exact_match,
    falls_for_trap,
    group_recall,
    is_right,
    key_point_recall,
    token_f1,
)
from trainsets.cases import Case


def squad_normalize(text: str) -> str:
    """SQuAD's evaluate-v1.1.py, rewritten from its description."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def squad_f1(answer: str, gold: str) -> float:
    words, gold_words = squad_normalize(answer).split(), squad_normalize(gold).split()
    shared = sum((Counter(words) & Counter(gold_words)).values())
    if words == gold_words:
        return 1.0
    if not shared:
        return 0.0
    precision, recall = shared / len(words), shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)


english_words = st.sampled_from(
    "the a an red relay Supplier voltage, cabinet. (Oslo) 24; 1987, warranty; manager's".split()
)
english = st.lists(english_words, min_size=1, max_size=9).map(" ".join)


@given(english, english)
def test_english_agrees_with_the_squad_script_on_random_pairs(answer: str, gold: str) -> None:
    assume(squad_normalize(gold))  # an answer that is only an article stays one here
    assert token_f1(answer, [gold]) == pytest.approx(squad_f1(answer, gold))
    assert exact_match(answer, [gold]) == float(squad_normalize(answer) == squad_normalize(gold))


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("苏州", "苏州", 1.0),
        ("苏州市", "苏州", 0.8),  # 2 of 3 characters, 2 of 2
        ("杭州", "苏州", 0.5),
        ("供电电压为24 V", "24V", 2 * 2 / (7 + 2)),
        ("三个月", "3个月", 1.0),
        ("诺维克控制（苏州）有限公司", "诺维克控制(苏州)有限公司", 1.0),
        ("２０２５年３月１４日", "2025-03-14", 1.0),
        ("是的", "否", 0.0),
        ("王小明经理", "王小明", 2 * 3 / (5 + 3)),
    ],
)
def test_chinese_f1_counts_characters(answer: str, gold: str, f1: float) -> None:
    assert token_f1(answer, [gold]) == pytest.approx(f1)


def test_the_best_accepted_answer_counts() -> None:
    assert exact_match("24 volts", ["24 V", "24 volts"]) == 1
    assert token_f1("24 volts", ["nothing", "24 V"]) == pytest.approx(0.5)
    assert token_f1("anything", []) == 0


@pytest.mark.parametrize(
    ("answer", "accepted", "holds"),
    [
        ("The NX-220 needs 24V DC.", ["24 V DC"], True),
        ("It shows E-1024", ["24"], False),
        ("It is 124 V", ["24 V"], False),
        ("version 4.2.1", ["4.2"], False),
        ("控制器由王小明负责", ["王小明"], True),
        ("保修期为13个月", ["3个月"], False),
        ("是的，需要", ["是"], True),
        ("不是", ["是"], False),
        ("不可以", ["可以"], False),
        ("没有", ["有"], False),
        ("不需要", ["需要"], False),
        ("It is not supported", ["supported"], False),
        ("Yes, both are.", ["yes"], True),
        ("There is no yes in it", ["yes"], False),
        ("No, only one.", ["no"], True),
    ],
)
def test_an_answer_stands_in_a_text_as_whole_tokens_and_not_denied(
    answer: str, accepted: list[str], holds: bool
) -> None:
    assert contains_answer(answer, accepted) is holds


def case(**fields: object) -> Case:
    return Case.model_validate({"id": "c", "question": "q"} | fields, strict=False)


def score(gold: str, answer: str) -> float:
    return answer_score(case(answer=[gold]), answer)


def test_a_right_answer_in_any_form_is_full_and_a_wrong_number_is_nothing() -> None:
    assert score("24 V DC", "24VDC") == 1
    assert score("24 V DC", "The supply is 24 V DC.") == 1
    assert score("15 days", "30 days") == 0
    assert score("15 days", "15 weeks") == 0
    assert score("E-1024", "E-1042") == 0
    assert score("苏州", "杭州") == 0
    assert score("2025", "on 14 March 2025") == 1
    assert score("14 March 2025", "15 March 2025") == 0
    assert score("14 March 2025", "14 March 2024") == 0
    assert score("2025年3月14日", "2025年3月") < 1
    assert score("24 months", "24") > 0.5
    assert 0 < score("Anna Maria Lindqvist", "Anna Lindqvist") < 1


@pytest.mark.parametrize(
    ("answer", "points"),
    [("3", 1), ("3 days", 1), ("3 of them", 1), ("three", 1), ("3 weeks", 0), ("3 cm", 0), ("3天", 0)],
)
def test_a_bare_accepted_number_does_not_accept_another_unit(answer: str, points: float) -> None:
    assert answer_score(case(answer=["3", "3 days"]), answer) == points


def test_a_number_whose_unit_is_not_known_accepts_any() -> None:
    assert answer_score(case(answer=["3"]), "3 weeks") == 1


def test_rambling_past_the_room_costs_more_the_longer_it_is() -> None:
    short, long, longer = ("24 V " + "and so on " * n for n in (5, 50, 500))
    assert score("24 V", short) == 1
    assert 1 > score("24 V", long) > score("24 V", longer) > 0
    assert score("二十四伏", "二十四伏" + "等等" * 20) == 1


def test_a_long_gold_answer_is_scored_by_f1_itself() -> None:
    gold = "measurable quantities are also produced as a by product of typical nuclear power plant operation"
    answer = "it is produced as a by product of nuclear power plants"
    assert score(gold, answer) == pytest.approx(token_f1(answer, [gold]))


def test_every_group_must_be_hit_and_a_part_is_never_right() -> None:
    multi = case(answer=["24 V and 2 A"], answer_groups=[["24 V"], ["2 A", "2 amperes"]])
    assert answer_score(multi, "24 V, 2 amperes") == 1
    assert group_recall(multi, "24 V") == 0.5
    assert answer_score(multi, "24 V") == 0.25
    assert not is_right(multi, "24 V")
    assert answer_score(multi, "nothing") == 0


def test_key_points_are_recalled_in_any_accepted_phrasing() -> None:
    points = case(key_points=[["gloves", "手套"], ["power off", "断电"], ["two people"]])
    assert key_point_recall(points, "先断电，再戴手套") == pytest.approx(2 / 3)
    assert answer_score(points, "先断电，再戴手套") == pytest.approx(2 / 3)
    assert key_point_recall(case(answer=["x"]), "x") is None
    both = case(answer=["24 V"], key_points=[["DIN rail"], ["fuse"]])
    assert answer_score(both, "24 V on a DIN rail") == pytest.approx((1 + 0.5) / 2)


@pytest.mark.parametrize(
    ("answer", "points"),
    [
        ("45 days", 1),
        ("30 days", 0),
        ("45 days, or 30 days", 0),
        ("45 days, not 30 days", 1),
        ("45 days (previously 30 days)", 1),
        ("It was previously 30 days", 0),
        ("the period is 30 days.", 0),
    ],
)
def test_a_trap_given_instead_or_along_is_nothing_unless_it_is_set_aside(answer: str, points: float) -> None:
    assert answer_score(case(answer=["45 days"], wrong_answers=["30 days"]), answer) == points


def test_a_trap_in_chinese_is_set_aside_by_its_own_words() -> None:
    gold = case(answer=["45天"], wrong_answers=["30天"])
    assert answer_score(gold, "现为45天，原为30天") == 1
    assert answer_score(gold, "45天，不是30天") == 1
    assert answer_score(gold, "30天或45天") == 0


def test_a_wrong_answer_inside_the_right_one_is_no_trap() -> None:
    gold = case(answer=["24 V DC"], wrong_answers=["24 V"])
    assert answer_score(gold, "24 V DC") == 1
    assert answer_score(gold, "24 V") == 0


@pytest.mark.parametrize(
    ("answer", "points"),
    [
        ("NX-220", 1),
        ("NX-200", 0),
        ("The NX-220 draws more than the NX-200.", 1),
        ("The NX-200 draws more than the NX-220.", 0),
        ("NX-220比NX-200大", 1),
        ("NX-200比NX-220大", 0),
        ("与NX-200相比，NX-220更大", 1),
    ],
)
def test_of_two_named_in_the_question_the_first_claimed_counts(answer: str, points: float) -> None:
    choice = case(question="NX-200 or NX-220: which draws more?", answer=["NX-220"], wrong_answers=["NX-200"])
    assert answer_score(choice, answer) == points


def test_yes_and_no_are_told_by_how_the_answer_begins() -> None:
    gold = case(answer=["yes"], wrong_answers=["no"])
    assert answer_score(gold, "Yes, no tool is needed.") == 1
    assert answer_score(gold, "No, it does not.") == 0
    assert falls_for_trap(gold, "No.")
    assert answer_score(case(answer=["是"]), "不是，已停用") == 0
    assert answer_score(case(answer=["否", "不是"]), "不是，已停用") == 1


def test_abstention_is_right_only_where_nothing_can_be_found() -> None:
    assert answer_score(case(answerable=False), "not in the documents", abstained=True) == 1
    assert answer_score(case(answerable=False), "24 V") == 0
    assert answer_score(case(answer=["24 V"]), "24 V", abstained=True) == 0
    assert answer_score(case(answer=["24 V"]), "  ") == 0


def test_small_talk_wants_any_answer_but_no_abstention() -> None:
    greeting = case(kind="chitchat")
    assert answer_score(greeting, "Hello!") == 1
    assert answer_score(greeting, "The documents do not say.", abstained=True) == 0
    assert answer_score(greeting, "") == 0


def test_a_case_without_gold_answer_raises_instead_of_scoring() -> None:
    with pytest.raises(NoGoldAnswerError, match="case c"):
        answer_score(case(gold_ids=["d"]), "x")


@given(english, english)
def test_a_score_is_between_0_and_1_and_giving_the_gold_is_1(answer: str, gold: str) -> None:
    assert 0 <= answer_score(case(answer=[gold]), answer) <= 1
    if squad_normalize(gold):
        assert answer_score(case(answer=[gold]), gold) == 1
