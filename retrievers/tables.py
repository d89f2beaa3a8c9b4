"""The tables of a corpus (CSV, XLSX, Markdown in any document) in one SQLite file, for SQL."""

import re
import sqlite3
from collections.abc import Container, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from retrievers.metadata import infer_schema, normalise
from retrievers.readers.parsed import Table, read_number
from retrievers.records import Scalar

TABLES = "tables.sqlite"

_CATALOGUE = """
CREATE TABLE IF NOT EXISTS _tables (
    name TEXT PRIMARY KEY, corpus TEXT NOT NULL, source TEXT NOT NULL, doc_id TEXT NOT NULL, title TEXT NOT NULL,
    n_rows INTEGER NOT NULL, text TEXT NOT NULL
)
"""
_SQL_TYPES = {"number": "NUMERIC", "boolean": "INTEGER", "date": "TEXT", "string": "TEXT"}
_SHORT, _MAX_TEXT = 60, 10_000  # characters of a value that may name its row, and of all of them
_NOT_NAME = re.compile(r"\W+")
_TOTAL = re.compile(r"(?:(?:grand |sub-?)?totals?|sum|overall|合计|总计|小计|总和|共计)[:：]?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table, the corpus and the file it stands in and, where that holds several documents, its document.

    `text` is what a copied one is about, as in `TableInfo`.
    """

    corpus: str
    source: str
    doc_id: str
    table: Table
    text: str = ""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table for SQL: its name there, its columns with types, and where it stands, as in `SourceTable`.

    `text` says what it is about: its title and columns as they stand there, and its short values.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    n_rows: int
    corpus: str
    source: str
    doc_id: str
    text: str


def write_tables(path: Path, tables: Iterable[SourceTable]) -> None:
    """Write tables; columns get the type that holds all their values."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(_CATALOGUE)
        taken = {name for (name,) in connection.execute("SELECT name FROM _tables")}
        for one in tables:
            name = _make_unique(_make_name(connection, one.table.name, "t").lower(), taken)
            taken.add(name)
            table = replace(one.table, rows=_drop_totals(one.table.rows))
            _write_table(connection, name, table)
            where, text = (one.corpus, one.source, one.doc_id), one.text or _describe(table)
            values = (name, *where, table.name, len(table.rows), text)
            connection.execute("INSERT INTO _tables VALUES (?,?,?,?,?,?,?)", values)


def copy_tables(old: Path, new: Path, infos: Sequence[TableInfo]) -> None:
    """Copy tables from one SQLite file to another."""
    with closing(sqlite3.connect(old)) as source:
        tables = [
            SourceTable(info.corpus, info.source, info.doc_id, _read_table(source, info), info.text) for info in infos
        ]
    write_tables(new, tables)


def list_tables(path: Path) -> list[TableInfo]:
    """List the tables of a SQLite file that `write_tables` wrote; none when there is no file."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        is_old = "doc_id" not in dict(_read_columns(connection, "_tables"))
        more = "'' AS doc_id, '' AS text" if is_old else "doc_id, text"
        sql = f"SELECT name, n_rows, corpus, source, {more} FROM _tables ORDER BY name"
        found = connection.execute(sql).fetchall()
        return [TableInfo(name, _read_columns(connection, name), *rest) for name, *rest in found]


def _describe(table: Table) -> str:
    """Return the words by which a question may mean the table."""
    values = dict.fromkeys(cell for row in table.rows for cell in row if isinstance(cell, str) and len(cell) <= _SHORT)
    return " ; ".join([table.name, *table.columns, *values])[:_MAX_TEXT]


def _drop_totals(rows: Sequence[Sequence[Scalar | None]]) -> Sequence[Sequence[Scalar | None]]:
    """Leave out the last rows where they add up the others: a query over them would count twice."""
    while len(rows) > 2:
        first = next((cell for cell in rows[-1] if cell is not None), None)
        if not isinstance(first, str) or not _TOTAL.fullmatch(first):
            break
        rows = rows[:-1]
    return rows


def _write_table(connection: sqlite3.Connection, name: str, table: Table) -> None:
    columns = _name_columns(connection, table.columns)
    records = [
        {column: value for column, value in zip(columns, row, strict=True) if value is not None} for row in table.rows
    ]
    schema = infer_schema(_drop_padding(record) for record in records)
    typed = ", ".join(f"{_quote(column)} {_SQL_TYPES[schema.get(column, 'string')]}" for column in columns)
    connection.execute(f"CREATE TABLE {_quote(name)} ({typed})")
    marks = ",".join("?" * len(columns))
    rows = (normalise(_drop_padding(record), schema) for record in records)
    connection.executemany(
        f"INSERT INTO {_quote(name)} VALUES ({marks})", ([row.get(column) for column in columns] for row in rows)
    )


def _drop_padding(record: dict[str, Scalar]) -> dict[str, Scalar]:
    """Read numbers that a CSV file holds as text, but leave codes such as `007` alone."""
    return {key: read_number(value) if isinstance(value, str) else value for key, value in record.items()}


def _read_table(connection: sqlite3.Connection, info: TableInfo) -> Table:
    title = connection.execute("SELECT title FROM _tables WHERE name = ?", (info.name,)).fetchone()[0]
    rows: Sequence[Sequence[Scalar | None]] = connection.execute(f"SELECT * FROM {_quote(info.name)}").fetchall()
    return Table(title, [column for column, _ in info.columns], rows)


def _read_columns(connection: sqlite3.Connection, name: str) -> tuple[tuple[str, str], ...]:
    return tuple((column[1], column[2]) for column in connection.execute(f"PRAGMA table_info({_quote(name)})"))


def _name_columns(connection: sqlite3.Connection, titles: Sequence[str]) -> list[str]:
    """Make different names for the columns: a small LM writes `KX-330` as it reads it, and SQL takes it for a sum."""
    names: dict[str, str] = {}
    for title in titles:
        name = _make_unique(_make_name(connection, title, "c"), names)
        names[name.casefold()] = name
    return list(names.values())


def _make_name(connection: sqlite3.Connection, title: str, prefix: str) -> str:
    """Make a name that SQL takes without quotes."""
    name = _NOT_NAME.sub("_", title).strip("_") or prefix
    if name[0].isdigit() or name.casefold().startswith("sqlite"):
        return f"{prefix}_{name}"
    try:
        is_free = connection.execute(f"SELECT {name} FROM (SELECT 1 AS {_quote(name)})").fetchone() == (1,)
    except sqlite3.OperationalError:  # a keyword
        is_free = False
    return name if is_free else f"{name}_"


def _make_unique(name: str, taken: Container[str]) -> str:
    others = (f"{name}_{n}" for n in count(2))
    return next(one for one in chain([name], others) if one.casefold() not in taken)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
