"""One generation of an index: written in batches that survive a kill, read under a lease."""

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from retrievers.dense import ChromaFolder, DenseHome, DenseIndex
from retrievers.embedders import Embedder, Vectors, count_tokens
from retrievers.filling import CollectionWriter, Progress, batch_by_passages, prepare_collection
from retrievers.lexical import LexicalWriter, TokenFile, finish_lexical
from retrievers.locks import Lease
from retrievers.manifest import Manifest, read_manifest
from retrievers.metadata import Schema, normalise
from retrievers.passages import VERSION as SPLITTING
from retrievers.passages import Chunker, embedding_text, lexical_text, parse_chunker, split_document
from retrievers.records import Document, Passage, Scalar
from retrievers.store import Store, StoredDocument
from retrievers.tokenizer import Tokenizer, load_tokenizer
from retrievers.vectors import KnownVectors, VectorFile, VectorWriter

N_PROBES = 50
N_REBUILDS = 3
_LARGE = 200_000


@dataclass(frozen=True, slots=True)
class Entry:
    """A document to be in the index: just read, or (`document` is None) to be taken over as it was indexed before."""

    stored: StoredDocument
    document: Document | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """What turns documents into an index."""

    embedder: Embedder
    chunker: Chunker
    tokenizer: Tokenizer

    def fingerprint(self) -> str:
        """Name all that decides the passages, vectors and tokens."""
        parts = (self.embedder.name, self.embedder.fingerprint, self.chunker.fingerprint, self.tokenizer.fingerprint)
        return " | ".join(parts)

    def split(self, document: Document) -> list[Passage]:
        """Split a document as the embedder counts tokens."""
        return split_document(document, self.chunker, lambda text: count_tokens(self.embedder, text))


def name_outdated(manifest: Manifest) -> str:
    """Name what an earlier version of this project did otherwise when it built an index; nothing if it did not."""
    splitting, cutting = parse_chunker(manifest.chunker).version, manifest.tokenizer
    now = load_tokenizer(manifest.words).fingerprint
    changes = [("passages", splitting, SPLITTING)] if splitting != SPLITTING else []
    changes += [("words", cutting, now)] if cutting != now else []
    parts = " and ".join(f"{what} are cut otherwise now ({new}, not {old})" for what, old, new in changes)
    return f"{parts}; build it again, which keeps its embeddings where the text is the same" if parts else ""


