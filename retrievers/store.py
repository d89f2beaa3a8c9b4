"""What an index knows of its documents and passages, in one SQLite file."""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrievers.filters import Condition, to_sql
from retrievers.metadata import Schema, comparable
from retrievers.records import Passage, Scalar

_SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    doc INTEGER PRIMARY KEY, doc_id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, hash TEXT NOT NULL, raw TEXT NOT NULL,
    metadata TEXT NOT NULL, corpus TEXT NOT NULL, source TEXT NOT NULL,
    first_row INTEGER NOT NULL, n_passages INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS documents_by_source ON documents (corpus, source);
CREATE TABLE IF NOT EXISTS passages (
    row INTEGER PRIMARY KEY, doc INTEGER NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL, hash BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS fields (
    key TEXT NOT NULL, value NOT NULL, doc INTEGER NOT NULL, PRIMARY KEY (key, value, doc)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_SELECT = """
SELECT row, doc_id, row - first_row, title, text, documents.metadata, passages.metadata
FROM passages JOIN documents USING (doc)
"""
# By row, which passages are kept by: by document, all of them would be gone through.
_OF_DOCUMENT = (
    "row >= (SELECT first_row FROM documents WHERE doc_id = ?) "
    "AND row < (SELECT first_row + n_passages FROM documents WHERE doc_id = ?)"
)
# From each value the index finds the next one, so a key with few values in a million documents costs few look-ups.
_DISTINCT = """
WITH RECURSIVE found(value) AS (
    SELECT MIN(value) FROM fields WHERE key = :key
    UNION ALL
    SELECT (SELECT MIN(value) FROM fields WHERE key = :key AND value > found.value) FROM found
    WHERE found.value IS NOT NULL
)
SELECT value FROM found WHERE value IS NOT NULL LIMIT :limit
"""
_MAX_VARIABLES = 30_000
_PAGE = 1_000


class NotInIndex(KeyError):  # noqa: N818
    """A document or passage that the index does not hold."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as the index keeps it. `raw` is its metadata as read, `metadata` as normalised."""

    doc_id: str
    title: str
    hash: str
    raw: Mapping[str, Scalar]
    metadata: Mapping[str, Scalar]
    corpus: str
    source: str
    first_row: int = 0
    n_passages: int = 0


class Store:
    """Documents and passages by id and by row.

    A row counts passages from 0 in the order they were added; the vectors file and BM25 use the same numbers. The
    passages of one document are consecutive. Reading is safe from several threads: each has its own connection.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        """Open the file read-only; or for writing, made when missing."""
        self._path = path
        self._writable = writable
        self._local = threading.local()
        if writable:
            self._connection.executescript(_SCHEMA)

    @property
    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            # A committed index never changes, so SQLite need not lock it, and it may lie on a read-only disk.
            mode = "mode=rwc" if self._writable else "mode=ro&immutable=1"
            connection = sqlite3.connect(f"{self._path.resolve().as_uri()}?{mode}", uri=True)
            self._local.connection = connection
        return connection

    def add(self, entries: Iterable[tuple[StoredDocument, Sequence[Passage], Sequence[bytes]]], schema: Schema) -> None:
        """Add documents, their passages and what those are recognised by, in one transaction."""
        with self._connection as connection:
            row = self.n_passages
            for document, passages, hashes in entries:
                doc = _insert_document(connection, document, row, len(passages))
                records = [
                    (row + n, doc, passage.text, _dump(_own_metadata(passage, document)), passage_hash)
                    for n, (passage, passage_hash) in enumerate(zip(passages, hashes, strict=True))
                ]
                connection.executemany("INSERT INTO passages VALUES (?,?,?,?,?)", records)
                fields = [(key, comparable(value, schema[key]), doc) for key, value in document.metadata.items()]
                connection.executemany("INSERT OR IGNORE INTO fields VALUES (?,?,?)", fields)
                row += len(passages)

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
        found: dict[int, tuple[int, str, int, str, str, str, str]] = {}
        for start in range(0, len(rows), _MAX_VARIABLES):
            part = rows[start : start + _MAX_VARIABLES]
            marks = ",".join("?" * len(part))
            for record in self._connection.execute(f"{_SELECT} WHERE row IN ({marks})", [int(row) for row in part]):
                found[record[0]] = record
        return [_read_passage(found[int(row)]) for row in rows]

    def iterate_passages(self) -> Iterator[Passage]:
        """Read every passage in row order."""
        for record in self._connection.execute(f"{_SELECT} ORDER BY row"):
            yield _read_passage(record)

    def passages_of(self, doc_id: str) -> list[Passage]:
        """Read the passages of a document in order; empty when there is no such document."""
        found = self._connection.execute(f"{_SELECT} WHERE {_OF_DOCUMENT} ORDER BY row", (doc_id, doc_id))
        return [_read_passage(record) for record in found]

    def find_row(self, passage_id: str) -> int | None:
        """Find the row of a passage by its id."""
        doc_id, _, n = passage_id.rpartition("#")
        if not n.isascii() or not n.isdecimal() or str(int(n)) != n:
            return None
        record = self._connection.execute(
            "SELECT first_row + ? FROM documents WHERE doc_id = ? AND ? < n_passages", (int(n), doc_id, int(n))
        ).fetchone()
        return None if record is None else int(record[0])

    def find_document(self, doc_id: str) -> StoredDocument | None:
        """Find a document by its id."""
        return next(self._documents("WHERE doc_id = ?", (doc_id,)), None)

    def documents(self, corpus: str | None = None) -> Iterator[StoredDocument]:
        """Read every document, or one corpus's, in the order they were added."""
        if corpus is None:
            return self._documents("ORDER BY doc")
        return self._documents("WHERE corpus = ? ORDER BY doc", (corpus,))

    def documents_beside(self, corpus: str) -> Iterator[StoredDocument]:
        """Read the documents of all other corpora, in the order they were added."""
        return self._documents("WHERE corpus != ? ORDER BY doc", (corpus,))

    def documents_after(self, first_row: int) -> Iterator[StoredDocument]:
        """Read the documents whose passages are at a row or after it, in order.

        While one of them is worked on nothing is being read: a cursor left open would keep other threads from writing.
        """
        behind = "doc > COALESCE((SELECT doc FROM documents WHERE doc_id = ?), -1)"
        clause, last = f"WHERE first_row >= ? AND {behind} ORDER BY doc LIMIT {_PAGE}", ""
        while documents := list(self._documents(clause, (first_row, last))):
            yield from documents
            last = documents[-1].doc_id

    def documents_from(self, corpus: str, source: str) -> list[StoredDocument]:
        """Read the documents of one file of a corpus, in order."""
        return list(self._documents("WHERE corpus = ? AND source = ? ORDER BY doc", (corpus, source)))

    def select_rows(self, conditions: Sequence[Condition]) -> NDArray[np.int64]:
        """List the rows of every passage whose document meets the conditions, ascending."""
        sql, parameters = to_sql(conditions)
        spans = self._connection.execute(
            f"SELECT first_row, n_passages FROM documents WHERE doc IN ({sql}) ORDER BY first_row", parameters
        ).fetchall()
        if not spans:
            return np.empty(0, np.int64)
        starts, counts = np.asarray(spans, dtype=np.int64).T
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(starts, counts) + offsets

    def values_of(self, key: str, limit: int) -> list[Scalar]:
        """List the different values of a metadata key, ascending; at most `limit`, found without reading every row."""
        found = self._connection.execute(_DISTINCT, {"key": key, "limit": limit})
        return [value for (value,) in found]

    def hashes(self, first_row: int = 0, n: int = -1) -> Iterator[tuple[int, bytes]]:
        """Read what passages are recognised by, of `n` rows or all: rows with hashes."""
        sql = "SELECT row, hash FROM passages WHERE row >= ? ORDER BY row LIMIT ?"
        yield from self._connection.execute(sql, (first_row, n))

    def read_note(self, key: str) -> str | None:
        """Read a note of the writer's."""
        record = self._connection.execute("SELECT value FROM notes WHERE key = ?", (key,)).fetchone()
        return None if record is None else str(record[0])

    def write_note(self, key: str, value: str) -> None:
        """Keep a note of the writer's."""
        with self._connection as connection:
            connection.execute("INSERT OR REPLACE INTO notes VALUES (?,?)", (key, value))

    def close(self) -> None:
        """Close this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _documents(self, clause: str, parameters: Sequence[str | int] = ()) -> Iterator[StoredDocument]:
        columns = "doc_id, title, hash, raw, metadata, corpus, source, first_row, n_passages"
        for record in self._connection.execute(f"SELECT {columns} FROM documents {clause}", parameters):
            doc_id, title, content_hash, raw, metadata, *rest = record
            yield StoredDocument(doc_id, title, content_hash, json.loads(raw), json.loads(metadata), *rest)


def _insert_document(connection: sqlite3.Connection, document: StoredDocument, row: int, n_passages: int) -> int:
    values = (document.doc_id, document.title, document.hash, _dump(document.raw), _dump(document.metadata))
    cursor = connection.execute(
        "INSERT INTO documents (doc_id, title, hash, raw, metadata, corpus, source, first_row, n_passages)"
        " VALUES (?,?,?,?,?,?,?,?,?)",
        (*values, document.corpus, document.source, row, n_passages),
    )
    return int(cursor.lastrowid or 0)


def _own_metadata(passage: Passage, document: StoredDocument) -> dict[str, Scalar]:
    return {key: value for key, value in passage.metadata.items() if key not in document.metadata}


def _read_passage(record: tuple[int, str, int, str, str, str, str]) -> Passage:
    _, doc_id, n, title, text, metadata, own = record
    return Passage(f"{doc_id}#{n}", doc_id, title, text, {**json.loads(metadata), **json.loads(own)})


def _dump(metadata: Mapping[str, Scalar]) -> str:
    return json.dumps(dict(metadata), ensure_ascii=False)
