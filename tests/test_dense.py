"""The traps of Chroma, held shut. Each has cost somebody a day."""

import os
import pickle
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from chromadb.errors import ChromaError

from retrievers.dense import ChromaFolder, DenseIndex, is_disk_error
from retrievers.embedders import normalise


@pytest.fixture
def dense(tmp_path: Path):
    index = ChromaFolder().open(tmp_path)
    yield index
    index.close()


def vectors(*rows: list[float]) -> np.ndarray:
    return np.asarray(rows, dtype=np.float32)


def test_the_space_is_cosine_not_l2(dense: DenseIndex) -> None:
    dense.upsert(["long", "near"], vectors([10, 0], [0.6, 0.8]), [{}, {}])
    assert dense.query(vectors([1, 0])[0], 2) == ["long", "near"]


def test_no_embedding_function_is_called_when_a_folder_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("Chroma's own embedding function would download a model")

    monkeypatch.setattr("chromadb.utils.embedding_functions.DefaultEmbeddingFunction.__call__", refuse)
    for _ in range(2):
        index = ChromaFolder().open(tmp_path)
        assert index._collection._embedding_function is None
        index.upsert(["a"], vectors([1, 0]), [{}])
        assert index.query(vectors([1, 0])[0], 1) == ["a"]
        index.close()


def test_writing_an_id_again_replaces_it(dense: DenseIndex) -> None:
    dense.upsert(["a", "b"], vectors([1, 0], [0.8, 0.6]), [{}, {}])
    dense.upsert(["a"], vectors([0, 1]), [{}])
    assert dense.query(vectors([1, 0])[0], 1) == ["b"]
    assert dense.count() == 2


def test_more_records_than_one_batch_takes_are_all_written(dense: DenseIndex) -> None:
    n = dense._batch_size + 10
    rows = normalise(np.random.default_rng(0).standard_normal((n, 4)))
    dense.upsert([f"d{i}" for i in range(n)], rows, [{}] * n)
    assert dense.count() == n
    assert set(dense.ids()) == {f"d{i}" for i in range(n)}


def test_an_int_does_not_match_a_float_that_rounds_to_it(dense: DenseIndex) -> None:
    dense.upsert(["two", "more"], vectors([1, 0], [0, 1]), [{"n": 2.0}, {"n": 2.5}])
    assert dense.query(vectors([1, 1])[0], 5, {"n": {"$eq": 2.0}}) == ["two"]


def test_asking_for_more_than_there_is_returns_what_there_is(dense: DenseIndex) -> None:
    assert dense.query(vectors([1, 0])[0], 5) == []
    dense.upsert(["a"], vectors([1, 0]), [{}])
    assert dense.query(vectors([1, 0])[0], 5) == ["a"]


def test_a_record_without_metadata_is_accepted(dense: DenseIndex) -> None:
    dense.upsert(["a"], vectors([1, 0]), [{}])
    assert dense.count() == 1


def test_a_folder_opened_twice_shows_the_same_records(tmp_path: Path) -> None:
    first, second = ChromaFolder().open(tmp_path), ChromaFolder().open(tmp_path)
    first.upsert(["a"], vectors([1, 0]), [{}])
    assert second.query(vectors([1, 0])[0], 1) == ["a"]
    first.close()
    assert second.query(vectors([1, 0])[0], 1) == ["a"]
    second.close()


def test_deletions_leave_the_rest_reachable(dense: DenseIndex) -> None:
    rows = normalise(np.random.default_rng(1).standard_normal((400, 16)))
    dense.upsert([f"d{i}" for i in range(400)], rows, [{}] * 400)
    dense.delete([f"d{i}" for i in range(0, 400, 2)])
    assert dense.count() == 200
    assert all(dense.query(rows[i], 1) == [f"d{i}"] for i in range(1, 400, 2))


def graph_on_disk(folder: Path) -> list[int]:
    """How many records each graph of Chroma's holds on disk."""
    files = folder.glob("chroma/*/index_metadata.pickle")
    return [pickle.loads(path.read_bytes())["total_elements_added"] for path in files]


def test_each_write_ends_with_the_whole_graph_on_disk_so_that_opening_replays_nothing(tmp_path: Path) -> None:
    index = ChromaFolder().open(tmp_path)
    for n in (3, 5):
        index.upsert([f"d{n}-{i}" for i in range(n)], vectors(*([1.0, float(n), float(i)] for i in range(n))), [{}] * n)
        assert graph_on_disk(tmp_path) == [index.count()]
    index.close()


