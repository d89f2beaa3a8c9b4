from pathlib import Path

import numpy as np

from retrievers.lexical import LexicalIndex, LexicalWriter, top_rows


def build(folder: Path, *passages: str) -> LexicalIndex:
    writer = LexicalWriter(folder)
    for passage in passages:
        writer.append(passage.split())
    writer.close()
    return LexicalIndex(folder)


def test_a_term_in_half_of_the_passages_still_counts(tmp_path: Path) -> None:
    index = build(tmp_path, "a x", "a y", "b x", "b y")
    assert (index.score(["a"]) > 0).tolist() == [True, True, False, False]


def test_a_term_in_every_passage_never_scores_below_zero(tmp_path: Path) -> None:
    assert (build(tmp_path, "the a", "the b", "the c").score(["the"]) > 0).all()


def test_an_index_of_one_passage_finds_it(tmp_path: Path) -> None:
    assert top_rows(build(tmp_path, "only one").score(["one"]), 10).tolist() == [0]


def test_empty_passages_and_an_empty_index_score_nothing(tmp_path: Path) -> None:
    assert build(tmp_path / "a", "", "").score(["x"]).tolist() == [0, 0]
    assert build(tmp_path / "b").score(["x"]).tolist() == []


def test_rarer_terms_and_shorter_passages_rank_higher(tmp_path: Path) -> None:
    index = build(tmp_path, "common rare", "common other words here", "common", "nothing")
    assert top_rows(index.score(["common", "rare"]), 10).tolist() == [0, 2, 1]


def test_top_rows_breaks_ties_by_row() -> None:
    assert top_rows(np.array([1, 2, 2, 0, 1], np.float32), 3).tolist() == [1, 2, 0]
