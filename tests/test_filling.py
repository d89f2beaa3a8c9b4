import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_embedder import HashEmbedder

from retrievers import BuildReport, build_index, dense, filling, generation, open_index


@pytest.fixture(autouse=True)
def small_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "BATCH_PASSAGES", 50)
    monkeypatch.setattr(dense.ChromaFolder, "batch_size", 50)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each write to Chroma had."""
    sizes: list[int] = []
    original = dense.DenseIndex.upsert

    def note(self: dense.DenseIndex, ids: list[str], *rest: object) -> None:
        original(self, ids, *rest)  # type: ignore[arg-type]
        sizes.append(len(ids))

    monkeypatch.setattr(dense.DenseIndex, "upsert", note)
    return sizes


def build(folder: Path, texts: dict[str, str]) -> BuildReport:
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in texts.items()]
    (folder / "c.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return build_index(folder / "c.jsonl", folder / "i", HashEmbedder())


def kill_in_write(number: int, folder: Path, torn: bool) -> Callable[[pytest.MonkeyPatch], None]:
    """Have Chroma's write of this number end the build: before it, or while the files of the graph are written."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original, calls = dense.DenseIndex.upsert, []

        def die(self: dense.DenseIndex, ids: list[str], *rest: object) -> None:
            calls.append(len(ids))
            if len(calls) < number:
                return original(self, ids, *rest)  # type: ignore[arg-type]
            if torn:
                original(self, ids, *rest)  # type: ignore[arg-type]
                last = max(folder.glob("g*"))
                [part] = last.glob("chroma/*/index_metadata.pickle")
                part.write_bytes(b"")  # as a killed writer leaves it
            raise KeyboardInterrupt

        monkeypatch.setattr(dense.DenseIndex, "upsert", die)

    return patch


def ids_in_chroma(folder: Path) -> list[str]:
    collection = open_index(folder, HashEmbedder())._dense
    assert collection is not None
    return sorted(collection.ids())


@pytest.mark.parametrize(("torn", "sent_again"), [(False, [50] * 4), (True, [50] * 6)])
def test_a_killed_filling_goes_on_after_its_last_whole_write_unless_the_graph_is_torn(
    tmp_path: Path, written: list[int], torn: bool, sent_again: list[int]
) -> None:
    texts = {f"d{n}": f"word{n}" for n in range(300)}
    with pytest.MonkeyPatch.context() as patch:
        kill_in_write(3, tmp_path / "i", torn)(patch)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, texts)
    written.clear()
    build(tmp_path, texts)
    assert written == sent_again
    assert ids_in_chroma(tmp_path / "i") == sorted(f"{doc_id}#0" for doc_id in texts)


@pytest.mark.parametrize("torn", [False, True])
def test_a_killed_edit_of_a_copied_collection_ends_as_one_that_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    monkeypatch.setattr(generation, "find_unreachable", lambda *_: [])  # of which there are some among so near ones
    texts = {f"d{n}": f"word{n}" for n in range(600)}
    build(tmp_path, texts)
    changed = {doc_id: f"{text} new" if n < 150 else text for n, (doc_id, text) in enumerate(texts.items())}
    del changed["d599"]
    with pytest.MonkeyPatch.context() as patch:
        kill_in_write(2, tmp_path / "i", torn)(patch)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, changed)
    manifest = build(tmp_path, changed).manifest
    assert manifest.n_edits == 150 + 1
    index = open_index(tmp_path / "i", HashEmbedder())
    assert index._dense is not None
    vectors = {passage_id: vector for passage_id, _, _, vector in index._dense.records()}
    assert sorted(vectors) == sorted(f"{doc_id}#0" for doc_id in changed)
    for row, passage in enumerate(index._store.iterate_passages()):
        np.testing.assert_allclose(vectors[passage.passage_id], index._vectors.read([row])[0], atol=1e-6)


def test_filling_again_sends_documents_of_many_passages_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: list[int]
) -> None:
    monkeypatch.setattr(filling, "BATCH_PASSAGES", 20)
    monkeypatch.setattr(dense.ChromaFolder, "batch_size", 20)
    lost = iter([["d0#0"]])
    monkeypatch.setattr(generation, "find_unreachable", lambda *_: next(lost, []))
    texts = {f"d{n}": " ".join(f"Sentence {i} of {n} is here." for i in range(600)) for n in range(8)}
    n_passages = build(tmp_path, texts).manifest.n_passages
    assert n_passages > 8 * 8
    assert sum(written) == 2 * n_passages
    assert max(written) < 20 + n_passages // 8
