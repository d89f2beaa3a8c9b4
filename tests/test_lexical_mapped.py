import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievers.lexical import LexicalIndex, LexicalWriter, finish_lexical, top_rows


def build(folder: Path, passages: list[list[str]], small: int) -> LexicalIndex:
    writer = LexicalWriter(folder)
    for passage in passages:
        writer.append(passage)
    writer.close()
    assert finish_lexical(folder, small) == ("bm25s" if len(passages) > small else "rank-bm25")
    return LexicalIndex(folder)


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_both_engines_give_the_same_ranking(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    words = [f"w{n}" for n in range(30)] + ["控制器", "e-1024"]
    passages = [rng.choices(words, k=rng.randrange(0, 25)) for _ in range(40)]
    folder = tmp_path_factory.mktemp("engines")
    small, large = build(folder / "s", passages, 1000), build(folder / "l", passages, 0)
    query = [*rng.choices(words, k=4), "unknown"]
    ours, theirs = small.score(query), large.score(query)
    # rank-bm25 multiplies every score by k1 + 1.
    np.testing.assert_allclose(ours, theirs * 2.5, rtol=1e-4, atol=1e-5)
    order = [row for row in top_rows(ours, 10).tolist() if ours[row] > 0]
    assert sorted(np.round(theirs[order], 4).tolist(), reverse=True) == np.round(theirs[order], 4).tolist()


def test_the_large_engine_scores_nothing_for_unknown_words(tmp_path: Path) -> None:
    index = build(tmp_path, [["a"], ["b"], []], 0)
    assert index.score(["zzz"]).tolist() == [0, 0, 0]
    assert index.score([]).tolist() == [0, 0, 0]


def test_the_large_engine_maps_its_files(tmp_path: Path) -> None:
    index = build(tmp_path, [["a", "b"], ["b"]], 0)
    assert isinstance(index._engine._model.scores["data"], np.memmap)  # type: ignore[attr-defined]


def test_a_killed_writers_rows_are_dropped_and_its_words_keep_their_ids(tmp_path: Path) -> None:
    writer = LexicalWriter(tmp_path)
    for passage in (["a", "b"], ["c"], ["d"]):
        writer.append(passage)
    writer.flush()  # killed here; only the first two rows were committed
    with (tmp_path / "vocabulary.txt").open("a") as file:
        file.write("torn")
    again = LexicalWriter(tmp_path, n_rows=2)
    again.append(["b", "e"])
    again.close()
    index = LexicalIndex(tmp_path)
    assert [top_rows(index.score([word]), 5).tolist() for word in "abce"] == [[0], [0, 2], [1], [2]]
    assert not index.score(["d"]).any()
    writer.close()