class Generation:
    """A finished generation, open for reading its parts."""

    def __init__(self, folder: Path, home: DenseHome | None = None) -> None:
        """Take a lease and open the parts.

        Args:
            folder: The generation.
            home: Where its collection is, when not in the folder.

        Raises:
            FileNotFoundError: It is gone, or a part of it is.
            IndexMismatch: Another version of this project wrote it.
        """
        with ExitStack() as opened:
            self._lease = opened.enter_context(Lease(folder))
            self.manifest = read_manifest(folder)
            (folder / "store.sqlite").stat()  # SQLite does not say that a file is missing
            self.vectors = VectorFile(folder / "vectors.f32", self.manifest.dimension)
            opened.pop_all()
        self.folder = folder
        self.home: DenseHome = home or ChromaFolder()
        self.store = Store(folder / "store.sqlite")

    def find_torn(self) -> list[str]:
        """Name the files that hold fewer passages than the index, as after a copy that was broken off."""
        rows = {"vectors.f32": len(self.vectors), "lexical/lengths.u32": len(TokenFile(self.folder / "lexical"))}
        return [name for name, n in rows.items() if n < self.manifest.n_passages]

    def open_dense(self) -> DenseIndex:
        """Open the collection, an empty one where it is gone."""
        return self.home.open(self.folder)

    def find_dense(self) -> DenseIndex | None:
        """Open the collection to search it; None when it is gone, or may not be opened here."""
        return self.home.find(self.folder)

    def close(self) -> None:
        """Close the store and give the lease back."""
        self.store.close()
        self._lease.release()

    def __enter__(self) -> Self:
        """Use it for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class GenerationWriter:
    """Writes documents batch by batch; what a killed writer committed is kept by the next one with the same plan.

    A batch is committed by its transaction in the store, the last thing written of it: vectors and tokens beyond the
    store's rows are dropped or written over. Chroma, for which few large writes are much cheaper, gets several batches
    at once; what a killed writer did not send is sent from the store. Writing runs in threads beside the embedder, one
    for Chroma and one for all else.
    """

    def __init__(
        self,
        folder: Path,
        home: DenseHome,
        recipe: Recipe,
        schema: Schema,
        dimension: int,
        old: Generation | None,
        known: KnownVectors,
        n_expected: int,
        anew: bool = False,
    ) -> None:
        """Go on with a folder that `prepare_folder` made.

        Args:
            folder: The new generation.
            home: Where its collection is.
            recipe: What turns documents into an index.
            schema: The types of all metadata keys.
            dimension: Of the embedder's vectors.
            old: The generation before, whose passages and tokens are taken over where they still hold.
            known: Vectors that need not be computed again.
            n_expected: About how many passages there will be.
            anew: Cut all tokens again.
        """
        self._recipe, self._schema, self._dimension, self._known = recipe, schema, dimension, known
        self._old = old
        self._folder = folder
        same_tokens = old is not None and not anew and old.manifest.tokenizer == recipe.tokenizer.fingerprint
        self._old_tokens = TokenFile(old.folder / "lexical") if old is not None and same_tokens else None
        before = old.store if old is not None else None
        with ExitStack() as opened:
            self._store = opened.enter_context(closing(Store(folder / "store.sqlite", writable=True)))
            n_rows = self._store.n_passages
            inherit = old.folder / "lexical" if old is not None and same_tokens and not n_rows else None
            self._vectors = opened.enter_context(closing(VectorWriter(folder / "vectors.f32", dimension, n_rows)))
            self._lexical = opened.enter_context(closing(LexicalWriter(folder / "lexical", n_rows, inherit)))
            self._collection = CollectionWriter(folder, home, self._store, before, schema, n_expected)
            opened.pop_all()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="index-writer")
        self._written: Future[None] | None = None
        self.n_embedded = 0

    @property
    def n_edits(self) -> int:
        """How many records of a copied collection were written over or deleted."""
        return self._collection.n_edits

    def write(self, entries: Sequence[Entry], progress: Progress) -> None:
        """Write all documents that are not committed yet."""
        self._collection.fill(VectorFile(self._folder / "vectors.f32", self._dimension), progress)
        done = self._store.n_documents
        progress("indexing documents", done, len(entries))
        for batch in self._gather(entries[done:]):
            keys = [[hash_text(embedding_text(passage)) for passage in passages] for _, passages in batch]
            vectors = self._embed(batch, [key for document_keys in keys for key in document_keys])
            self._wait()
            self._written = self._worker.submit(self._commit, batch, keys, vectors)
            done += len(batch)
            progress("indexing documents", done, len(entries))
        self._wait()

    def finish(self, progress: Progress) -> tuple[str, int]:
        """Delete what is gone from Chroma, check it, build BM25; return BM25's engine and the number of passages."""
        n_passages = self._store.n_passages
        self._collection.finish_sending()
        self._collection.delete_gone()
        progress("checking the index", 0, None)
        self._vectors.close()
        self._lexical.close()
        vectors = VectorFile(self._folder / "vectors.f32", self._dimension)
        self._collection.settle()
        for _ in range(N_REBUILDS):  # a graph is built with chance in it, so the new one is probed as the first was
            dense = self._collection.dense
            lost = find_unreachable(dense, self._store, vectors)
            if dense.count() == n_passages and len(lost) <= count_tolerated(n_passages, N_PROBES):
                break
            self._collection.begin_again()
            self._collection.fill(vectors, progress)
            self._collection.settle()
        self._collection.dense.close()  # its graph takes as much memory as the vectors, and BM25 needs some too
        progress("building BM25", 0, None)
        return finish_lexical(self._folder / "lexical"), n_passages

    def close(self) -> None:
        """Close every part; a batch in flight is waited for."""
        self._worker.shutdown()
        self._collection.close()
        self._vectors.close()
        self._lexical.close()
        self._store.close()

    def _gather(self, entries: Sequence[Entry]) -> Iterator[list[tuple[StoredDocument, list[Passage]]]]:
        normalised = (
            (entry, replace(entry.stored, metadata=normalise(entry.stored.raw, self._schema))) for entry in entries
        )
        documents = ((stored, self._split(entry, stored)) for entry, stored in normalised)
        return batch_by_passages(documents, lambda document: len(document[1]))

    def _split(self, entry: Entry, stored: StoredDocument) -> list[Passage]:
        if entry.document is not None:
            document = entry.document
            return self._recipe.split(Document(document.doc_id, document.title, document.text, stored.metadata))
        if self._old is None:
            raise ValueError(f"{stored.doc_id}: there is no earlier index to take it over from")
        before = self._old.store.find_document(stored.doc_id)
        own = set(before.metadata) if before else set()
        return [
            replace(p, metadata={**stored.metadata, **{k: v for k, v in p.metadata.items() if k not in own}})
            for p in self._old.store.passages_of(stored.doc_id)
        ]

    def _embed(self, batch: Sequence[tuple[StoredDocument, list[Passage]]], keys: Sequence[bytes]) -> Vectors:
        vectors, missing = self._known.find(keys, self._dimension)
        if missing:
            passages = [passage for _, document_passages in batch for passage in document_passages]
            vectors[missing] = self._recipe.embedder.embed_documents([embedding_text(passages[i]) for i in missing])
            self.n_embedded += len(missing)
        return vectors

    def _append_tokens(self, passage: Passage) -> None:
        """Take the tokens of the same passage of the old index, or cut it."""
        if self._old is not None and self._old_tokens is not None:
            row = self._old.store.find_row(passage.passage_id)
            if row is not None and lexical_text(self._old.store.passages_at([row])[0]) == lexical_text(passage):
                self._lexical.append_ids(self._old_tokens[row])
                return
        self._lexical.append(self._recipe.tokenizer(lexical_text(passage)))

    def _commit(
        self,
        batch: Sequence[tuple[StoredDocument, list[Passage]]],
        keys: Sequence[Sequence[bytes]],
        vectors: Vectors,
    ) -> None:
        self._vectors.append(vectors)
        for _, passages in batch:
            for passage in passages:
                self._append_tokens(passage)
        self._lexical.flush()
        entries = [(document, passages, key) for (document, passages), key in zip(batch, keys, strict=True)]
        self._store.add(entries, self._schema)
        self._collection.add(batch, keys, vectors)

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()
            self._written = None