def test_a_large_build_writes_its_graph_seldom_and_is_whole_when_settled(tmp_path: Path) -> None:
    home = ChromaFolder()
    index = home.open(tmp_path, n_expected=1_000_000)
    rows = normalise(np.random.default_rng(0).standard_normal((50, 4)))
    index.upsert([f"d{i}" for i in range(50)], rows, [{}] * 50)
    assert graph_on_disk(tmp_path) == []
    index = home.settle(tmp_path, index)
    assert graph_on_disk(tmp_path) == [50]
    assert index.query(rows[7], 1) == ["d7"]
    assert home.settle(tmp_path, index) is index
    index.close()


@pytest.mark.parametrize(
    ("state", "sql", "expected"),
    [
        ("whole", "INSERT INTO b VALUES (1)", False),
        ("whole", "INSERT INTO a VALUES (1)", False),  # it has that one
        ("whole", "PRAGMA query_only = ON; INSERT INTO a VALUES (2)", True),
        ("locked", "INSERT INTO a VALUES (2)", True),
        ("no database", "INSERT INTO a VALUES (2)", True),
        ("in no folder", "INSERT INTO a VALUES (2)", True),
    ],
)
def test_what_a_disk_refuses_sqlite_is_told_from_a_wrong_call(
    tmp_path: Path, state: str, sql: str, expected: bool
) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.executescript("CREATE TABLE a (id INTEGER PRIMARY KEY); INSERT INTO a VALUES (1)")
        if state == "locked":
            other.execute("BEGIN EXCLUSIVE")
        if state == "no database":
            path.write_bytes(b"x" * 4_096)
        place = tmp_path / "none" / "a.sqlite" if state == "in no folder" else path
        with pytest.raises(sqlite3.Error) as error, closing(sqlite3.connect(place, timeout=0)) as connection:
            connection.executescript(sql)
    assert is_disk_error(error.value) == expected


@pytest.mark.parametrize(("n", "width"), [(1, 3), (10_000, 2)], ids=["another width", "too many at once"])
def test_a_wrong_call_of_chroma_is_no_refusal_of_the_disk(tmp_path: Path, n: int, width: int) -> None:
    with closing(ChromaFolder().open(tmp_path)) as dense:
        dense.upsert(["a"], np.ones((1, 2), np.float32), [{}])
        with pytest.raises(ChromaError) as error:
            dense._collection.upsert([str(one) for one in range(n)], np.ones((n, width), np.float32))
    assert not is_disk_error(error.value)


@pytest.mark.parametrize("broken", ["database", "graph"])
def test_a_broken_file_of_chroma_is_a_refusal_of_the_disk(tmp_path: Path, broken: str) -> None:
    with closing(ChromaFolder().open(tmp_path)) as dense:
        dense.upsert([str(one) for one in range(200)], np.eye(200, dtype=np.float32), [{}] * 200)
    for path in (tmp_path / "chroma").glob("chroma.sqlite3" if broken == "database" else "*/*"):
        path.write_bytes(path.read_bytes()[:100] + bytes(4_096))
    with pytest.raises(ChromaError) as error, closing(ChromaFolder().open(tmp_path)) as dense:
        dense.query(np.ones(200, np.float32), 5)
    assert is_disk_error(error.value)


def files_open_below(folder: Path) -> list[str]:
    opened = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    return [file for file in opened if file.startswith(str(folder))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux lists a process's open files there")
def test_an_opening_that_fails_takes_nothing_from_who_has_the_folder_open(tmp_path: Path) -> None:
    def rename(old: str, new: str) -> None:
        with closing(sqlite3.connect(tmp_path / "chroma" / "chroma.sqlite3")) as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")

    with closing(ChromaFolder().open(tmp_path)) as dense:
        dense.upsert(["a"], vectors([1, 0]), [{}])
        rename("collections", "hidden")
        with pytest.raises(ChromaError):
            ChromaFolder().open(tmp_path)
        rename("hidden", "collections")
        assert dense.query(vectors([1, 0])[0], 1) == ["a"]
    deadline = time.monotonic() + 10  # Chroma's threads close some files a moment later
    while files_open_below(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert files_open_below(tmp_path) == []
