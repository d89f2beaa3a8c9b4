"""Tables for questions that add up, count or compare: which ones a question is about, and rows as evidence."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from programs.databases import Database, QueryError, Rows, TableSchema, quote
from programs.rules import fold, is_chinese, words
from retrievers.records import Hit, Passage

_MAX_TABLES = 3  # shown to an LM at once
_MAX_COLUMNS = 20
_FEW, _MAX_SAMPLES = 8, 3  # values of a column: all when they are few
_SAMPLE_CHARS = 30
_CELL_CHARS = 80
_KNOWN_VALUES = 300  # of a text column; what a question names of them is shown first
_STEM = 5
_LEAST_SHARED = 2
# So much of a question's words must stand in a table. Chinese ones are pairs of characters, many of them no words.
_SHARED, _SHARED_ZH = 0.3, 0.2
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_COMPARED = re.compile(r"(?:=|<>|\bLIKE)\s*'((?:[^']|'')*)'", re.IGNORECASE)
_IN = re.compile(r"\bIN\s*\(([^()]*)\)", re.IGNORECASE)
_WORKED_OUT = re.compile(r"[\d\s.,:/%t+-]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_ROWS = "#sql-"  # in the id of a passage that a query brought


@dataclass(frozen=True, slots=True)
class TableView:
    """A table with values of every column, as a query must write them."""

    schema: TableSchema
    values: tuple[tuple[str, ...], ...]

    def describe(self, question: str) -> str:
        """Return the table on one line a column: name, type, values that the question may mean."""
        lines = [_name(self.schema.name)]
        for (column, kind), values in zip(self.schema.columns[:_MAX_COLUMNS], self.values, strict=False):
            lines.append(f"  {_name(column)} {kind}: {_show_values(values, kind, fold(question))}")
        return "\n".join(lines)


class Tables:
    """The tables of one database. They are read when a question first asks for them. Safe between threads."""

    def __init__(self, database: Database, texts: Mapping[str, str] | None = None) -> None:
        """Take an open database.

        Args:
            database: Where the tables are.
            texts: Of tables that stand in documents, what each is about; of others their values tell.
        """
        self.database = database
        self.of_corpus = texts is not None
        self._texts = texts or {}
        self._words: list[tuple[TableSchema, frozenset[str]]] | None = None
        self._views: dict[str, TableView] = {}
        self._lock = Lock()

    def choose(self, question: str) -> tuple[TableView, ...]:
        """Return the tables that share most words with a question, best first; none when none shares enough.

        Of tables that stand in documents only the best: a small LM joins what it is shown, and they have no keys.
        """
        asked = _stems(question)
        known = ((len(asked & words), schema) for schema, words in self._read_words())
        shared = sorted((pair for pair in known if pair[0] >= _LEAST_SHARED), key=lambda pair: -pair[0])[:_MAX_TABLES]
        if not shared or shared[0][0] < (_SHARED_ZH if is_chinese(question) else _SHARED) * len(asked):
            return ()
        least = shared[0][0] if self.of_corpus else _LEAST_SHARED
        return tuple(self._view(schema) for n_shared, schema in shared if n_shared >= least)

    def _read_words(self) -> list[tuple[TableSchema, frozenset[str]]]:
        """Read once which words a question may share with each table."""
        with self._lock:
            if self._words is None:
                self._words = [(schema, self._words_of(schema)) for schema in self.database.schemas()]
            return self._words

    def _words_of(self, schema: TableSchema) -> frozenset[str]:
        names = [schema.name, schema.source, *(column for column, _ in schema.columns)]
        text = " ; ".join(f"{name.replace('_', ' ').replace('.', ' ')} {name.replace('_', '-')}" for name in names)
        if self.of_corpus:
            return frozenset(_stems(f"{text} ; {self._texts.get(schema.name, '')}"))
        short = (value for column in self._view(schema).values for value in column if len(value) <= 2 * _SAMPLE_CHARS)
        return frozenset(_stems(" ; ".join([text, *short])))

    def _view(self, schema: TableSchema) -> TableView:
        """Read the values of a table's columns, once."""
        if (view := self._views.get(schema.name)) is None:
            values = (_read_values(self.database, schema.name, column) for column, _ in schema.columns[:_MAX_COLUMNS])
            view = self._views[schema.name] = TableView(schema, tuple(values))
        return view


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
    if rows.rows == ((0,),) and "count(" in fold(sql):  # conditions that name nothing give that too
        raise QueryError("found no rows that meet its conditions")
    used = [view.schema for view in views if fold(view.schema.name) in fold(sql)] or [view.schema for view in views]
    doc_id = used[0].source
    title = f"Query over {', '.join(schema.name for schema in used)}"
    lines = [f"SQL: {' '.join(sql.split())}", " | ".join(rows.columns)]
    lines += [" | ".join(_cell(cell) for cell in row) for row in rows.rows]
    lines += ["… (there are more rows)"] if rows.is_cut else []
    passage_id = f"{doc_id}{_ROWS}{hashlib.sha256(sql.encode()).hexdigest()[:8]}"
    return Hit(Passage(passage_id, doc_id, title, "\n".join(lines), {"type": "table"}), 1.0, 1)


def check_values(sql: str, question: str, views: Sequence[TableView]) -> None:
    """Refuse a query that picks rows by a value which its question does not name: a small LM takes one that is near.

    Numbers and dates may be worked out, and all values of a column leave nothing out.

    Raises:
        QueryError: It does.
    """
    compared = [*_COMPARED.findall(sql), *(one for inner in _IN.findall(sql) for one in _LITERAL.findall(inner))]
    values = {fold(value.replace("''", "'")) for value in compared}
    columns = [{fold(value) for value in column} for view in views for column in view.values]
    asked = _stems(question)
    for value in sorted(values.difference(*(column for column in columns if column <= values))):
        if (named := _stems(value)) and not named & asked and not _WORKED_OUT.fullmatch(value):
            raise QueryError(f"the question does not name {value!r}; pick rows by what it names")


def has_rows(hits: Sequence[Hit]) -> bool:
    """Tell whether one of the passages is what a query brought."""
    return any(_ROWS in hit.passage.passage_id for hit in hits)


def _show_values(values: Sequence[str], kind: str, question: str) -> str:
    """Show the values that a question names; else the range of numbers, or texts: all of a few, or three of many."""
    named = [value for value in values if len(value) > 1 and fold(value) in question]
    if values and not named and _is_number(kind) and all(map(_NUMBER.fullmatch, values)):
        return f"{min(values, key=float)} to {max(values, key=float)}"
    ordered = named + [value for value in values if value not in named]
    n_shown = len(ordered) if not _is_number(kind) and len(ordered) <= _FEW else _MAX_SAMPLES
    return ", ".join([_literal(value, kind) for value in ordered[:n_shown]] + ["…"] * (len(ordered) > n_shown))


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


def _is_number(kind: str) -> bool:
    return any(word in kind.upper() for word in ("INT", "NUM", "REAL", "DOUBLE", "DEC", "FLOAT"))


def _literal(value: str, kind: str) -> str:
    cut = value if len(value) <= _SAMPLE_CHARS else value[:_SAMPLE_CHARS] + "…"
    return cut if _is_number(kind) else "'" + cut.replace("'", "''") + "'"


def _cell(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.10g}"
    text = f"<{len(cell)} bytes>" if isinstance(cell, bytes) else " ".join(str(cell).split())
    return text if len(text) <= _CELL_CHARS else text[:_CELL_CHARS] + "…"
