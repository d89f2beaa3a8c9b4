from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.passages import Chunker, embedding_text, split_document
from retrievers.records import Document, Passage


def count_words(text: str) -> int:
    return len(text.split())


def split(text: str, size: int = 40, overlap: int = 8) -> list[Passage]:
    return split_document(Document("d", "T", text, {"product": "A1"}), Chunker(size, overlap), count_words)


SENTENCES = " ".join(f"Sentence number {n} says something here." for n in range(60))


def test_a_short_document_stays_one_passage() -> None:
    [passage] = split("# Head\n\nOne line.")
    assert passage == Passage("d#0", "d", "T", "# Head\n\nOne line.", {"product": "A1"})


def test_passages_end_at_sentences_and_overlap() -> None:
    passages = split(SENTENCES)
    assert len(passages) > 5
    assert all(passage.text.endswith(".") for passage in passages)
    for before, after in pairwise(passages):
        assert after.text.split(".")[0] in before.text


def test_chinese_splits_at_its_own_full_stops() -> None:
    text = "请先断电并挂牌。然后打开盖子！再检查接线；最后上电？" * 20
    passages = split_document(Document("d", "", text), Chunker(60, 10), len)
    assert len(passages) > 5
    assert all(passage.text[-1] in "。！；？" for passage in passages)


def test_the_heading_path_is_kept_and_leads_the_embedded_text() -> None:
    text = f"# Manual\n\n## Install\n\n{SENTENCES}\n\n## Repair\n\n{SENTENCES}"
    passages = split(text)
    headings = [passage.metadata.get("heading") for passage in passages]
    assert "Manual > Install" in headings
    assert headings[-1] == "Manual > Repair"
    assert embedding_text(passages[-1]).startswith("T\nManual > Repair\n")


def test_a_table_that_is_cut_repeats_its_header() -> None:
    table = "| code | meaning |\n|---|---|\n" + "".join(f"| E-{n} | fault number {n} |\n" for n in range(60))
    passages = split(f"{SENTENCES}\n\n{table}")
    parts = [passage for passage in passages if passage.text.startswith("| code | meaning |\n|---|---|\n")]
    assert len(parts) > 3
    assert all(f"E-{n} |" in table for n in range(60))
    assert {n for n in range(60) for part in parts if f"| E-{n} |" in part.text} >= set(range(10, 60))


def test_code_that_fits_is_not_cut() -> None:
    code = "```\n" + "\n".join(f"# step {n}" for n in range(12)) + "\n```"
    passages = split(f"{SENTENCES}\n\n{code}\n\n{SENTENCES}")
    assert sum(code in passage.text for passage in passages) == 1


def test_position_is_the_offset_in_the_text() -> None:
    for passage in split(SENTENCES):
        position = passage.metadata.get("position", 0)
        assert SENTENCES[int(position) :].startswith(passage.text[:20])


def test_a_line_without_any_stop_is_cut_by_length() -> None:
    passages = split_document(Document("d", "", "x" * 5000), Chunker(64, 8), len)
    assert max(len(passage.text) for passage in passages) <= 64
    assert "".join(passage.text for passage in passages).count("x") >= 5000


@given(st.text(alphabet="ab。.！# `-\n\t中文1", min_size=1, max_size=800), st.integers(16, 64))
def test_no_text_is_lost_and_no_passage_is_much_too_long(text: str, size: int) -> None:
    passages = split_document(Document("d", "", text), Chunker(size, size // 8), lambda part: (len(part) + 1) // 2)
    assert [passage.passage_id for passage in passages] == [f"d#{n}" for n in range(len(passages))]
    assert all(len(passage.text) <= 2.3 * size for passage in passages)
    whole, covered = text.strip(), set()
    for passage in passages:
        start = whole.index(passage.text, int(passage.metadata.get("position", 0)))
        covered.update(range(start, start + len(passage.text)))
    assert all(whole[place].isspace() for place in set(range(len(whole))) - covered)


@pytest.mark.parametrize(("size", "overlap"), [(8, 0), (64, 32), (64, -1)])
def test_sizes_that_cannot_work_are_refused(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match=r"size|overlap"):
        Chunker(size, overlap)


def test_of_a_long_text_only_samples_are_counted_and_each_but_once() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return count_words(text)

    text = " ".join(f"word{n}" for n in range(700))  # about 5,500 characters
    assert len(split_document(Document("d", "", text), Chunker(512, 0), count)) == 2
    assert sum(counted) == 3 * 800
    counted.clear()
    assert len(split_document(Document("d", "", text), Chunker(5000, 0), count)) == 1
    assert counted == []  # so few characters can't be so many tokens


@given(st.integers(1, 300), st.integers(16, 200))
def test_whether_a_text_stays_whole_is_decided_by_its_tokens(n_words: int, size: int) -> None:
    text = " ".join(f"w{n}" for n in range(n_words))
    whole = count_words(text) <= size
    assert (len(split_document(Document("d", "", text), Chunker(size, 0), count_words)) == 1) == whole


@pytest.mark.parametrize("rule", ["", "\n|---|---|"])
def test_a_table_of_one_long_row_is_kept_whole_in_parts(rule: str) -> None:
    row = f"| {' '.join(f'cell{n}' for n in range(200))} | end |"
    passages = split(row + rule)
    assert len(passages) > 1
    assert "".join(passage.text for passage in passages).replace(" ", "").startswith(row.replace(" ", ""))


@pytest.mark.parametrize(
    "text",
    ["a " * 2000 + "." * 200_000 + "b", "# a" + " " * 200_000 + "b", "# " + "#" * 200_000 + " b", '."' * 100_000],
)
def test_a_text_of_nothing_but_marks_is_split_in_a_moment(text: str) -> None:
    passages = split_document(Document("d", "", f"{SENTENCES}\n{text}"), Chunker(64, 8), lambda part: len(part) // 4)
    assert (passages[0].text[:20], passages[-1].text[-1]) == (SENTENCES[:20], text[-1])


def test_a_passage_is_not_filled_with_blanks() -> None:
    passages = split_document(Document("d", "", f"a{' ' * 5000}b{chr(10) * 5000}c"), Chunker(16, 0), count_words)
    assert [passage.text for passage in passages] == ["a", "b", "c"]


@pytest.mark.parametrize("columns", [3, 8, 40])
def test_the_header_that_a_part_of_a_table_repeats_counts(columns: int) -> None:
    row = "|".join(f"v{n:03}" for n in range(columns))
    table = f"|{row.replace('v', 'c')}|\n|{'---|' * columns}\n" + f"|{row}|\n" * 50
    passages = split_document(Document("d", "", table), Chunker(100, 10), len)
    assert max(len(passage.text) for passage in passages) <= 100
    assert any(passage.text.startswith("|c000") for passage in passages[1:]) == (columns == 3)


def test_a_heading_keeps_marks_of_its_own_and_a_long_one_is_text() -> None:
    text = f"# Use of C#\n\n{SENTENCES}\n\n## Closed ##\n\n{SENTENCES}\n\n# {'long ' * 50}\n\n{SENTENCES}"
    headings = {passage.metadata.get("heading") for passage in split(text)}
    assert headings == {"Use of C#", "Use of C# > Closed"}


def test_a_long_title_leaves_the_text_within_what_an_embedder_sees() -> None:
    passage = Passage("d#0", "d", "t" * 5000, "text", {"heading": "h" * 2000})
    assert len(embedding_text(passage)) < 1000
    assert embedding_text(passage).endswith("h\ntext")
    assert embedding_text(Passage("d#0", "d", "t" * 5000, "", {})) == "t" * 5000
