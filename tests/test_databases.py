import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from programs import duck
from programs.databases import Database, DuckDB, PostgreSQL, QueryError, SQLite, open_database

pytestmark = pytest.mark.slow

FORBIDDEN = {
    "insert": "INSERT INTO orders VALUES ('x', 1)",
    "update": "UPDATE orders SET qty = 0",
    "delete": "DELETE FROM orders",
    "delete in WITH": "WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x",
    "drop": "DROP TABLE orders",
    "create": "CREATE TABLE more (a INT)",
    "create temporary": "CREATE TEMP TABLE more (a INT)",
    "two statements": "SELECT 1; DROP TABLE orders",
    "out of the transaction": "SELECT 1; COMMIT; DROP TABLE orders",
    "attach a file": "ATTACH '/etc/passwd' AS p",
    "attach memory": "ATTACH ':memory:' AS p",
    "pragma": "PRAGMA writable_schema = 1",
    "settings": "SET threads = 4",
    "an extension": "SELECT load_extension('x')",
    "install": "INSTALL httpfs",
    "read a CSV": "SELECT * FROM read_csv('/etc/passwd')",
    "read a file by name": "SELECT * FROM '/etc/passwd'",
    "read a file in SQLite's shell": "SELECT readfile('/etc/passwd')",
    "read a file in PostgreSQL": "SELECT pg_read_file('/etc/passwd')",
    "write a file": "COPY orders TO 'stolen.csv'",
    "run a program": "COPY (SELECT 1) TO PROGRAM 'touch stolen.csv'",
    "vacuum into a file": "VACUUM INTO 'stolen.csv'",
    "import a file": "SELECT lo_import('/etc/passwd')",
    "a huge value": "SELECT length(hex(zeroblob(900000000)))",
    "nothing": "",
    "a comment": "-- nothing",
    "half a character": "SELECT '\ud800'",
    "a zero byte": "SELECT 'x\0'",
}
ENDLESS = "WITH RECURSIVE n(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n) SELECT COUNT(*) FROM n"


def make_sqlite(folder: Path) -> Path:
    path = folder / "orders.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE orders (region TEXT, qty INT); INSERT INTO orders VALUES ('UK', 3), ('Nordics', 5);"
        "CREATE TABLE _hidden (secret TEXT); INSERT INTO _hidden VALUES ('SECRET');"
    )
    connection.close()
    return path


