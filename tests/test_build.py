import json
from pathlib import Path

import pytest
from fake_embedder import HashEmbedder

from retrievers import Chunker, CorpusError, IndexBusy, build_index, open_index
from retrievers.locks import hold_lock


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
    assert [hit.passage.doc_id for hit in after.search("gamma", mode="lexical")] == ["c"]
    assert after.search("alpha", mode="lexical") == []
    for mode in ("lexical", "dense", "hybrid"):
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
    assert open_index(tmp_path / "i", HashEmbedder()).search("alpha", mode="lexical")


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
