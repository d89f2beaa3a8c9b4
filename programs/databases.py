"""Databases to read and nothing else: SQLite, DuckDB, PostgreSQL, each held to it by its own engine, not by a regex."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from programs import duck
from programs.addresses import without_secrets

MAX_ROWS = 20
MAX_SECONDS = 5.0
_STARTUP_S = 2.0  # what a process needs to begin
_MAX_BYTES = 1_000_000  # of one value, so that no query builds a gigabyte out of nothing
_MAX_SQL = 10_000
_STEPS_BETWEEN_LOOKS = 5_000
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_JSON_TABLES = {"json_each", "json_tree"}
_FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}


class QueryError(ValueError):
    """A query that was refused, failed, took too long or found nothing; the message says which."""


class DatabaseDown(QueryError):  # noqa: N818
    """A database that can't be asked now, whatever the query."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query found. `is_cut` tells that there was more."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table as a query names it, its columns with their types, and the file or database it stands in."""

    name: str
    columns: tuple[tuple[str, str], ...]
    source: str


class Database(Protocol):
    """Tables that can be read and not changed. Safe to share between threads: every query has its own connection."""

    dialect: str

    def schemas(self) -> list[TableSchema]:
        """List the tables and views."""
        ...

    def select(self, sql: str, max_rows: int = MAX_ROWS) -> Rows:
        """Run one query and read at most `max_rows` rows.

        Raises:
            QueryError: The engine refused it, it failed, or it took longer than `MAX_SECONDS`.
        """
        ...


class SQLite:
    """A SQLite file: opened read-only, every action but reading its own tables refused by SQLite's authorizer."""

    dialect = "SQLite"

    def __init__(self, path: Path, sources: dict[str, str] | None = None, max_seconds: float = MAX_SECONDS) -> None:
        """Take a file that exists; `sources` names the file each table came from, and the only tables to show."""
        self._path = path
        self._max_seconds = max_seconds
        self._schemas = self._read_schemas(sources)

    def schemas(self) -> list[TableSchema]:
        """List the tables and views."""
        return self._schemas

    def select(self, sql: str, max_rows: int = MAX_ROWS) -> Rows:
        """Run one query; see `Database`."""
        with closing(self._connect()) as connection:
            self._guard(connection)
            try:
                cursor = connection.execute(sql)
                return _read_rows(cursor.description, cursor.fetchmany(max_rows + 1), max_rows)
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                raise self._explain(error) from None

    def _connect(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True)
        except sqlite3.Error as error:
            raise DatabaseDown(f"{self._path}: can't be opened: {error}") from None

    def _guard(self, connection: sqlite3.Connection) -> None:
        shown = {schema.name.casefold() for schema in self._schemas} | _JSON_TABLES
        deadline = time.monotonic() + self._max_seconds

        def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
            allowed = action in _READING
            if action == sqlite3.SQLITE_READ:
                name = (first or "").casefold()  # `COUNT(*)` over a subquery asks for a column "" of its name
                allowed = name in shown or (not second and name not in self._names and not name.startswith("pragma_"))
            if action == sqlite3.SQLITE_FUNCTION:
                allowed = (second or "").casefold() not in _FORBIDDEN_FUNCTIONS
            return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _MAX_SQL)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
        connection.set_authorizer(authorize)

    def _explain(self, error: Exception) -> QueryError:
        text = str(error)
        if "interrupted" in text:
            return QueryError(f"took longer than {self._max_seconds:g} s")
        if "not authorized" in text or "prohibited" in text:
            return QueryError(f"refused: only reading the tables shown is allowed ({text})")
        return QueryError(text)

    def _read_schemas(self, sources: dict[str, str] | None) -> list[TableSchema]:
        try:
            with closing(self._connect()) as connection:
                found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
                self._names = {name.casefold() for (name,) in found} | {"sqlite_master", "sqlite_schema"}
                names = sorted(name for (name,) in found if name in (sources or {name}) and name[:7] != "sqlite_")
                columns = {name: _read_columns(connection, name) for name in names}
        except sqlite3.Error as error:
            raise QueryError(f"{self._path}: can't be read as SQLite: {error}") from None
        return [TableSchema(name, columns[name], (sources or {}).get(name) or self._path.name) for name in names]


def _read_columns(connection: sqlite3.Connection, table: str) -> tuple[tuple[str, str], ...]:
    return tuple((column[1], column[2]) for column in connection.execute(f"PRAGMA table_info({quote(table)})"))


