"""What an index knows of its documents and passages, in one SQLite file."""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from retrievers.records import Document, Passage

_SCHEMA = """
CREATE TABLE documents (
    doc INTEGER PRIMARY KEY, doc_id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, hash TEXT NOT NULL,
    metadata TEXT NOT NULL, first_row INTEGER NOT NULL, n_passages INTEGER NOT NULL
);
CREATE TABLE passages (row INTEGER PRIMARY KEY, doc INTEGER NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL);
"""
_SELECT = """
SELECT row, doc_id, row - first_row, title, text, documents.metadata, passages.metadata
FROM passages JOIN documents USING (doc)
"""


class Store:
    """Documents and passages by id and by row.

    A row counts passages from 0 in the order they were added; the vectors file and BM25 use the same numbers. The
    passages of one document are consecutive. Reading is safe from several threads: each has its own connection.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        """Open the file read-only, or create it."""
        self._path = path
        self._writable = writable
        self._local = threading.local()
        if writable:
            with self._connection as connection:
                connection.executescript(_SCHEMA)

    @property
    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            # A committed index never changes, so SQLite need not lock it, and it may lie on a read-only disk.
            mode = "mode=rwc" if self._writable else "mode=ro&immutable=1"
            connection = sqlite3.connect(f"{self._path.resolve().as_uri()}?{mode}", uri=True)
            self._local.connection = connection
        return connection

    def add(self, entries: Iterable[tuple[Document, str, Sequence[Passage]]]) -> None:
        """Add documents with their content hashes and passages, in one transaction."""
        with self._connection as connection:
            for document, content_hash, passages in entries:
                first_row = self.n_passages
                cursor = connection.execute(
                    "INSERT INTO documents (doc_id, title, hash, metadata, first_row, n_passages) VALUES (?,?,?,?,?,?)",
                    (document.doc_id, document.title, content_hash, _dump(document.metadata), first_row, len(passages)),
                )
                rows = [
                    (first_row + n, cursor.lastrowid, passage.text, _dump(_own_metadata(passage, document)))
                    for n, passage in enumerate(passages)
                ]
                connection.executemany("INSERT INTO passages VALUES (?,?,?,?)", rows)

    @property
    def n_documents(self) -> int:
        """Count the documents."""
        return int(self._connection.execute("SELECT COUNT(*) FROM documents").fetchone()[0])

    @property
    def n_passages(self) -> int:
        """Count the passages."""
        return int(self._connection.execute("SELECT COALESCE(MAX(row) + 1, 0) FROM passages").fetchone()[0])

    def passages_at(self, rows: Sequence[int]) -> list[Passage]:
        """Read the passages of these rows, in this order."""
        marks = ",".join("?" * len(rows))
        found = {record[0]: record for record in self._connection.execute(f"{_SELECT} WHERE row IN ({marks})", rows)}
        return [_read_passage(found[row]) for row in rows]

    def iterate_passages(self) -> Iterator[Passage]:
        """Read every passage in row order."""
        for record in self._connection.execute(f"{_SELECT} ORDER BY row"):
            yield _read_passage(record)

    def passages_of(self, doc_id: str) -> list[Passage]:
        """Read the passages of a document in order; empty when there is no such document."""
        return [
            _read_passage(record)
            for record in self._connection.execute(f"{_SELECT} WHERE doc_id = ? ORDER BY row", (doc_id,))
        ]

    def find_row(self, passage_id: str) -> int | None:
        """Find the row of a passage by its id."""
        doc_id, _, n = passage_id.rpartition("#")
        if not n.isdecimal():
            return None
        record = self._connection.execute(
            "SELECT first_row + ? FROM documents WHERE doc_id = ? AND ? < n_passages", (int(n), doc_id, int(n))
        ).fetchone()
        return None if record is None else int(record[0])

    def doc_ids_at(self, rows: Sequence[int]) -> list[str]:
        """Read which documents these rows belong to, in this order."""
        return [passage.doc_id for passage in self.passages_at(rows)]

    def close(self) -> None:
        """Close this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def _own_metadata(passage: Passage, document: Document) -> dict[str, object]:
    return {key: value for key, value in passage.metadata.items() if key not in document.metadata}


def _read_passage(record: tuple[int, str, int, str, str, str, str]) -> Passage:
    _, doc_id, n, title, text, metadata, own = record
    return Passage(f"{doc_id}#{n}", doc_id, title, text, {**json.loads(metadata), **json.loads(own)})


def _dump(metadata: object) -> str:
    return json.dumps(dict(metadata), ensure_ascii=False)  # type: ignore[call-overload]