def make_duckdb(folder: Path) -> Path:
    path = folder / "orders.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE orders AS SELECT * FROM (VALUES ('UK', 3), ('Nordics', 5)) AS t(region, qty)")
    return path


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL server of our own, without the role; skipped where none is installed."""
    if not (shutil.which("initdb") and shutil.which("postgres")):
        pytest.skip("no PostgreSQL server is installed")
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        folder = Path(name)
        user = {"user": 65534} if os.geteuid() == 0 else {}  # PostgreSQL refuses to run as root
        os.chown(folder, user.get("user", -1), -1)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        quiet: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
        subprocess.run(["initdb", "-D", "data", "-U", "boss", "-A", "trust", "--no-sync"], check=True, **quiet)
        listening = ["-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1"]
        server = subprocess.Popen(["postgres", "-D", "data", *listening], **quiet)
        try:
            _fill(f"postgresql://boss@127.0.0.1:{port}/postgres", server)
            yield f"127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # ends the sessions that are still open
            server.wait()


def _fill(address: str, server: "subprocess.Popen[bytes]") -> None:
    while True:
        try:
            boss = psycopg.connect(address, autocommit=True)
            break
        except psycopg.OperationalError:  # not up yet
            assert server.poll() is None, "the server did not start"
            time.sleep(0.02)
    with closing(boss):
        boss.execute("CREATE TABLE orders (region TEXT, qty INT)")
        boss.execute("INSERT INTO orders VALUES ('UK', 3), ('Nordics', 5)")
        boss.execute("CREATE ROLE reader LOGIN")
        boss.execute("GRANT ALL ON orders TO reader")
        boss.execute("GRANT CREATE ON SCHEMA public TO reader")
        boss.execute("CREATE ROLE files LOGIN IN ROLE pg_read_server_files")


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SQLite(make_sqlite(tmp_path), {"orders": "orders.csv"})
    if request.param == "duckdb":
        return DuckDB(make_duckdb(tmp_path))
    return PostgreSQL(f"postgresql://reader:SECRET@{request.getfixturevalue('postgresql')}")


def test_tables_are_read_with_their_columns(database: Database) -> None:
    [schema] = database.schemas()
    assert schema.name == "orders"
    assert [column for column, _ in schema.columns] == ["region", "qty"]
    assert "SECRET" not in schema.source
    found = database.select("WITH t AS (SELECT * FROM orders) SELECT region, qty FROM t ORDER BY qty DESC;")
    assert found.columns == ("region", "qty")
    assert [tuple(row) for row in found.rows] == [("Nordics", 5), ("UK", 3)]
    assert not found.is_cut
    assert database.select("WITH t AS (SELECT * FROM orders) SELECT COUNT(*) FROM t").rows[0][0] == 2


def test_rows_end_at_the_limit_and_say_so(database: Database) -> None:
    found = database.select("SELECT region FROM orders ORDER BY region", max_rows=1)
    assert (len(found.rows), found.is_cut) == (1, True)


def test_what_is_not_reading_is_refused_and_changes_nothing(database: Database, tmp_path: Path) -> None:
    for name, sql in FORBIDDEN.items():
        if isinstance(database, DuckDB):  # what runs in the other process
            assert "error" in duck.answer({"path": str(tmp_path / "orders.duckdb"), "sql": sql, "n": 9}), name
            continue
        with pytest.raises(QueryError):
            pytest.fail(f"{name} gave {database.select(sql)}")
    assert database.select("SELECT COUNT(*), SUM(qty) FROM orders").rows[0][0] == 2
    assert not list(tmp_path.rglob("stolen*")) + list(Path().glob("stolen*"))


def test_a_query_without_an_end_is_ended(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_max_seconds", 0.3)
    with pytest.raises(QueryError, match=r"took longer than 0\.3 s"):
        database.select(ENDLESS)


def test_an_error_of_the_engine_is_one_line_that_an_lm_can_repair(database: Database) -> None:
    with pytest.raises(QueryError, match="colour") as error:
        database.select("SELECT colour\nFROM orders")
    assert "\n" not in str(error.value)
    assert "SECRET" not in str(error.value)


def test_duckdb_is_ended_even_where_it_does_not_look_for_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = DuckDB(make_duckdb(tmp_path))
    monkeypatch.setattr(database, "_max_seconds", 0.3)
    with pytest.raises(QueryError):
        database.select("SELECT repeat('x', 2000000000)")


@pytest.mark.parametrize(
    "sql", ["SELECT * FROM _hidden", "SELECT COUNT(*) FROM _hidden", "SELECT * FROM sqlite_master",
            "SELECT COUNT(*) FROM sqlite_master", "SELECT name FROM pragma_table_info('orders')",
            "SELECT (SELECT secret FROM _hidden) FROM orders"]
)  # fmt: skip
def test_sqlite_shows_the_named_tables_alone(tmp_path: Path, sql: str) -> None:
    with pytest.raises(QueryError, match="only reading the tables shown"):
        SQLite(make_sqlite(tmp_path), {"orders": "orders.csv"}).select(sql)


@pytest.mark.parametrize("role", ["boss", "files"])
def test_a_role_that_may_read_files_of_the_server_is_refused(postgresql: str, role: str) -> None:
    with pytest.raises(QueryError, match="may read files") as error:
        PostgreSQL(f"postgresql://{role}:SECRET@{postgresql}")
    assert "SECRET" not in str(error.value)


def test_an_address_says_which_engine(tmp_path: Path) -> None:
    assert open_database(str(make_sqlite(tmp_path))).dialect == "SQLite"
    assert open_database(f"sqlite:///{tmp_path}/orders.db").dialect == "SQLite"
    assert open_database(str(make_duckdb(tmp_path))).dialect == "DuckDB"
    assert open_database(f"duckdb:///{tmp_path}/orders.duckdb").dialect == "DuckDB"


def test_a_wrong_address_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database, and long enough to be read as a header of one" * 20)
    with pytest.raises(FileNotFoundError, match="no such database file"):
        open_database(str(tmp_path / "none.db"))
    with pytest.raises(QueryError, match=r"text.db: can't be read as SQLite: .*; check --database"):
        open_database(str(tmp_path / "text.db"))
    with pytest.raises(QueryError, match="expected a path, sqlite"):
        open_database("mysql:///x")
    with pytest.raises(QueryError) as error:
        open_database("postgresql://me:SECRET@127.0.0.1:1/x")
    assert "SECRET" not in str(error.value)
    assert str(error.value).startswith("postgresql://127.0.0.1:1/x: ")


def test_a_database_without_a_table_is_none_to_ask(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    (tmp_path / "empty.duckdb").touch()
    with pytest.raises(QueryError, match=r"empty.db: no table or view in it; check --database"):
        open_database(str(tmp_path / "empty.db"))
    with pytest.raises(QueryError, match=r"^.*/empty.duckdb: .*; check --database"):
        open_database(str(tmp_path / "empty.duckdb"))
