"""A corpus to an index: read, split, embed, write beside the old one, switch."""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from retrievers.dense import DenseIndex
from retrievers.documents import CorpusError, Reading, Skip, hash_document, read_documents
from retrievers.embedders import MULTILINGUAL, Embedder, count_tokens, load_embedder, read_max_tokens
from retrievers.lexical import LexicalWriter
from retrievers.locks import LOCK, IndexBusy, hold_lock, is_leased, make_leasable
from retrievers.manifest import (
    IndexNotFound,
    Manifest,
    find_generation,
    hash_corpus,
    read_manifest,
    switch_generation,
    write_manifest,
)
from retrievers.passages import Chunker, embedding_text, split_document
from retrievers.records import Document, Passage
from retrievers.store import Store
from retrievers.tokenizer import Tokenizer, load_tokenizer
from retrievers.vectors import VectorWriter

BATCH_SIZE = 256
T = TypeVar("T")

# Called with what is happening, how many are done, of how many (None: not known yet).
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did."""

    path: Path
    manifest: Manifest
    unchanged: bool
    n_embedded: int
    skipped: tuple[Skip, ...]
    seconds: float


def build_index(
    corpus: Path,
    path: Path,
    embedder: str | Embedder = MULTILINGUAL,
    *,
    chunker: Chunker | None = None,
    words: Iterable[str] = (),
    progress: Progress | None = None,
) -> BuildReport:
    """Build the index of a corpus at `path`, or reuse the one that is there when nothing changed.

    Args:
        corpus: A JSONL corpus, a file, or a folder of them.
        path: The index folder; made when missing.
        embedder: A name for `load_embedder`, or an embedder.
        chunker: How documents are split; its size is cut to what the embedder sees.
        words: Terms that the Chinese segmenter must keep whole.
        progress: Told how far the build is.

    Raises:
        CorpusError: The corpus is missing, empty or broken; nothing was written.
        EmbedderError: The embedder cannot be loaded; nothing was written.
        IndexBusy: Another process is writing this index.
        FileExistsError: `path` is a folder of something else.
    """
    started = time.monotonic()
    progress = progress or (lambda stage, done, total: None)
    reading = Reading()
    documents = _read_all(Path(corpus), reading, progress)
    model = load_embedder(embedder) if isinstance(embedder, str) else embedder
    plan = _Plan(Path(corpus), documents, model, _fit(chunker or Chunker(), model), load_tokenizer(tuple(words)))
    _check_target(path)
    with hold_lock(path):
        current = _find_current(path)
        if current is not None and plan.is_built_by(current):
            return BuildReport(path, current, True, 0, tuple(reading.skipped), time.monotonic() - started)
        generation = _new_generation(path)
        manifest = _write_generation(generation, plan, progress)
        switch_generation(path, generation)
        _drop_old_generations(path, generation)
    return BuildReport(path, manifest, False, manifest.n_passages, tuple(reading.skipped), time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class _Plan:
    corpus: Path
    documents: Sequence[tuple[Document, str]]
    embedder: Embedder
    chunker: Chunker
    tokenizer: Tokenizer

    def split(self, document: Document) -> list[Passage]:
        return split_document(document, self.chunker, lambda text: count_tokens(self.embedder, text))

    def is_built_by(self, manifest: Manifest) -> bool:
        """Tell whether building anew would give the index that this manifest describes."""
        return (
            manifest.corpus_version == self.corpus_version
            and manifest.embedder_fingerprint == self.embedder.fingerprint
            and manifest.embedder == self.embedder.name
            and manifest.chunker == self.chunker.fingerprint
            and manifest.tokenizer == self.tokenizer.fingerprint
        )

    @property
    def corpus_version(self) -> str:
        return hash_corpus((document.doc_id, content_hash) for document, content_hash in self.documents)


def _read_all(corpus: Path, reading: Reading, progress: Progress) -> list[tuple[Document, str]]:
    documents = []
    for document in read_documents(corpus, reading):
        documents.append((document, hash_document(document)))
        if len(documents) % 100 == 0:
            progress("reading documents", len(documents), None)
    progress("reading documents", len(documents), len(documents))
    return documents


def _fit(chunker: Chunker, embedder: Embedder) -> Chunker:
    """Cut the passage size to what the embedder sees, less a tenth for the title before the text."""
    limit = read_max_tokens(embedder)
    if limit is None or chunker.size <= 0.9 * limit:
        return chunker
    size = int(0.9 * limit)
    return Chunker(size, min(chunker.overlap, size // 5))


def _check_target(path: Path) -> None:
    if path.is_dir() and any(path.iterdir()) and not (path / LOCK).exists():
        raise FileExistsError(f"{path}: the folder holds something else than an index; name an empty or new one")
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path}: is a file; name a folder for the index")


def _find_current(path: Path) -> Manifest | None:
    try:
        return read_manifest(find_generation(path))
    except (IndexNotFound, ValueError):
        return None


def _new_generation(path: Path) -> Path:
    numbers = [int(folder.name.removeprefix("g")) for folder in path.glob("g[0-9]*")]
    generation = path / f"g{max(numbers, default=0) + 1:06d}"
    generation.mkdir()
    make_leasable(generation)
    return generation


def _drop_old_generations(path: Path, current: Path) -> None:
    for folder in path.glob("g[0-9]*"):
        if folder != current and not is_leased(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _write_generation(generation: Path, plan: _Plan, progress: Progress) -> Manifest:
    passages = _write_store(generation, plan, progress)
    dimension = _write_sides(generation, plan, passages, progress)
    manifest = Manifest(
        embedder=plan.embedder.name,
        embedder_fingerprint=plan.embedder.fingerprint,
        dimension=dimension,
        tokenizer=plan.tokenizer.fingerprint,
        words=plan.tokenizer.words,
        chunker=plan.chunker.fingerprint,
        corpus=str(plan.corpus),
        corpus_version=plan.corpus_version,
        n_documents=len(plan.documents),
        n_passages=len(passages),
    )
    write_manifest(generation, manifest)
    return manifest


def _write_store(generation: Path, plan: _Plan, progress: Progress) -> list[Passage]:
    passages: list[Passage] = []
    with closing(Store(generation / "store.sqlite", writable=True)) as store:
        for batch in batched(plan.documents, BATCH_SIZE):
            entries = [(document, content_hash, plan.split(document)) for document, content_hash in batch]
            store.add(entries)
            passages.extend(passage for _, _, split in entries for passage in split)
    progress("splitting into passages", len(passages), len(passages))
    return passages


def _write_sides(generation: Path, plan: _Plan, passages: Sequence[Passage], progress: Progress) -> int:
    dimension = 0
    progress("embedding passages", 0, len(passages))
    with (
        closing(DenseIndex(generation / "chroma")) as dense,
        closing(VectorWriter(generation / "vectors.f32")) as vectors,
        closing(LexicalWriter(generation / "lexical")) as lexical,
    ):
        for start, batch in enumerate(batched(passages, BATCH_SIZE)):
            texts = [embedding_text(passage) for passage in batch]
            rows = plan.embedder.embed_documents(texts)
            dimension = rows.shape[1]
            vectors.append(rows)
            dense.upsert([passage.passage_id for passage in batch], rows, [passage.metadata for passage in batch])
            for text in texts:
                lexical.append(plan.tokenizer(text))
            progress("embedding passages", start * BATCH_SIZE + len(batch), len(passages))
    return dimension


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut a sequence into runs of `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


__all__ = ["BuildReport", "CorpusError", "IndexBusy", "Progress", "build_index"]
