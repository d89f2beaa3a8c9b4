import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromadb.errors import InternalError
from fake_embedder import HashEmbedder

from retrievers import IndexMismatch, IndexNotFound, build_index, dense, open_index
from retrievers.index import Index

RECORDS = [
    {
        "id": "e1024",
        "title": "E-1024",
        "text": "Supply voltage too low on the backplane.",
        "metadata": {"product": "NX"},
    },
    {
        "id": "e1025",
        "title": "E-1025",
        "text": "Module layout differs from the project.",
        "metadata": {"product": "NX"},
    },
    {"id": "维护", "title": "维护手册", "text": "请先断电，然后打开控制器的盖子。", "metadata": {"year": 2024}},
    {"id": "long", "title": "Long", "text": "\n\n".join(f"Paragraph {n} about gears and belts." for n in range(300))},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("index")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in RECORDS), encoding="utf-8")
    build_index(corpus, folder / "i", HashEmbedder())
    return open_index(folder / "i", HashEmbedder())


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
def test_every_mode_finds_an_id_and_a_chinese_text(index: Index, mode) -> None:
    assert index.search("voltage E-1024", mode=mode)[0].passage.doc_id == "e1024"
    assert index.search("控制器的盖子", mode=mode)[0].passage.doc_id == "维护"


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
def test_ranks_count_from_one_and_scores_fall(index: Index, mode) -> None:
    hits = index.search("gears and belts", k=7, mode=mode)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len({hit.passage.passage_id for hit in hits}) == len(hits) > 1


