"""The tables of a corpus (CSV, XLSX) in one SQLite file, for SQL."""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from retrievers.metadata import infer_schema, normalise
from retrievers.readers.parsed import Table
from retrievers.records import Scalar

TABLES = "tables.sqlite"

_CATALOGUE = """
CREATE TABLE IF NOT EXISTS _tables (
    name TEXT PRIMARY KEY, corpus TEXT NOT NULL, source TEXT NOT NULL, title TEXT NOT NULL, n_rows INTEGER NOT NULL
)
"""
_SQL_TYPES = {"number": "NUMERIC", "boolean": "INTEGER", "date": "TEXT", "string": "TEXT"}
_NOT_NAME = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table for SQL: its name there, its columns with types, and the file it stands in."""

    name: str
    columns: tuple[tuple[str, str], ...]
    n_rows: int
    corpus: str
    source: str


def write_tables(path: Path, tables: Iterable[tuple[str, str, Table]]) -> None:
    """Write tables, given with their corpus and file; columns get the type that holds all their values."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(_CATALOGUE)
        for corpus, source, table in tables:
            name = _choose_name(connection, table.name)
            _write_table(connection, name, table)
            values = (name, corpus, source, table.name, len(table.rows))
            connection.execute("INSERT INTO _tables VALUES (?,?,?,?,?)", values)


def copy_tables(old: Path, new: Path, wanted: set[tuple[str, str]]) -> None:
    """Copy the tables of files, given as (corpus, file), from one SQLite file to another."""
    infos = [info for info in list_tables(old) if (info.corpus, info.source) in wanted]
    with closing(sqlite3.connect(old)) as source:
        tables = [_read_table(source, info) for info in infos]
    write_tables(new, ((info.corpus, info.source, table) for info, table in zip(infos, tables, strict=True)))


def list_tables(path: Path) -> list[TableInfo]:
    """List the tables of a SQLite file that `write_tables` wrote; none when there is no file."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT name, n_rows, corpus, source FROM _tables ORDER BY name").fetchall()
        return [
            TableInfo(name, _read_columns(connection, name), n_rows, corpus, source)
            for name, n_rows, corpus, source in found
        ]


def _write_table(connection: sqlite3.Connection, name: str, table: Table) -> None:
    records = [
        {column: value for column, value in zip(table.columns, row, strict=True) if value is not None}
        for row in table.rows
    ]
    schema = infer_schema(_drop_padding(record) for record in records)
    columns = ", ".join(f"{_quote(column)} {_SQL_TYPES[schema.get(column, 'string')]}" for column in table.columns)
    connection.execute(f"CREATE TABLE {_quote(name)} ({columns})")
    marks = ",".join("?" * len(table.columns))
    rows = (normalise(_drop_padding(record), schema) for record in records)
    connection.executemany(
        f"INSERT INTO {_quote(name)} VALUES ({marks})", ([row.get(column) for column in table.columns] for row in rows)
    )


def _drop_padding(record: dict[str, Scalar]) -> dict[str, Scalar]:
    """Read numbers that a CSV file holds as text, but leave codes such as `007` alone."""
    return {key: _read_number(value) if isinstance(value, str) else value for key, value in record.items()}


def _read_number(text: str) -> Scalar:
    if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})\.\d+", text) else text


def _read_table(connection: sqlite3.Connection, info: TableInfo) -> Table:
    title = connection.execute("SELECT title FROM _tables WHERE name = ?", (info.name,)).fetchone()[0]
    rows: Sequence[Sequence[Scalar | None]] = connection.execute(f"SELECT * FROM {_quote(info.name)}").fetchall()
    return Table(title, [column for column, _ in info.columns], rows)


def _read_columns(connection: sqlite3.Connection, name: str) -> tuple[tuple[str, str], ...]:
    return tuple((column[1], column[2]) for column in connection.execute(f"PRAGMA table_info({_quote(name)})"))


def _choose_name(connection: sqlite3.Connection, title: str) -> str:
    """Make a name that SQL takes without quotes, and that no table has yet."""
    base = _NOT_NAME.sub("_", title).strip("_").lower() or "table"
    base = f"t_{base}" if base[0].isdigit() or base.startswith("sqlite") else base
    taken = {name for (name,) in connection.execute("SELECT name FROM _tables")}
    return next(name for name in (base, *(f"{base}_{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
