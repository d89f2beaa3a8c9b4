"""Fills a generation's Chroma collection: few large writes beside the embedder, a note of how far they came."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from retrievers.dense import DenseHome
from retrievers.embedders import Vectors
from retrievers.metadata import Schema, comparable
from retrievers.records import Passage, Scalar
from retrievers.store import Store, StoredDocument
from retrievers.vectors import VectorFile

BATCH_PASSAGES = 256
_NOTE = "filling.json"

# Called with what is happening, how many are done, of how many (None: not known yet).
Progress = Callable[[str, int, int | None], None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Filling:
    """How far a collection is filled: what is noted beside it whenever a write to Chroma has ended.

    Attributes:
        edits: Whether it began as a copy of the collection before, of which only what changed is written.
        n_rows: So many of the store's rows are in it.
        n_edits: Records of the copy that were written over or deleted.
        graph: What `read_graph` told then. Chroma writes its graph in place, so where the files are others when a
            killed writer is taken up, they may be torn: Chroma refuses such a graph, or worse, takes it.
    """

    edits: bool
    n_rows: int = 0
    n_edits: int = 0
    graph: str = ""


@dataclass(slots=True)
class Records:
    """What is to be sent to Chroma: columns."""

    ids: list[str] = field(default_factory=list)
    vectors: list[Vectors] = field(default_factory=list)
    metadatas: list[dict[str, Scalar]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def prepare_collection(home: DenseHome, folder: Path, copied: Path | None) -> None:
    """Keep what a killed writer sent, where its last write had ended; else begin anew.

    Args:
        home: Where the collection is.
        folder: The generation.
        copied: The generation whose collection to begin with a copy of; None begins with an empty one.
    """
    filling = _read_note(folder)
    if filling is None or filling.graph != home.read_graph(folder):
        _begin(home, folder, copied)


def batch_by_passages(items: Iterable[T], count: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut a sequence into parts of `BATCH_PASSAGES` passages, and what the last document of each has beyond."""
    batch: list[T] = []
    n_passages = 0
    for item in items:
        batch.append(item)
        n_passages += count(item)
        if n_passages >= BATCH_PASSAGES:
            yield batch
            batch, n_passages = [], 0
    if batch:
        yield batch


