import errno
import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from fake_embedder import HashEmbedder

from retrievers import (
    Chunker,
    CorpusError,
    Index,
    IndexBusy,
    IndexNotFound,
    build,
    build_index,
    dense,
    filling,
    generation,
    open_index,
)
from retrievers.build import BuildError, delete_documents
from retrievers.doctor import examine, repair
from retrievers.lexical import LexicalWriter
from retrievers.locks import hold_lock
from retrievers.manifest import find_generation
from retrievers.passages import VERSION as SPLITTING
from retrievers.tokenizer import VERSION as CUTTING
from retrievers.vectors import VectorWriter


def write_corpus(path: Path, **texts: str) -> Path:
    path.write_text("".join(json.dumps({"id": k, "text": v}) + "\n" for k, v in texts.items()), encoding="utf-8")
    return path


def test_an_unchanged_corpus_is_not_embedded_again(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", a="alpha", b="beta")
    embedder = HashEmbedder()
    first = build_index(corpus, tmp_path / "i", embedder)
    assert (first.unchanged, first.n_embedded) == (False, 2)
    embedder.embedded.clear()
    second = build_index(corpus, tmp_path / "i", embedder)
    assert (second.unchanged, second.n_embedded, embedder.embedded) == (True, 0, [])
    assert second.manifest == first.manifest


def test_the_corpus_version_follows_the_content_not_the_order(tmp_path: Path) -> None:
    versions = [
        build_index(write_corpus(tmp_path / "c.jsonl", **texts), tmp_path / "i", HashEmbedder()).manifest.corpus_version
        for texts in ({"a": "x", "b": "y"}, {"b": "y", "a": "x"}, {"a": "x", "b": "z"}, {"a": "x"})
    ]
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


@pytest.mark.parametrize("change", ["embedder", "chunker", "words"])
def test_another_embedder_chunker_or_dictionary_builds_anew(tmp_path: Path, change: str) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", a="alpha")
    build_index(corpus, tmp_path / "i", HashEmbedder())
    changed = {
        "embedder": lambda: build_index(corpus, tmp_path / "i", HashEmbedder("other")),
        "chunker": lambda: build_index(corpus, tmp_path / "i", HashEmbedder(), chunker=Chunker(100, 10)),
        "words": lambda: build_index(corpus, tmp_path / "i", HashEmbedder(), words=["新词"]),
    }[change]()
    assert not changed.unchanged


def test_a_changed_corpus_changes_what_is_found_and_an_open_index_keeps_its_own(tmp_path: Path) -> None:
    build_index(write_corpus(tmp_path / "c.jsonl", a="alpha", b="beta"), tmp_path / "i", HashEmbedder())
    before = open_index(tmp_path / "i", HashEmbedder())
    build_index(write_corpus(tmp_path / "c.jsonl", c="gamma", b="beta"), tmp_path / "i", HashEmbedder())
    after = open_index(tmp_path / "i", HashEmbedder())
    assert [hit.passage.doc_id for hit in after.search("gamma", mode="keyword")] == ["c"]
    assert after.search("alpha", mode="keyword") == []
    for mode in ("keyword", "dense", "hybrid"):
        assert before.search("alpha", k=1, mode=mode)[0].passage.doc_id == "a"


def test_a_broken_corpus_writes_nothing_and_leaves_the_old_index(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": "a"', encoding="utf-8")
    with pytest.raises(CorpusError):
        build_index(tmp_path / "bad.jsonl", tmp_path / "i", HashEmbedder())
    assert not (tmp_path / "i").exists()
    build_index(write_corpus(tmp_path / "c.jsonl", a="alpha"), tmp_path / "i", HashEmbedder())
    with pytest.raises(CorpusError):
        build_index(tmp_path / "bad.jsonl", tmp_path / "i", HashEmbedder())
    assert open_index(tmp_path / "i", HashEmbedder()).search("alpha")


def test_a_failing_embedder_leaves_the_old_index(tmp_path: Path) -> None:
    class Failing(HashEmbedder):
        def embed_documents(self, texts: list[str]) -> object:
            raise MemoryError

    build_index(write_corpus(tmp_path / "c.jsonl", a="alpha"), tmp_path / "i", HashEmbedder())
    with pytest.raises(MemoryError):
        build_index(write_corpus(tmp_path / "c.jsonl", b="beta"), tmp_path / "i", Failing())
    assert open_index(tmp_path / "i", HashEmbedder()).search("alpha", mode="keyword")


def test_a_second_writer_is_told_who_holds_the_index(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", a="alpha")
    build_index(corpus, tmp_path / "i", HashEmbedder())
    with hold_lock(tmp_path / "i"), pytest.raises(IndexBusy, match=r"process \d+ .* is writing this index"):
        build_index(corpus, tmp_path / "i", HashEmbedder())
    assert build_index(corpus, tmp_path / "i", HashEmbedder()).unchanged


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", a="alpha")
    with pytest.raises(FileExistsError, match="something else"):
        build_index(corpus, tmp_path, HashEmbedder())
    with pytest.raises(FileExistsError, match="is a file"):
        build_index(corpus, corpus, HashEmbedder())


def test_progress_counts_up_to_the_number_of_documents(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int | None]] = []
    corpus = write_corpus(tmp_path / "c.jsonl", **{f"d{n}": f"text {n}" for n in range(300)})
    build_index(corpus, tmp_path / "i", HashEmbedder(), progress=lambda *call: calls.append(call))
    embedding = [(done, total) for stage, done, total in calls if stage == "indexing documents"]
    assert embedding[0] == (0, 300)
    assert embedding[-1] == (300, 300)
    assert len(embedding) > 2


def files(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
        os.utime(folder / f"{name}.md", (1_000_000_000, 1_000_000_000 + len(text)))
    return folder


def doc_ids(index: Index) -> set[str]:
    return {stored.doc_id for stored in index._store.documents()}


def test_only_changed_documents_are_read_split_and_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = files(tmp_path / "c", a="alpha text", b="beta text", c="gamma text")
    build_index(corpus, tmp_path / "i", HashEmbedder())
    files(corpus, b="beta text changed")
    read: list[str] = []
    original = build.read_file
    monkeypatch.setattr(build, "read_file", lambda path, *rest: (read.append(path.name), original(path, *rest))[1])
    embedder = HashEmbedder()
    report = build_index(corpus, tmp_path / "i", embedder)
    assert read == ["b.md"]
    assert embedder.embedded == ["beta text changed"]
    assert report.n_embedded == 1
    index = open_index(tmp_path / "i", HashEmbedder())
    assert index.search("changed", mode="keyword")[0].passage.doc_id == "b.md"
    assert index.search("gamma", k=1, mode="dense")[0].passage.doc_id == "c.md"


def test_a_line_changed_in_a_jsonl_corpus_is_embedded_alone(tmp_path: Path) -> None:
    texts = {f"d{n}": f"text number {n}" for n in range(20)}
    build_index(write_corpus(tmp_path / "c.jsonl", **texts), tmp_path / "i", HashEmbedder())
    embedder = HashEmbedder()
    build_index(write_corpus(tmp_path / "c.jsonl", **{**texts, "d7": "other"}), tmp_path / "i", embedder)
    assert embedder.embedded == ["other"]


def test_a_renamed_file_keeps_its_vectors(tmp_path: Path) -> None:
    corpus = files(tmp_path / "c", a="alpha text without a heading", b="beta")
    build_index(corpus, tmp_path / "i", HashEmbedder())
    (corpus / "a.md").rename(corpus / "z.md")
    embedder = HashEmbedder()
    build_index(corpus, tmp_path / "i", embedder)
    index = open_index(tmp_path / "i", HashEmbedder())
    assert embedder.embedded == []
    assert doc_ids(index) == {"z.md", "b.md"}
    assert [hit.passage.doc_id for hit in index.search("alpha", mode="keyword")] == ["z.md"]
    assert index.search("alpha text", k=1, mode="dense")[0].passage.doc_id == "z.md"


def test_a_removed_document_leaves_every_side(tmp_path: Path) -> None:
    texts = {f"d{n}": f"text number {n} unique{n}" for n in range(20)}
    build_index(write_corpus(tmp_path / "c.jsonl", **texts), tmp_path / "i", HashEmbedder())
    del texts["d3"]
    build_index(write_corpus(tmp_path / "c.jsonl", **texts), tmp_path / "i", HashEmbedder())
    index = open_index(tmp_path / "i", HashEmbedder())
    for mode in ("keyword", "dense", "hybrid"):
        assert "d3" not in {hit.passage.doc_id for hit in index.search("text unique3", k=50, mode=mode)}
    assert set(index._dense.ids()) == {f"{doc_id}#0" for doc_id in texts}


def test_ids_of_passages_are_stable_when_other_documents_change(tmp_path: Path) -> None:
    long = " ".join(f"Sentence {n} about machines." for n in range(400))
    build_index(write_corpus(tmp_path / "c.jsonl", a="first", b=long), tmp_path / "i", HashEmbedder())
    before = open_index(tmp_path / "i", HashEmbedder()).passages_of("b")
    build_index(write_corpus(tmp_path / "c.jsonl", z="new", b=long), tmp_path / "i", HashEmbedder())
    assert open_index(tmp_path / "i", HashEmbedder()).passages_of("b") == before
    assert len(before) > 2


def test_documents_of_another_corpus_stay_until_pruned(tmp_path: Path) -> None:
    one, two = (
        write_corpus(tmp_path / "1.jsonl", a="alpha", x="one"),
        write_corpus(tmp_path / "2.jsonl", b="beta", x="two"),
    )
    build_index(one, tmp_path / "i", HashEmbedder())
    report = build_index(two, tmp_path / "i", HashEmbedder())
    index = open_index(tmp_path / "i", HashEmbedder())
    assert (report.kept, doc_ids(index)) == (1, {"a", "b", "x"})
    assert index.passage("x#0").text == "two"
    assert build_index(two, tmp_path / "i", HashEmbedder()).unchanged
    with pytest.raises(BuildError, match="--prune"):
        build_index(two, tmp_path / "i", HashEmbedder(), chunker=Chunker(100, 10))
    build_index(two, tmp_path / "i", HashEmbedder(), prune=True)
    assert doc_ids(open_index(tmp_path / "i", HashEmbedder())) == {"b", "x"}


def test_changed_metadata_is_filtered_by_without_embedding_again(tmp_path: Path) -> None:
    def write(product: str) -> Path:
        lines = [
            {"id": f"d{n}", "text": f"text {n}", "metadata": {"product": product if n == 3 else "A"}} for n in range(9)
        ]
        (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        return tmp_path / "c.jsonl"

    build_index(write("A"), tmp_path / "i", HashEmbedder())
    embedder = HashEmbedder()
    build_index(write("B"), tmp_path / "i", embedder)
    index = open_index(tmp_path / "i", HashEmbedder())
    assert embedder.embedded == []
    for mode in ("keyword", "dense"):
        assert [hit.passage.doc_id for hit in index.search("text", mode=mode, filters={"product": "B"})] == ["d3"]
    assert index._dense.query(index._vectors.read([0])[0], 9, {"product": {"$eq": "B"}}) == ["d3#0"]


def test_deleted_documents_are_gone_and_come_back_with_the_next_build(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", a="alpha", b="beta", c="gamma")
    build_index(corpus, tmp_path / "i", HashEmbedder())
    delete_documents(tmp_path / "i", ["b"], HashEmbedder())
    assert doc_ids(open_index(tmp_path / "i", HashEmbedder())) == {"a", "c"}
    with pytest.raises(KeyError, match="no document 'b'"):
        delete_documents(tmp_path / "i", ["a", "b"], HashEmbedder())
    with pytest.raises(BuildError, match="no document would be left"):
        delete_documents(tmp_path / "i", ["a", "c"], HashEmbedder())
    build_index(corpus, tmp_path / "i", HashEmbedder())
    assert doc_ids(open_index(tmp_path / "i", HashEmbedder())) == {"a", "b", "c"}


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from fake_embedder import HashEmbedder
from retrievers import build_index
from retrievers import build, dense

calls = 0
class Dying(HashEmbedder):
    def embed_documents(self, texts):
        global calls
        calls += 1
        if {where!r} == "embed" and calls == 4:
            os.kill(os.getpid(), 9)
        print(len(texts), flush=True)
        return super().embed_documents(texts)

def die(*args, **kwargs):
    os.kill(os.getpid(), 9)

dense.ChromaFolder.batch_size = 300  # so some batches are sent to Chroma when it dies, and some are not
if {where!r} == "chroma":
    original = dense.DenseIndex.upsert
    def upsert(self, ids, *rest):
        original(self, ids[: len(ids) // 2], *(part[: len(ids) // 2] if part is not None else None for part in rest))
        if calls >= 3:
            die()
        original(self, ids, *rest)
    dense.DenseIndex.upsert = upsert
if {where!r} in ("write_manifest", "switch_generation"):
    setattr(build, {where!r}, die)
build_index(Path({corpus!r}), Path({index!r}), Dying())
"""


@pytest.mark.parametrize("where", ["embed", "chroma", "write_manifest", "switch_generation"])
def test_a_killed_build_leaves_the_old_index_and_loses_at_most_a_batch(tmp_path: Path, where: str) -> None:
    old = write_corpus(tmp_path / "old.jsonl", old="the old one")
    corpus = write_corpus(tmp_path / "c.jsonl", **{f"d{n}": f"text number {n} word{n}" for n in range(1500)})
    build_index(old, tmp_path / "i", HashEmbedder())
    tests = str(Path(__file__).parent)
    script = KILLED.format(tests=tests, where=where, corpus=str(corpus), index=str(tmp_path / "i"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    embedded = sum(map(int, done.stdout.split()))
    assert embedded >= 512
    before = open_index(tmp_path / "i", HashEmbedder())
    assert before.search("old", mode="keyword")[0].passage.doc_id == "old"
    assert before.search("old", mode="dense")[0].passage.doc_id == "old"
    embedder = HashEmbedder()
    build_index(corpus, tmp_path / "i", embedder, prune=False)
    assert len(embedder.embedded) <= 1500 - embedded + 2 * 256
    index = open_index(tmp_path / "i", HashEmbedder())
    assert index.manifest.n_documents == 1501
    assert set(index._dense.ids()) == {f"d{n}#0" for n in range(1500)} | {"old#0"}
    for n in (0, 300, 700, 1499):
        assert index.search(f"word{n}", k=1, mode="keyword")[0].passage.doc_id == f"d{n}"
        assert index.passage(f"d{n}#0").text == f"text number {n} word{n}"
    assert {f"g{2:06d}", f"g{3:06d}"} & {folder.name for folder in (tmp_path / "i").glob("g*")}


def test_a_vocabulary_that_a_killed_build_wrote_a_part_of_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {f"d{n}": f"word{n}" for n in range(20)}
    build_index(write_corpus(tmp_path / "c.jsonl", **texts), tmp_path / "i", HashEmbedder())
    corpus = write_corpus(tmp_path / "c.jsonl", **{**texts, "d7": "other", "d8": "words"})
    original, torn = LexicalWriter.flush, list[Path]()

    def tear(writer: LexicalWriter) -> None:
        original(writer)
        if not torn:
            torn.append(writer._folder / "vocabulary.txt")
            torn[0].write_bytes(torn[0].read_bytes()[:40])
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LexicalWriter, "flush", tear)
        with pytest.raises(KeyboardInterrupt):
            build_index(corpus, tmp_path / "i", HashEmbedder())
    build_index(corpus, tmp_path / "i", HashEmbedder())
    index = open_index(tmp_path / "i", HashEmbedder())
    for query, doc_id in (("other", "d7"), ("words", "d8"), ("word3", "d3"), ("word19", "d19")):
        assert [hit.passage.doc_id for hit in index.search(query, mode="keyword")] == [doc_id]


def test_a_build_that_was_killed_before_its_first_vector_is_no_obstacle_for_another_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {f"d{n}": f"word{n}" for n in range(20)}
    build_index(write_corpus(tmp_path / "c.jsonl", **texts), tmp_path / "i", HashEmbedder())

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dense.ChromaFolder, "copy", die)
        with pytest.raises(KeyboardInterrupt):
            build_index(write_corpus(tmp_path / "c.jsonl", **{**texts, "d7": "other"}), tmp_path / "i", HashEmbedder())
    build_index(write_corpus(tmp_path / "c.jsonl", **{**texts, "d8": "words"}), tmp_path / "i", HashEmbedder())
    index = open_index(tmp_path / "i", HashEmbedder())
    assert (index.passage("d7#0").text, index.passage("d8#0").text) == ("word7", "words")


def test_deleting_builds_on_what_another_process_finished_just_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(write_corpus(tmp_path / "c.jsonl", a="alpha", b="beta"), tmp_path / "i", HashEmbedder())
    waiting = [write_corpus(tmp_path / "d.jsonl", c="gamma")]

    @contextmanager
    def finish_the_other_first(path: Path) -> Iterator[None]:
        while waiting:
            build_index(waiting.pop(), path, HashEmbedder())
        with hold_lock(path):
            yield

    monkeypatch.setattr(build, "hold_lock", finish_the_other_first)
    delete_documents(tmp_path / "i", ["b"], HashEmbedder())
    assert doc_ids(open_index(tmp_path / "i", HashEmbedder())) == {"a", "c"}
    with pytest.raises(IndexNotFound):
        delete_documents(tmp_path / "none", ["b"], HashEmbedder())
    assert not (tmp_path / "none").exists()


def test_a_reader_during_a_build_sees_the_old_index_then_the_new(tmp_path: Path) -> None:
    build_index(write_corpus(tmp_path / "c.jsonl", a="alpha"), tmp_path / "i", HashEmbedder())
    seen: list[set[str]] = []

    class Watching(HashEmbedder):
        def embed_documents(self, texts: list[str]):
            seen.append(doc_ids(open_index(tmp_path / "i", HashEmbedder())))
            return super().embed_documents(texts)

    build_index(write_corpus(tmp_path / "c.jsonl", b="beta", c="gamma"), tmp_path / "i", Watching())
    seen.append(doc_ids(open_index(tmp_path / "i", HashEmbedder())))
    assert seen == [{"a"}, {"b", "c"}]


def test_old_generations_go_when_nobody_reads_them(tmp_path: Path) -> None:
    for n in range(4):
        build_index(write_corpus(tmp_path / "c.jsonl", a=f"text {n}"), tmp_path / "i", HashEmbedder())
    assert len(list((tmp_path / "i").glob("g*"))) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        build_index(write_corpus(tmp_path / "c.jsonl", a="x"), tmp_path / "ro" / "i", HashEmbedder())


@pytest.mark.parametrize("n_bytes", [8_000, 100_000], ids=["the first file", "Chroma's"])
def test_a_full_disk_is_one_error_leaves_the_old_index_and_a_repeat_goes_on(tmp_path: Path, n_bytes: int) -> None:
    build_index(write_corpus(tmp_path / "c.jsonl", a="alpha"), tmp_path / "i", HashEmbedder())
    corpus = write_corpus(tmp_path / "c.jsonl", b="beta")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))  # larger files can't be written
    try:
        with pytest.raises(BuildError, match=r"/i: the index can't be written: .*; repeat the command to go on"):
            build_index(corpus, tmp_path / "i", HashEmbedder())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert doc_ids(open_index(tmp_path / "i", HashEmbedder())) == {"a"}
    build_index(corpus, tmp_path / "i", HashEmbedder())
    assert doc_ids(open_index(tmp_path / "i", HashEmbedder())) == {"b"}


def test_what_does_not_say_its_file_is_told_with_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: VectorWriter, vectors: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(VectorWriter, "append", fail)
    with pytest.raises(BuildError, match=r"/i: the index can't be written: No space left on device; repeat"):
        build_index(write_corpus(tmp_path / "c.jsonl", a="alpha"), tmp_path / "i", HashEmbedder())


@pytest.mark.parametrize(
    "said", ["database disk image is malformed", "no such table: b", "UNIQUE constraint failed: a.id"]
)
def test_a_broken_database_is_told_in_one_line_and_a_wrong_call_is_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection:
        connection.executescript("CREATE TABLE a (id TEXT PRIMARY KEY); INSERT INTO a VALUES (1)")
    if "malformed" in said:
        other.write_bytes(other.read_bytes()[:4_096] + bytes(4_096))

    def fail(self: VectorWriter, vectors: object) -> None:
        with closing(sqlite3.connect(other)) as connection:
            connection.execute(f"INSERT INTO {'b' if 'table' in said else 'a'} VALUES (1)")

    monkeypatch.setattr(VectorWriter, "append", fail)
    with pytest.raises(BuildError if "malformed" in said else sqlite3.Error, match=said):
        build_index(write_corpus(tmp_path / "c.jsonl", a="alpha"), tmp_path / "i", HashEmbedder())


def test_tables_are_kept_for_sql_and_taken_over_when_their_file_did_not_change(tmp_path: Path) -> None:
    corpus = files(tmp_path / "c", a="alpha")
    (corpus / "Spare parts.csv").write_text("id,name,price,code\n1,belt,2.5,007\n2,gear,10,\n", encoding="utf-8")
    os.utime(corpus / "Spare parts.csv", (1_000_000_000, 1_000_000_000))
    build_index(corpus, tmp_path / "i", HashEmbedder())
    files(corpus, a="alpha changed")
    build_index(corpus, tmp_path / "i", HashEmbedder())
    index = open_index(tmp_path / "i", HashEmbedder())
    [table] = index.tables()
    assert (table.name, table.n_rows) == ("spare_parts", 2)
    assert dict(table.columns) == {"id": "NUMERIC", "name": "TEXT", "price": "NUMERIC", "code": "TEXT"}
    with closing(sqlite3.connect(index.tables_path)) as connection:
        rows = connection.execute("SELECT name, price, code FROM spare_parts WHERE price > 2 ORDER BY id").fetchall()
    assert rows == [("belt", 2.5, "007"), ("gear", 10, None)]
    assert index.search("gear", k=1, mode="keyword")[0].passage.text == "id: 2\nname: gear\nprice: 10"


def table(**rows: int) -> str:
    """A document with a table of two columns."""
    return "\n".join(["| Region | Orders |", "|---|---|", *(f"| {name} | {n} |" for name, n in rows.items())])


def read_tables(path: Path) -> dict[str, tuple[str, list[tuple[object, ...]]]]:
    """The tables of an index: the document and the rows of each."""
    index = open_index(path, HashEmbedder())
    tables = {}
    if index.tables_path.exists():
        with closing(sqlite3.connect(index.tables_path)) as connection:
            for info in index.tables():
                rows = connection.execute(f"SELECT * FROM {info.name}").fetchall()  # a name that needs no quotes
                tables[info.name] = (info.doc_id, rows)
    return tables


def test_a_table_within_a_document_is_kept_for_sql_as_long_as_it_stands_there(tmp_path: Path) -> None:
    corpus, path = tmp_path / "c.jsonl", tmp_path / "i"
    build_index(write_corpus(corpus, a=table(Alps=1, Nordics=2), b="beta", c=table(x=3, y=4)), path, HashEmbedder())
    a, c = ("a", [("Alps", 1), ("Nordics", 2)]), ("c", [("x", 3), ("y", 4)])
    assert sorted(read_tables(path).values()) == [a, c]
    other = write_corpus(tmp_path / "other.jsonl", o="omega")
    build_index(other, path, HashEmbedder())  # the first corpus is not read again
    assert sorted(read_tables(path).values()) == [a, c]
    delete_documents(path, ["c"], HashEmbedder())
    assert list(read_tables(path).values()) == [a]
    build_index(write_corpus(corpus, a="no table", b="beta"), path, HashEmbedder())
    assert read_tables(path) == {}


def test_names_in_sql_need_no_quotes_and_a_row_of_totals_is_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "order.csv").write_text(
        "Order,KX-330,kx 330,1-9 pcs,单价（元）,\nA,1,2,3,4,5\nB,1,2,3,4,5\nTotal,2,4,6,8,10\n", encoding="utf-8"
    )
    build_index(tmp_path / "c", tmp_path / "i", HashEmbedder())
    [info] = open_index(tmp_path / "i", HashEmbedder()).tables()
    assert (info.name, info.n_rows) == ("order_", 2)
    assert [name for name, _ in info.columns] == ["Order_", "KX_330", "kx_330_2", "c_1_9_pcs", "单价_元", "column_6"]
    with closing(sqlite3.connect(open_index(tmp_path / "i", HashEmbedder()).tables_path)) as connection:
        found = connection.execute("SELECT SUM(KX_330), SUM(c_1_9_pcs), MAX(单价_元) FROM order_").fetchall()
    assert found == [(2, 6, 4)]


def test_a_table_is_the_same_however_often_it_is_taken_over(tmp_path: Path) -> None:
    corpus, path = tmp_path / "c.jsonl", tmp_path / "i"
    build_index(write_corpus(corpus, a=table(x=1, y=2, z=3, Subtotal=6, Total=6)), path, HashEmbedder())
    before = open_index(path, HashEmbedder()).tables()
    for name in ("one", "two"):
        build_index(write_corpus(tmp_path / f"{name}.jsonl", **{name: "omega"}), path, HashEmbedder())
    assert open_index(path, HashEmbedder()).tables() == before
    assert list(read_tables(path).values()) == [("a", [("x", 1), ("y", 2), ("z", 3)])]


def test_an_english_embedder_is_found_blind_for_chinese_and_hybrid_follows_bm25(tmp_path: Path) -> None:
    class EnglishOnly(HashEmbedder):
        def embed_queries(self, texts: list[str]):
            return super().embed_queries([text if text.isascii() else "unknown" for text in texts])

    parts = [
        "控制器",
        "电源",
        "模块",
        "故障",
        "代码",
        "备份",
        "固件",
        "安装",
        "手册",
        "接线",
        "端子",
        "温度",
        "报警",
        "冗余",
        "同步",
    ]
    texts = {
        f"z{n}": f"{parts[n % 15]}{parts[(n // 15) % 15]}第{n}项需要检查并记录编号{n}的{parts[(n * 7) % 15]}。"
        for n in range(60)
    }
    texts |= {f"e{n}": f"Item {n} of the belts and gears list, part number {n * 7} in rack {n * 3}." for n in range(60)}
    build_index(write_corpus(tmp_path / "c.jsonl", **texts), tmp_path / "i", EnglishOnly())
    index = open_index(tmp_path / "i", EnglishOnly())
    assert index.manifest.dense_weights["zh"] == 0
    assert index.manifest.dense_weights["en"] > 0
    query = "编号17的检查"
    assert [h.passage for h in index.search(query)] == [h.passage for h in index.search(query, mode="keyword")]


def test_a_collection_that_lost_records_is_filled_again_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = dense.DenseIndex.upsert
    lost: list[int] = []

    def lose_the_first(self: dense.DenseIndex, ids: list[str], *rest: object) -> None:
        if lost:
            original(self, ids, *rest)
        lost.append(len(ids))

    monkeypatch.setattr(dense.DenseIndex, "upsert", lose_the_first)
    build_index(write_corpus(tmp_path / "c.jsonl", a="alpha", b="beta"), tmp_path / "i", HashEmbedder())
    assert lost == [2, 2]
    assert set(open_index(tmp_path / "i", HashEmbedder())._dense.ids()) == {"a#0", "b#0"}


def test_a_collection_is_filled_again_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    original = dense.DenseIndex.upsert

    def lose_the_first(index: dense.DenseIndex, ids: list[str], *rest: object) -> None:
        if written:
            original(index, ids, *rest)  # type: ignore[arg-type]
        written.append(len(ids))

    monkeypatch.setattr(dense.DenseIndex, "upsert", lose_the_first)
    monkeypatch.setattr(filling, "BATCH_PASSAGES", 100)
    monkeypatch.setattr(dense.ChromaFolder, "batch_size", 100)
    names = {f"d{n}": f"word{n}" for n in range(1_000)}
    build_index(write_corpus(tmp_path / "c.jsonl", **names), tmp_path / "i", HashEmbedder())
    assert written == [100] * 20
    assert len(set(open_index(tmp_path / "i", HashEmbedder())._dense.ids())) == 1_000


def test_reading_the_passages_of_a_document_costs_the_same_however_many_others_there_are(tmp_path: Path) -> None:
    steps = []
    for name, n in (("few", 3), ("many", 300)):
        corpus = write_corpus(tmp_path / f"{name}.jsonl", **{f"d{number}": f"word{number}" for number in range(n)})
        build_index(corpus, tmp_path / name, HashEmbedder())
        store = open_index(tmp_path / name, HashEmbedder())._store
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        store._connection.set_progress_handler(count, 1)
        assert [passage.passage_id for passage in store.passages_of("d1")] == ["d1#0"]
        store._connection.set_progress_handler(None, 1)
        steps.append(counted)
    assert steps[1] < steps[0] + 50


def test_a_large_graph_may_miss_a_few_and_a_small_one_none() -> None:
    assert generation.count_tolerated(100_000, 50) == 0
    assert generation.count_tolerated(1_000_000, 50) == 2


def test_a_collection_with_unreachable_records_is_filled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    original = dense.DenseIndex.upsert
    monkeypatch.setattr(
        dense.DenseIndex, "upsert", lambda self, ids, *rest: (written.append(len(ids)), original(self, ids, *rest))
    )
    monkeypatch.setattr(generation, "find_unreachable", lambda *_: ["a#0"])
    build_index(write_corpus(tmp_path / "c.jsonl", a="alpha", b="beta"), tmp_path / "i", HashEmbedder())
    assert written == [2] * (1 + generation.N_REBUILDS)  # again, and not for ever


def test_an_index_of_an_earlier_version_says_so_until_it_is_built_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (write_corpus(tmp_path / f"{n}.jsonl", **{f"{n}a": "alpha", f"{n}b": "beta"}) for n in (1, 2))
    build_index(one, tmp_path / "i", HashEmbedder())
    age(tmp_path / "i")
    said = "passages are cut otherwise now ({}, not structure-0) and words are cut otherwise now ({}, not bilingual-0)"
    said = said.format(SPLITTING, CUTTING) + "; build it again"
    assert said in next(f.message for f in examine(tmp_path / "i", HashEmbedder()) if f.check == "version" and not f.ok)
    assert open_index(tmp_path / "i", HashEmbedder()).search("alpha")[0].passage.doc_id == "1a"
    assert said in caplog.text
    # Deleting and mending keep the passages, which are still those of the earlier version.
    delete_documents(tmp_path / "i", ["1b"], HashEmbedder())
    repair(tmp_path / "i", lambda *_: None, HashEmbedder())
    assert open_index(tmp_path / "i", HashEmbedder()).manifest.chunker == "structure-0 size=512 overlap=96"
    with pytest.raises(BuildError, match="split by an earlier version; drop them with --prune"):
        build_index(two, tmp_path / "i", HashEmbedder())
    build_index(one, tmp_path / "i", HashEmbedder())
    assert doc_ids(open_index(tmp_path / "i", HashEmbedder())) == {"1a", "1b"}
    assert [finding for finding in examine(tmp_path / "i", HashEmbedder()) if not finding.ok] == []


def age(path: Path) -> None:
    """Make an index one that an earlier version built."""
    manifest = find_generation(path) / "manifest.json"
    text = manifest.read_text(encoding="utf-8").replace(SPLITTING, "structure-0").replace(CUTTING, "bilingual-0")
    manifest.write_text(text, encoding="utf-8")


def test_an_embedder_that_sees_too_little_is_refused(tmp_path: Path) -> None:
    embedder = HashEmbedder()
    embedder.max_tokens = 16  # type: ignore[attr-defined]
    with pytest.raises(BuildError, match=r"'hash' sees 16 tokens.*at least 16 tokens, got 14; choose another"):
        build_index(write_corpus(tmp_path / "c.jsonl", a="alpha"), tmp_path / "i", embedder)
    assert not (tmp_path / "i").exists()
