"""Tables for questions that add up, count or compare: which ones a question is about, and rows as evidence."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from programs.databases import Database, QueryError, Rows, TableSchema, quote
from programs.rules import fold, words
from retrievers.records import Hit, Passage

_MAX_TABLES = 3  # shown to an LM at once
_MAX_COLUMNS = 20
_MAX_SAMPLES = 3
_SAMPLE_CHARS = 30
_CELL_CHARS = 80
_KNOWN_VALUES = 300  # of a text column; what a question names of them is shown first
_STEM = 5
_LEAST_SHARED = 2
_ROWS = "#sql-"  # in the id of a passage that a query brought


@dataclass(frozen=True, slots=True)
class TableView:
    """A table with values of every column, as a query must write them, and the words that a question may share."""

    schema: TableSchema
    values: tuple[tuple[str, ...], ...]
    words: frozenset[str]

    def describe(self, question: str) -> str:
        """Return the table on one line a column: name, type, a few values, those that the question names first."""
        asked = fold(question)
        lines = [_name(self.schema.name)]
        for (column, kind), values in zip(self.schema.columns[:_MAX_COLUMNS], self.values, strict=False):
            samples = sorted(values, key=lambda value: not (len(value) > 1 and fold(value) in asked))[:_MAX_SAMPLES]
            shown = ", ".join(_literal(value, kind) for value in samples)
            lines.append(f"  {_name(column)} {kind}: {shown}")
        return "\n".join(lines)


class Tables:
    """The tables of one database. Their values are read when a question first asks for them. Safe between threads."""

    def __init__(self, database: Database) -> None:
        """Take an open database."""
        self.database = database
        self._views: list[TableView] | None = None
        self._lock = Lock()

    def choose(self, question: str) -> tuple[TableView, ...]:
        """Return the tables that share most words with a question, best first; none when none shares enough."""
        asked = _stems(question)
        shared = [(len(asked & view.words), view) for view in self.views()]
        found = sorted((pair for pair in shared if pair[0] >= _LEAST_SHARED), key=lambda pair: -pair[0])
        return tuple(view for _, view in found[:_MAX_TABLES])

    def views(self) -> list[TableView]:
        """Read every table's columns and values, once."""
        with self._lock:
            if self._views is None:
                self._views = [_view(self.database, schema) for schema in self.database.schemas()]
            return self._views


def describe_tables(views: Sequence[TableView], question: str, dialect: str) -> str:
    """Return what a query can be written from: the dialect, and every table with its columns and sample values."""
    return "\n".join([f"-- {dialect}", *(view.describe(question) for view in views)])


def rows_to_hit(rows: Rows, sql: str, views: Sequence[TableView]) -> Hit:
    """Turn what a query found into evidence that can be judged and cited; its document is the table's own file.

    Raises:
        QueryError: It found nothing, so there is no evidence.
    """
    if not any(cell is not None for row in rows.rows for cell in row):
        raise QueryError("found no rows")
    used = [view.schema for view in views if fold(view.schema.name) in fold(sql)] or [view.schema for view in views]
    doc_id = used[0].source
    title = f"Query over {', '.join(schema.name for schema in used)}"
    lines = [f"SQL: {' '.join(sql.split())}", " | ".join(rows.columns)]
    lines += [" | ".join(_cell(cell) for cell in row) for row in rows.rows]
    lines += ["… (there are more rows)"] if rows.is_cut else []
    passage_id = f"{doc_id}{_ROWS}{hashlib.sha256(sql.encode()).hexdigest()[:8]}"
    return Hit(Passage(passage_id, doc_id, title, "\n".join(lines), {"type": "table"}), 1.0, 1)


def has_rows(hits: Sequence[Hit]) -> bool:
    """Tell whether one of the passages is what a query brought."""
    return any(_ROWS in hit.passage.passage_id for hit in hits)


def _view(database: Database, schema: TableSchema) -> TableView:
    values = tuple(_read_values(database, schema.name, column) for column, _ in schema.columns[:_MAX_COLUMNS])
    names = [schema.name, schema.source, *(column for column, _ in schema.columns)]
    text = " ".join(name.replace("_", " ").replace(".", " ") for name in names)
    short = (value for column in values for value in column if len(value) <= 2 * _SAMPLE_CHARS)
    return TableView(schema, values, frozenset(_stems(" ; ".join([text, *short]))))


def _read_values(database: Database, table: str, column: str) -> tuple[str, ...]:
    """Read different values of a column; a column that can't be read in time shows none."""
    name = ".".join(map(quote, table.split("."))) if database.dialect != "SQLite" else quote(table)
    sql = f"SELECT DISTINCT {quote(column)} FROM {name} WHERE {quote(column)} IS NOT NULL LIMIT {_KNOWN_VALUES}"
    try:
        found = database.select(sql, _KNOWN_VALUES)
    except QueryError:
        return ()
    return tuple(" ".join(str(value).split()) for (value,) in found.rows)


def _stems(text: str) -> set[str]:
    """Return the words of a text, long Latin ones cut, so that `ordered` and `orders` are one."""
    return {word[:_STEM] if word.isascii() and word.isalpha() else word for word in words(text)}


def _name(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else quote(name)


def _literal(value: str, kind: str) -> str:
    cut = value if len(value) <= _SAMPLE_CHARS else value[:_SAMPLE_CHARS] + "…"
    is_number = any(word in kind.upper() for word in ("INT", "NUM", "REAL", "DOUBLE", "DEC", "FLOAT"))
    return cut if is_number else "'" + cut.replace("'", "''") + "'"


def _cell(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.10g}"
    text = f"<{len(cell)} bytes>" if isinstance(cell, bytes) else " ".join(str(cell).split())
    return text if len(text) <= _CELL_CHARS else text[:_CELL_CHARS] + "…"
