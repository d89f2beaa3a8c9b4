import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from chromadb.api.shared_system_client import SharedSystemClient
from fake_embedder import HashEmbedder

from retrievers import IndexMismatch, IndexNotFound, build_index, open_index
from retrievers.build import BuildError, delete_documents
from retrievers.dense import ChromaFolder, CollectionDamaged
from retrievers.doctor import examine, measure_sizes, repair
from retrievers.index import IndexTorn
from retrievers.manifest import find_generation


@pytest.fixture
def index(tmp_path: Path) -> Path:
    lines = [{"id": f"d{n}", "text": f"text number {n} word{n}", "metadata": {"year": n}} for n in range(50)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    build_index(tmp_path / "c.jsonl", tmp_path / "i", HashEmbedder())
    return tmp_path / "i"


def problems(index: Path) -> dict[str, str]:
    findings = examine(index, HashEmbedder())
    return {finding.check: finding.message for finding in findings if not finding.ok and finding.check != "stale"}


def test_a_whole_index_has_no_problem(index: Path) -> None:
    assert problems(index) == {}


def test_a_passage_missing_from_chroma_is_found_and_mended(index: Path) -> None:
    dense = ChromaFolder().open(find_generation(index))
    dense.delete(["d7#0"])
    dense.close()
    assert "1 passages missing from Chroma" in problems(index)["ids"]
    repair(index, lambda *_: None, HashEmbedder())
    assert problems(index) == {}
    assert open_index(index, HashEmbedder()).search("text number 7 word7", k=1, mode="dense")[0].passage.doc_id == "d7"


def test_a_stranger_in_chroma_is_found_and_mended(index: Path) -> None:
    dense = ChromaFolder().open(find_generation(index))
    dense.upsert(["x#0"], np.ones((1, 64), np.float32), [{}])
    dense.close()
    assert "1 there that should not be" in problems(index)["ids"]
    repair(index, lambda *_: None, HashEmbedder())
    assert problems(index) == {}


def test_a_lost_chroma_folder_is_mended_without_embedding(index: Path) -> None:
    shutil.rmtree(find_generation(index) / "chroma")
    assert "50 passages missing" in problems(index)["ids"]
    embedder = HashEmbedder()
    repair(index, lambda *_: None, embedder)
    assert (problems(index), embedder.embedded) == ({}, [])


def test_torn_vectors_are_found_and_made_again(index: Path) -> None:
    path = find_generation(index) / "vectors.f32"
    path.write_bytes(path.read_bytes()[: 4 * 64 * 40])
    assert "vectors has 40" in problems(index)["rows"]
    with pytest.raises(IndexTorn, match=r"hold less than was written; mend it: .* doctor --fix"):
        open_index(index)
    embedder = HashEmbedder()
    repair(index, lambda *_: None, embedder)
    assert problems(index) == {}
    assert len(embedder.embedded) == 10


def test_broken_vectors_are_found_and_made_again(index: Path) -> None:
    path = find_generation(index) / "vectors.f32"
    rows = np.fromfile(path, dtype="<f4").reshape(-1, 64)
    rows[3] = np.nan
    rows.tofile(path)
    assert "1 vectors are not of length 1" in problems(index)["vectors"]
    repair(index, lambda *_: None, HashEmbedder())
    assert problems(index) == {}


def test_torn_tokens_are_found_and_cut_again(index: Path) -> None:
    path = find_generation(index) / "lexical" / "lengths.u32"
    path.write_bytes(path.read_bytes()[: 4 * 40])
    assert "BM25 has 40" in problems(index)["rows"]
    with pytest.raises(IndexTorn, match=r"hold less than was written; mend it: .* doctor --fix"):
        open_index(index)
    repair(index, lambda *_: None, HashEmbedder())
    assert problems(index) == {}
    found = open_index(index, HashEmbedder()).search("word47", mode="keyword")
    assert found[0].passage.doc_id == "d47"


def test_another_embedder_is_a_problem(index: Path) -> None:
    findings = {finding.check: finding for finding in examine(index, HashEmbedder("other"))}
    assert not findings["embedder"].ok


def test_a_changed_corpus_is_stale(index: Path) -> None:
    [stale] = [finding for finding in examine(index, HashEmbedder()) if finding.check == "stale"]
    assert stale.ok
    with (index.parent / "c.jsonl").open("a") as file:
        file.write('\n{"id": "new", "text": "x"}')
    [stale] = [finding for finding in examine(index, HashEmbedder()) if finding.check == "stale"]
    assert not stale.ok
    (index.parent / "c.jsonl").unlink()
    [stale] = [finding for finding in examine(index, HashEmbedder()) if finding.check == "stale"]
    assert "is gone" in stale.message


def test_a_key_of_mixed_types_is_a_problem(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "text": "x", "metadata": {"year": 2024}},
        {"id": "b", "text": "y", "metadata": {"year": "soon"}},
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    build_index(tmp_path / "c.jsonl", tmp_path / "i", HashEmbedder())
    assert "year holds 1 number, 1 string" in problems(tmp_path / "i")["metadata"]


def test_sizes_name_every_part(index: Path) -> None:
    assert {"chroma", "lexical", "store.sqlite", "vectors.f32"} <= set(measure_sizes(index))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe garbage", b"../elsewhere"])
def test_a_file_that_names_no_generation_is_told_and_a_build_writes_it_anew(index: Path, content: bytes) -> None:
    (index / "CURRENT").write_bytes(content)
    for look in (examine, open_index):
        with pytest.raises(IndexNotFound, match="CURRENT: names no folder of the index: it is damaged; build"):
            look(index, HashEmbedder())
    assert build_index(index.parent / "c.jsonl", index, HashEmbedder()).n_embedded == 0
    assert problems(index) == {}


def test_a_graph_that_chroma_cannot_read_is_told_and_mended(index: Path) -> None:
    [path] = find_generation(index).glob("chroma/*/index_metadata.pickle")
    path.write_bytes(b"garbage")
    SharedSystemClient.clear_system_cache()  # as in another process
    assert "doctor --fix" in problems(index)["ids"]
    with pytest.raises(CollectionDamaged, match="Chroma can't read its part of the index"):
        open_index(index, HashEmbedder()).search("text", mode="dense")
    with pytest.raises(BuildError, match=r"repeat the command to go on; if that fails too: .* doctor --fix"):
        delete_documents(index, ["d1"], HashEmbedder())
    repair(index, lambda *_: None, HashEmbedder())
    assert problems(index) == {}


def test_a_database_that_chroma_cannot_open_is_told_and_mended(index: Path) -> None:
    [path] = find_generation(index).glob("chroma/chroma.sqlite3")
    path.write_bytes(path.read_bytes()[:100] + b"garbage" * 1000)
    SharedSystemClient.clear_system_cache()  # as in another process
    assert "doctor --fix" in problems(index)["ids"]
    with pytest.raises(CollectionDamaged, match="Chroma can't read its part of the index"):
        open_index(index, HashEmbedder()).search("text", mode="dense")
    repair(index, lambda *_: None, HashEmbedder())
    assert problems(index) == {}


@pytest.mark.parametrize("name", ["store.sqlite", "vectors.f32", "manifest.json"])
def test_a_part_that_is_gone_or_no_text_is_told_and_a_build_writes_it_anew(index: Path, name: str) -> None:
    path = find_generation(index) / name
    path.write_bytes(b"\xff\xfe") if name.endswith("json") else path.unlink()
    with pytest.raises((IndexNotFound, IndexMismatch), match=r"damaged.*; build"):
        open_index(index, HashEmbedder())
    build_index(index.parent / "c.jsonl", index, HashEmbedder())
    assert problems(index) == {}