def prepare_folder(
    folder: Path,
    home: DenseHome,
    plan: str,
    embedder: Embedder,
    dimension: int,
    old: Generation | None,
    edit_chroma: bool,
) -> None:
    """Make the folder of a new generation, or keep what a killed writer with the same plan left.

    Args:
        folder: The new generation.
        home: Where its collection is.
        plan: Identifies the documents, their order and the recipe.
        embedder: Makes the vectors.
        dimension: Theirs.
        old: The generation before.
        edit_chroma: Start from a copy of its collection; else from an empty one.
    """
    folder.mkdir(exist_ok=True)
    with closing(Store(folder / "store.sqlite", writable=True)) as store:
        for key, value in (("plan", plan), ("embedder", embedder.fingerprint), ("dimension", str(dimension))):
            store.write_note(key, value)
    prepare_collection(home, folder, old.folder if edit_chroma and old is not None else None)


def read_plan(folder: Path) -> str | None:
    """Read which plan an unfinished generation belongs to; None for a finished one."""
    if not (folder / "store.sqlite").exists() or (folder / "manifest.json").exists():
        return None
    with closing(Store(folder / "store.sqlite", writable=True)) as store:
        return store.read_note("plan")


def rebuild_passages(document: StoredDocument, parts: Sequence[tuple[str, dict[str, Scalar]]]) -> list[Passage]:
    """Put passages together from their document and, in order, their texts and own metadata."""
    return [
        Passage(f"{document.doc_id}#{n}", document.doc_id, document.title, text, {**document.metadata, **own})
        for n, (text, own) in enumerate(parts)
    ]


def find_unreachable(dense: DenseIndex, store: Store, vectors: VectorFile, n_probes: int = N_PROBES) -> list[str]:
    """Search for sampled passages by their own vectors; list those that approximate search does not reach.

    Chroma has lost records that way after deletions. A passage that only ties with others is reached.
    """
    n = len(vectors)
    rows = sorted(random.Random(n).sample(range(n), min(n_probes, n)))
    lost = []
    for row, passage in zip(rows, store.passages_at(rows), strict=True):
        vector = vectors.read([row])[0]
        found = dense.query(vector, 10)
        if passage.passage_id not in found:
            best = [other for other in map(store.find_row, found) if other is not None]
            if not best or vectors.score(vector, np.asarray(best)).min() < float(vector @ vector) - 1e-4:
                lost.append(passage.passage_id)
    return lost


def count_tolerated(n_passages: int, n_probes: int) -> int:
    """Return how many of the probes may be lost: of a large graph approximate search misses some, built anew or not."""
    return 0 if n_passages < _LARGE else n_probes // 25


def identify_plan(entries: Sequence[Entry], recipe: Recipe, schema: Schema, old: Generation | None) -> str:
    """Identify documents, order, recipe and starting point: the same plan writes the same generation."""
    digest = hashlib.sha256()
    start = old.folder.name if old is not None else ""
    digest.update(json.dumps([recipe.fingerprint(), sorted(schema.items()), start]).encode())
    for entry in entries:
        digest.update(f"{entry.stored.hash} {entry.stored.doc_id}\n".encode())
    return digest.hexdigest()


def describe(
    entries: Sequence[Entry], recipe: Recipe, schema: Schema, corpus_version: str, dimension: int, n_passages: int
) -> Manifest:
    """Write down what an index holds and what built it."""
    languages: dict[str, int] = {}
    for entry in entries:
        language = str(entry.stored.raw.get("lang", ""))
        languages[language] = languages.get(language, 0) + 1
    return Manifest(
        embedder=recipe.embedder.name,
        embedder_fingerprint=recipe.embedder.fingerprint,
        dimension=dimension,
        tokenizer=recipe.tokenizer.fingerprint,
        words=recipe.tokenizer.words,
        chunker=recipe.chunker.fingerprint,
        corpora=tuple(dict.fromkeys(entry.stored.corpus for entry in entries)),
        corpus_version=corpus_version,
        n_documents=len(entries),
        n_passages=n_passages,
        schema=dict(schema),
        languages=dict(sorted(languages.items())),
    )


def hash_text(text: str) -> bytes:
    """Hash what is embedded: passages with the same hash have the same vector."""
    return hashlib.sha256(text.encode()).digest()[:16]