class DuckDB:
    """A DuckDB file: read-only, without access to files, network or extensions, in a process that is ended in time."""

    dialect = "DuckDB"

    def __init__(self, path: Path, max_seconds: float = MAX_SECONDS) -> None:
        """Take a file that exists."""
        self._path = path
        self._max_seconds = max_seconds
        self._schemas = _group_columns(self.select(_COLUMNS, max_rows=5_000), path.name, "main")

    def schemas(self) -> list[TableSchema]:
        """List the tables and views."""
        return self._schemas

    def select(self, sql: str, max_rows: int = MAX_ROWS) -> Rows:
        """Run one query; see `Database`."""
        request = json.dumps({"path": str(self._path.resolve()), "sql": sql[:_MAX_SQL], "n": max_rows + 1})
        command = [sys.executable, "-I", duck.__file__]
        try:
            done = subprocess.run(
                command, input=request, capture_output=True, text=True, timeout=self._max_seconds + _STARTUP_S
            )
        except subprocess.TimeoutExpired:
            raise QueryError(f"took longer than {self._max_seconds:g} s") from None
        if done.returncode:
            raise QueryError(f"the query ended DuckDB: {done.stderr.strip().splitlines()[-1:]}")
        reply = json.loads(done.stdout)
        if error := reply.get("error"):
            raise QueryError(_on_one_line(error))
        return _read_rows([(column,) for column in reply["columns"]], reply["rows"], max_rows)


class PostgreSQL:
    """A PostgreSQL database: a read-only transaction, one statement by protocol, a timeout on the server.

    A role that may read files or run programs on the server is refused: no transaction mode takes that from it.
    """

    dialect = "PostgreSQL"

    def __init__(self, address: str, max_seconds: float = MAX_SECONDS) -> None:
        """Connect once, to check the role and read the schema."""
        self._address = address
        self._label = without_secrets(address)
        self._max_seconds = max_seconds
        if self.select(_DANGEROUS_ROLE).rows != ((False,),):
            raise QueryError(f"{self._label}: this role may read files or run programs on the server; use another one")
        self._schemas = _group_columns(self.select(_COLUMNS, max_rows=5_000), self._label, "public")

    def schemas(self) -> list[TableSchema]:
        """List the tables and views."""
        return self._schemas

    def select(self, sql: str, max_rows: int = MAX_ROWS) -> Rows:
        """Run one query; see `Database`."""
        try:
            import psycopg
        except ImportError:
            raise QueryError("psycopg is not installed: pip install 'compiled-rag[databases]'") from None
        options = f"-c default_transaction_read_only=on -c statement_timeout={int(self._max_seconds * 1000)}"
        try:
            with closing(psycopg.connect(self._address, options=options, connect_timeout=10)) as connection:
                connection.read_only = True
                # DECLARE CURSOR takes one SELECT and nothing else, and the extended protocol takes one statement.
                with connection.cursor(name="answer") as cursor:
                    cursor.execute(sql[:_MAX_SQL].encode())
                    return _read_rows(cursor.description, cursor.fetchmany(max_rows + 1), max_rows)
        except psycopg.errors.QueryCanceled:
            raise QueryError(f"took longer than {self._max_seconds:g} s") from None
        except (psycopg.Error, ValueError) as error:
            kind = DatabaseDown if isinstance(error, psycopg.OperationalError) else QueryError
            raise kind(_on_one_line(error).replace(self._address, self._label)) from None


_COLUMNS = """
SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns
WHERE table_schema NOT IN ('information_schema', 'pg_catalog') ORDER BY table_schema, table_name, ordinal_position
"""
_DANGEROUS_ROLE = """
SELECT COALESCE(bool_or(pg_has_role(current_user, oid, 'MEMBER')), false) FROM pg_roles
WHERE rolsuper OR rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program')
"""


def open_database(address: str) -> Database:
    """Open a user's database: a path or `sqlite:///PATH`, `duckdb:///PATH` or `*.duckdb`, or `postgresql://…`.

    Raises:
        FileNotFoundError: There is no such file.
        QueryError: It can't be opened, or not safely, or holds no table; the message names it.
    """
    label = without_secrets(address)
    try:
        database = _open(address)
    except QueryError as error:
        named = str(error) if str(error).startswith((label, address)) else f"{label}: {error}"
        raise QueryError(f"{named}; check --database") from None
    if not database.schemas():
        raise QueryError(f"{label}: no table or view in it; check --database")
    return database


def _open(address: str) -> Database:
    if address.startswith(("postgresql://", "postgres://")):
        return PostgreSQL(address)
    scheme, mark, rest = address.partition(":///")
    if mark and scheme not in ("sqlite", "duckdb"):
        raise QueryError("expected a path, sqlite:///PATH, duckdb:///PATH or postgresql://…")
    path = Path(rest if mark else address)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such database file")
    is_duckdb = scheme == "duckdb" if mark else path.suffix.lower() in (".duckdb", ".ddb")
    return DuckDB(path) if is_duckdb else SQLite(path)


def quote(name: str) -> str:
    """Quote a name as all three engines read it."""
    return '"' + name.replace('"', '""') + '"'


def _group_columns(found: Rows, source: str, default_schema: str) -> list[TableSchema]:
    tables: dict[str, list[tuple[str, str]]] = {}
    for schema, table, column, kind in found.rows:
        name = table if schema == default_schema else f"{schema}.{table}"
        tables.setdefault(name, []).append((column, kind))
    return [TableSchema(name, tuple(columns), source) for name, columns in tables.items()]


def _read_rows(description: Sequence[Any] | None, rows: Sequence[Any], max_rows: int) -> Rows:
    if description is None:
        raise QueryError("is no query")
    columns = tuple(str(column[0]) for column in description)
    return Rows(columns, tuple(map(tuple, rows[:max_rows])), len(rows) > max_rows)


def _on_one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
