"""The normal form: what becomes alike, and what must stay apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainsets.normalize import facts, fold, length_in_words, tokens


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("24V", "24 V"),
        ("24VDC", "24 V DC"),
        ("The  Supplier.", "supplier"),
        ("ＮＸ－２２０", "nx-220"),
        ("1,250.00 EUR", "€1250"),
        ("12.50 EUR", "EUR 12.5"),
        ("it cost EUR 8,460, in full", "it cost 8460 EUR in full"),
        ("1 250 units".replace(" ", "\u202f", 1), "1250 units"),
        ("14 March 2025", "2025-03-14"),
        ("March 14th, 2025", "2025年3月14日"),
        ("14.03.2025", "Mar. 14 2025"),
        ("2025/3/14", "二〇二五年三月十四日"),
        ("25/12/2025", "12/25/2025"),
        ("March 2025", "2025年3月"),
        ("3月5日", "5 March"),
        ("三个月", "3个月"),
        ("二十四小时", "24小时"),
        ("一百二十台", "120台"),
        ("百分之十五", "15%"),
        ("15 percent", "15 %"),
        ("3.2万元", "¥32,000"),
        ("人民币3200元", "3200 RMB"),
        ("1.2 million", "1200000"),
        ("twenty-four months", "24 months"),
        ("one year", "1 year"),
        ("v4.2.1", "4.2.1"),
        ("−20 °C", "-20℃"),
        ("U.S.", "us"),
        ("24.0 V", "24 V"),
        ("电压：２４Ｖ。", "电压 24 V"),
    ],
)
def test_two_forms_of_the_same_are_one(one: str, other: str) -> None:
    assert tokens(one) == tokens(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("E-1024", "E-1042"),
        ("E-1024", "E 1024 x"),
        ("FW 4.10", "FW 4.1"),
        ("Class A", "Class B"),
        ("2 A", "2 V"),
        ("-20 °C", "20 °C"),
        ("100，200", "100200"),
        ("03/04/2025", "04/03/2025"),
        ("一般", "1般"),
        ("4.2.1", "4.2"),
    ],
)
def test_what_differs_stays_apart(one: str, other: str) -> None:
    assert tokens(one) != tokens(other)


def test_ids_numbers_and_chinese_characters_are_the_tokens() -> None:
    text = "NX-220控制器的INC-778801在2025年3月14日用了FW 4.2.1, read-only!"
    before = ("nx-220", "控", "制", "器", "的", "inc-778801", "在")
    assert tokens(text) == (*before, "2025", "month-03", "day-14", "用", "了", "fw", "4.2.1", "read", "only")
    assert facts(text) == {"nx-220", "inc-778801", "2025", "month-03", "day-14", "4.2.1"}


def test_a_part_of_a_date_stands_in_the_whole_one() -> None:
    whole = " ".join(tokens("14 March 2025"))
    for part in ("2025", "March 2025", "2025年3月", "14 March", "3月14日"):
        assert f" {' '.join(tokens(part))} " in f" {whole} "
    for other in ("2024", "April 2025", "15 March"):
        assert f" {' '.join(tokens(other))} " not in f" {whole} "
    assert tokens("1980-85") == ("1980-85",)


def test_an_impossible_date_is_left_as_it_is() -> None:
    assert "2025-45-99" not in tokens("45.99.2025")
    assert tokens("13月45日") == ("13", "月", "45", "日")


def test_fold_keeps_every_word_so_that_a_quote_can_be_found() -> None:
    assert fold("The  ＮＸ-220\nneeds") == "the nx-220 needs"


def test_a_chinese_character_is_shorter_than_a_word() -> None:
    assert length_in_words(tokens("supply voltage")) == 2
    assert length_in_words(tokens("供电电压")) == pytest.approx(2.4)


@given(st.text(max_size=80))
def test_any_text_has_a_normal_form_that_width_and_case_do_not_change(text: str) -> None:
    assert tokens(text) == tokens(text)
    assert all(token.strip() == token and token for token in tokens(text))


@given(st.lists(st.sampled_from("alpha beta 12 4.5 e-10 的 了".split()), max_size=8))
def test_full_width_is_the_same_text(words: list[str]) -> None:
    text = " ".join(words)
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    assert tokens(wide) == tokens(text)