def test_where_the_disk_is_full_dense_search_does_without_chroma(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise InternalError("error returned from database: (code: 13) database or disk is full")

    monkeypatch.setattr(dense.chromadb, "PersistentClient", refuse)
    there = open_index(index.path, HashEmbedder())
    assert there.search("gears", mode="dense") == index.search("gears", mode="dense", exact=True)
    with pytest.raises(OSError, match="No space left on device"):
        dense.ChromaFolder().open(index.path / "g000009")


def test_no_match_is_an_empty_list(index: Index) -> None:
    assert index.search("zzz qqq", mode="keyword") == []
    assert index.search("   ") == []


def test_k_above_the_number_of_passages_returns_what_there_is(index: Index) -> None:
    assert len(index.search("gears", k=10_000, mode="dense")) == index.manifest.n_passages


@pytest.mark.parametrize(("k", "mode"), [(0, "hybrid"), (-1, "dense"), (5, "fuzzy")])
def test_wrong_arguments_raise(index: Index, k: int, mode) -> None:
    with pytest.raises(ValueError, match=r"k must be|unknown mode"):
        index.search("x", k=k, mode=mode)


def test_passages_are_read_by_id_and_by_document(index: Index) -> None:
    passages = index.passages_of("long")
    assert [passage.passage_id for passage in passages] == [f"long#{n}" for n in range(len(passages))]
    assert len(passages) > 1
    assert index.passage("long#1") == passages[1]
    assert index.passage("e1024#0").metadata == {"product": "NX", "lang": "en"}
    assert index.passages_of("none") == []
    for missing in ("none#0", "long#999", "long", "#", "long#-1"):
        with pytest.raises(KeyError):
            index.passage(missing)


def test_hits_are_the_same_passages_that_ids_read(index: Index) -> None:
    for hit in index.search("Paragraph 12 gears E-1024 控制器", k=5):
        assert index.passage(hit.passage.passage_id) == hit.passage


def test_deepcopy_shares_the_index_and_its_retriever(index: Index) -> None:
    retriever = index.retriever("keyword")
    assert copy.deepcopy(index) is index
    assert copy.deepcopy({"r": retriever})["r"] is retriever
    assert retriever.search("E-1024", k=3) == index.search("E-1024", k=3, mode="keyword")


def test_threads_get_the_answers_that_one_thread_gets(index: Index) -> None:
    queries = [f"Paragraph {n} gears" for n in range(12)]
    expected = {query: index.search(query, k=3) for query in queries}
    fresh = open_index(index.path, HashEmbedder())
    found: dict[str, object] = {}
    threads = [threading.Thread(target=lambda q=q: found.update({q: fresh.search(q, k=3)})) for q in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_another_embedder_is_refused(index: Index) -> None:
    with pytest.raises(IndexMismatch, match="built with embedder 'hash'"):
        open_index(index.path, HashEmbedder("other"))


def test_a_missing_index_names_the_command_that_builds_one(tmp_path: Path) -> None:
    with pytest.raises(IndexNotFound, match="python -m retrievers build"):
        open_index(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        open_index(tmp_path)


def test_the_manifest_says_what_is_inside(index: Index) -> None:
    manifest = index.manifest
    assert (manifest.embedder, manifest.embedder_fingerprint, manifest.dimension) == ("hash", "hash-hash-64", 64)
    assert manifest.n_documents == len(RECORDS)
    assert manifest.n_passages == sum(len(index.passages_of(str(record["id"]))) for record in RECORDS)
    with pytest.raises(AttributeError):
        manifest.n_documents = 1  # type: ignore[misc]


SEARCH = """
import sys
sys.path.insert(0, {tests!r})
from fake_embedder import HashEmbedder
from retrievers import open_index
print(open_index({path!r}, HashEmbedder()).search("voltage E-1024", mode="dense")[0].passage.doc_id)
"""


def test_several_processes_search_one_index_at_once(index: Index) -> None:
    script = SEARCH.format(tests=str(Path(__file__).parent), path=str(index.path))
    index.search("voltage", mode="dense")  # this process has it open too
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in running] == ["e1024\n"] * 3


def test_a_filter_that_leaves_few_of_many_finds_them_all(tmp_path: Path) -> None:
    lines = [{"id": f"d{n}", "text": f"text {n}", "metadata": {"rare": n % 500 == 7}} for n in range(2_000)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    build_index(tmp_path / "c.jsonl", tmp_path / "i", HashEmbedder())
    many = open_index(tmp_path / "i", HashEmbedder())
    for mode in ("dense", "keyword", "hybrid"):
        found = {hit.passage.doc_id for hit in many.search("text", mode=mode, filters={"rare": True})}
        assert found == {"d7", "d507", "d1007", "d1507"}


def test_exact_search_ranks_by_the_true_similarity(index: Index) -> None:
    hits = index.search("gears and belts of the project", k=index.manifest.n_passages, mode="dense", exact=True)
    embedder = HashEmbedder()
    [query] = embedder.embed_queries(["gears and belts of the project"])
    rows = [index._store.find_row(hit.passage.passage_id) for hit in hits]
    assert [round(hit.score, 5) for hit in hits] == [round(float(v @ query), 5) for v in index._vectors.read(rows)]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_an_id_in_the_query_comes_first(index: Index) -> None:
    for mode in ("hybrid", "keyword"):
        assert (
            index.search("what does the error E-1025 of the supply voltage mean", mode=mode)[0].passage.doc_id
            == "e1025"
        )


def test_the_same_query_is_answered_from_a_bounded_cache(index: Index) -> None:
    fresh = open_index(index.path, HashEmbedder())
    first = fresh.search("gears", k=3)
    assert fresh.search("gears", k=3) == first
    info = fresh._cached_rows.cache_info()
    assert (info.hits, info.misses) == (1, 1)
    assert info.maxsize is not None


READ_ONLY = """
import os, sys
sys.path.insert(0, {tests!r})
from fake_embedder import HashEmbedder
from retrievers import open_index
HashEmbedder().embed_queries(["load everything while the interpreter's own files can be read"])
open_index({other!r}, HashEmbedder()).search("voltage")
os.setgid(65534); os.setuid(65534)
index = open_index({path!r}, HashEmbedder())
print(index.search("voltage E-1024", mode="keyword")[0].passage.doc_id)
print(index.search("voltage E-1024", mode="hybrid")[0].passage.doc_id)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else")
def test_an_index_in_a_folder_that_may_only_be_read_is_searched(index: Index) -> None:
    with tempfile.TemporaryDirectory() as outside:  # another pytest closes the folder above `tmp_path` to others
        Path(outside).chmod(0o755)
        path, other = (str(shutil.copytree(index.path, Path(outside, name))) for name in ("index", "other"))
        script = READ_ONLY.format(tests=str(Path(__file__).parent), path=path, other=other)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "e1024\ne1024\n", done.stderr


def test_an_index_tells_which_documents_and_passages_it_holds(tools: Any) -> None:
    held = ["cable", "cable#0", "zh-fan", "cable#1", "cables", "#0", "", 7]
    assert [one in tools.index for one in held] == [True, True, True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda manifest: "{", "the manifest of the index is damaged; build the index again"),
        (lambda manifest: "[]", "the manifest of the index is damaged"),
        (lambda manifest: json.dumps(manifest | {"n_passages": "many"}), "the manifest of the index is damaged"),
        (lambda manifest: json.dumps(manifest | {"words": 3}), "the manifest of the index is damaged"),
        (lambda manifest: json.dumps(manifest | {"schema": {"year": "int"}}), "the manifest of the index is damaged"),
        (lambda manifest: json.dumps(manifest | {"format": 1}), "the index has another format; build it again"),
        (lambda manifest: json.dumps(manifest | {"more": 1}), "the index has another format; build it again"),
    ],
)
def test_a_manifest_that_was_edited_is_one_line(
    index: Index, tmp_path: Path, edit: Callable[[dict[str, Any]], str], message: str
) -> None:
    shutil.copytree(index.path, tmp_path / "i")
    path = tmp_path / "i" / (tmp_path / "i" / "CURRENT").read_text().strip() / "manifest.json"
    path.write_text(edit(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(IndexMismatch, match=f"^{tmp_path}/i: {message}"):
        open_index(tmp_path / "i", HashEmbedder())