class CollectionWriter:
    """Sends passages to Chroma in a thread of its own, one large write at a time.

    That thread writes nothing to the store, which another one is writing to: how far it came is noted in a file.
    """

    def __init__(
        self, folder: Path, home: DenseHome, store: Store, old: Store | None, schema: Schema, n_expected: int
    ) -> None:
        """Open the collection that `prepare_collection` left.

        Args:
            folder: The generation.
            home: Where its collection is.
            store: The generation's.
            old: The store of the generation before.
            schema: The types of all metadata keys.
            n_expected: About how many passages there will be.
        """
        self._folder, self._home, self._store, self._old = folder, home, store, old
        self._schema, self._n_expected = schema, n_expected
        self._filling = _read_note(folder) or Filling(edits=False)
        self.dense = home.open(folder, n_expected)
        self._unsent = Records()
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="chroma-writer")
        self._sent: Future[None] | None = None

    @property
    def n_edits(self) -> int:
        """How many records of a copied collection were written over or deleted."""
        return self._filling.n_edits

    def add(
        self, batch: Sequence[tuple[StoredDocument, list[Passage]]], keys: Sequence[Sequence[bytes]], vectors: Vectors
    ) -> None:
        """Take in documents that the store has just got; once there are enough, they are sent."""
        self._collect(batch, keys, vectors)
        if len(self._unsent.ids) >= self._home.batch_size:
            self._send(self._store.n_passages)

    def fill(self, vectors: VectorFile, progress: Progress) -> None:
        """Send the passages that the store has beyond those sent, their vectors taken from the file."""
        n_passages = self._store.n_passages
        if self._filling.n_rows >= n_passages:
            return
        documents = self._store.documents_after(self._filling.n_rows)
        for batch in batch_by_passages(documents, lambda document: document.n_passages):
            first, end = batch[0].first_row, batch[-1].first_row + batch[-1].n_passages
            passages = [(document, self._store.passages_of(document.doc_id)) for document in batch]
            hashes = dict(self._store.hashes(first, end - first))
            keys = [[hashes[row] for row in _rows(document)] for document in batch]
            self._collect(passages, keys, vectors.read(np.arange(first, end)))
            if len(self._unsent.ids) >= self._home.batch_size:
                self._send(end)
            progress("writing vectors", end, n_passages)
        self.finish_sending()

    def finish_sending(self) -> None:
        """Send the rest, and wait until all is written."""
        self._send(self._store.n_passages)
        self._wait()

    def delete_gone(self) -> None:
        """Delete from a copied collection the passages that the new generation does not have."""
        if not self._filling.edits or self._old is None:
            return
        gone: list[str] = []
        for before in self._old.documents():
            now = self._store.find_document(before.doc_id)
            first = 0 if now is None else now.n_passages
            gone.extend(f"{before.doc_id}#{n}" for n in range(first, before.n_passages))
        self.dense.delete(gone)
        self._note(self._filling.n_rows, len(gone))

    def settle(self) -> None:
        """End the writing, so that nothing is left for readers to do."""
        self.dense = self._home.settle(self._folder, self.dense)
        self._note(self._filling.n_rows)

    def begin_again(self) -> None:
        """Throw the collection away and open an empty one."""
        self.dense.close()
        self._filling = _begin(self._home, self._folder, None)
        self.dense = self._home.open(self._folder, self._n_expected)

    def close(self) -> None:
        """Close the collection; a write in flight is waited for."""
        self._sender.shutdown()
        self.dense.close()

    def _send(self, n_rows: int) -> None:
        """Have what was collected written to Chroma, which then has the first `n_rows` of the store."""
        records, self._unsent = self._unsent, Records()
        self._wait()
        self._sent = self._sender.submit(self._upsert, records, n_rows)

    def _upsert(self, records: Records, n_rows: int) -> None:
        if records.ids:
            self.dense.upsert(records.ids, np.stack(records.vectors), records.metadatas, records.texts or None)
        self._note(n_rows, len(records.ids))

    def _wait(self) -> None:
        if self._sent is not None:
            sent, self._sent = self._sent, None
            sent.result()

    def _note(self, n_rows: int, n_edits: int = 0) -> None:
        """Note that the collection is whole with so many rows, after so many more edits of a copy."""
        n_edits = self._filling.n_edits + (n_edits if self._filling.edits else 0)
        graph = self._home.read_graph(self._folder)
        self._filling = _write_note(self._folder, Filling(self._filling.edits, n_rows, n_edits, graph))

    def _collect(
        self, batch: Sequence[tuple[StoredDocument, list[Passage]]], keys: Sequence[Sequence[bytes]], vectors: Vectors
    ) -> None:
        """Make the records of the passages that Chroma does not hold yet."""
        records, row = self._unsent, 0
        for (document, passages), document_keys in zip(batch, keys, strict=True):
            known = self._find_copied(document)
            fields = {key: comparable(value, self._schema[key]) for key, value in document.metadata.items()}
            further = self._home.describe(document, passages)
            for n, (passage, key) in enumerate(zip(passages, document_keys, strict=True)):
                if known.get(passage.passage_id) != key:
                    records.ids.append(passage.passage_id)
                    records.vectors.append(vectors[row])
                    records.metadatas.append(fields if further is None else {**fields, **further[n][0]})
                    records.texts.extend([] if further is None else [further[n][1]])
                row += 1

    def _find_copied(self, document: StoredDocument) -> dict[str, bytes]:
        """Tell which passages of a document the copied collection holds already, as they are now."""
        if not self._filling.edits or self._old is None:
            return {}
        before = self._old.find_document(document.doc_id)
        if before is None or before.metadata != document.metadata:
            return {}
        hashes = self._old.hashes(before.first_row, before.n_passages)
        return {f"{document.doc_id}#{row - before.first_row}": key for row, key in hashes}


def _begin(home: DenseHome, folder: Path, copied: Path | None) -> Filling:
    """Begin with an empty collection, or with a copy; killed before its end, it is begun again."""
    (folder / _NOTE).unlink(missing_ok=True)
    home.clear(folder)
    if copied is not None:
        home.copy(copied, folder)
    return _write_note(folder, Filling(edits=copied is not None, graph=home.read_graph(folder)))


def _read_note(folder: Path) -> Filling | None:
    path = folder / _NOTE
    return Filling(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _write_note(folder: Path, filling: Filling) -> Filling:
    temporary = folder / f"{_NOTE}.new"
    temporary.write_text(json.dumps(asdict(filling)), encoding="utf-8")
    os.replace(temporary, folder / _NOTE)
    return filling


def _rows(document: StoredDocument) -> range:
    return range(document.first_row, document.first_row + document.n_passages)
