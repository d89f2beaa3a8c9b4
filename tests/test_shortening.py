from programs.shortening import Shown, shorten
from retrievers.records import Hit, Passage


def shown(number: int, body: str) -> Shown:
    return Shown(
        f"title {number}", body, Hit(Passage(f"d{number}#0", f"d{number}", f"title {number}", body), 1.0, number)
    )


def body_of(body: str, *quotes: str, question: str = "torque?") -> str:
    """The one passage that is left of one."""
    text, _ = shorten([shown(1, body)], quotes, question)
    return text.removeprefix("<passage 1> title 1\n").removesuffix("\n</passage>")


def test_quotes_are_kept_word_for_word_and_passages_numbered_anew() -> None:
    long = " ".join(f"Sentence {n} says nothing." for n in range(40)) + " The torque is 0.6 Nm. " + "More of it. " * 40
    text, numbers = shorten(
        [shown(1, "x. " * 300), shown(2, "y"), shown(3, long)], ["The torque is 0.6 Nm."], "torque?"
    )
    assert numbers == {1: 1, 3: 2}
    assert "The torque is 0.6 Nm." in text
    assert text.startswith("<passage 1> title 1\n")
    assert "<passage 2> title 3\n" in text
    assert len(text) < 330


def test_a_passage_is_cut_to_the_line_of_the_quote_and_its_neighbours() -> None:
    table = (
        "# Prices\n| P-1 | fuse | 2.10 |\n| P-2 | relay | 31.20 |\n| P-3 | lamp | 9.90 |\n" + "| P-9 | x | 1.00 |\n" * 9
    )
    assert body_of(table, "P-2 | relay | 31.20") == (
        "… | P-1 | fuse | 2.10 |\n| P-2 | relay | 31.20 |\n| P-3 | lamp | 9.90 | …"
    )


def test_a_heading_and_a_bare_number_are_no_neighbours() -> None:
    clauses = "2. Price: fixed.\n3. Payment: 45 days net.\n4. " + "Delay costs. " * 30
    assert body_of(clauses, "45 days net") == "… Payment: 45 days net. …"
    assert body_of("# 供电\n额定电压 24 V。\n## 端子\n" + "接线。" * 90, "24 V") == "… 额定电压 24 V。 …"


def test_lines_of_two_quotes_stand_with_a_mark_between_them() -> None:
    body = "The torque of the screws is 0.6 Nm. " + "Nothing here to be seen at all. " * 20 + "The cable is 140 m long."
    text = body_of(body, "0.6 Nm", "140 m")
    assert text.startswith("The torque of the screws is 0.6 Nm.")
    assert text.endswith("The cable is 140 m long.")
    assert text.count("…") == 1
    assert len(text) < 200


def test_a_chinese_passage_is_given_fewer_characters_for_as_many_tokens() -> None:
    zh = body_of("".join(f"第{n}段只是一些说明文字而已。" for n in range(40)))
    en = body_of("".join(f"Sentence {n} is only some words. " for n in range(40)))
    assert len(zh) < 60 < len(en) < 120


def test_a_second_passage_is_shown_to_tell_from_and_no_third() -> None:
    passages = [shown(1, "The torque is 0.6 Nm."), shown(2, "a"), shown(3, "The cable is 140 m."), shown(4, "b")]
    one, _ = shorten(passages, ["torque is 0.6 Nm"], "?")
    both, numbers = shorten(passages, ["torque is 0.6 Nm", "cable is 140 m"], "?")
    none, _ = shorten(passages, [], "?")
    assert [text.count("<passage") for text in (one, both, none)] == [2, 2, 2]
    assert numbers == {1: 1, 3: 2}


def test_a_quote_over_several_lines_keeps_them_all() -> None:
    assert "The torque\nis 0.6 Nm." in body_of(
        "First line of it.\nThe torque\nis 0.6 Nm.\n" + "More. " * 60, "torque is 0.6 Nm"
    )
