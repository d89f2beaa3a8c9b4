import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from programs.databases import QueryError, Rows, SQLite, TableSchema
from programs.sql import Tables, TableView, describe_tables, rows_to_hit

SCRIPT = """
CREATE TABLE orders (region TEXT, "unit price" NUMERIC, note TEXT);
INSERT INTO orders VALUES ('Nordics', 12.5, 'it''s
urgent'), ('Southern Europe', 7, NULL), ('Alps', 1, NULL), ('Baltics', 2, NULL), ('Iberia', 3, NULL);
CREATE TABLE 仓库 (名称 TEXT, 数量 INT);
INSERT INTO 仓库 VALUES ('成都仓', 5), ('天津仓', 6);
CREATE TABLE staff (name TEXT, site TEXT);
INSERT INTO staff VALUES ('Ada', 'Ulm');
"""


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.executescript(SCRIPT)
    return Tables(SQLite(tmp_path / "a.db"))


@pytest.mark.parametrize(
    ("question", "chosen"),
    [
        ("How many were ordered in the Nordics?", ["orders"]),  # ordered, orders
        ("成都仓一共有多少数量？", ["仓库"]),
        ("How long is the warranty?", []),
        ("order", []),  # one word shared is chance
    ],
)
def test_the_tables_are_chosen_that_share_words_with_the_question(
    tables: Tables, question: str, chosen: list[str]
) -> None:
    assert [view.schema.name for view in tables.choose(question)] == chosen


def test_a_table_is_shown_with_names_as_sql_takes_them_and_the_values_asked_for_first(tables: Tables) -> None:
    question = "Total unit price ordered in Iberia?"
    shown = describe_tables(tables.choose(question), question, "SQLite")
    assert shown.splitlines() == [
        "-- SQLite",
        "orders",
        "  region TEXT: 'Iberia', 'Nordics', 'Southern Europe'",
        '  "unit price" NUMERIC: 12.5, 7, 1',
        "  note TEXT: 'it''s urgent'",
    ]


def test_what_is_shown_is_bounded(tmp_path: Path) -> None:
    columns = ", ".join(f"c{n} TEXT" for n in range(60))
    with closing(sqlite3.connect(tmp_path / "b.db")) as connection, connection:
        for n in range(9):
            connection.execute(f"CREATE TABLE orders{n} ({columns})")
            connection.executemany(
                f"INSERT INTO orders{n} (c0) VALUES (?)",
                [(f"</passage> region {'x' * 900}{row}",) for row in range(50)],
            )
    tables = Tables(SQLite(tmp_path / "b.db"))
    views = tables.choose("c0 c1 orders1 region")
    shown = describe_tables(views, "c0 c1 region", "SQLite")
    assert len(views) == 3
    assert len(shown) < 3 * 20 * 60


def view(name: str, source: str) -> TableView:
    return TableView(TableSchema(name, (), source), (), frozenset())


def test_rows_become_evidence_of_the_file_that_their_table_stands_in() -> None:
    rows = Rows(("region", "n"), (("Nordics", 30.0), (None, 1 / 3), ("x" * 200, b"ab")), is_cut=True)
    sql = "SELECT region,\n n FROM orders"
    hit = rows_to_hit(rows, sql, [view("staff", "staff.csv"), view("orders", "orders.csv")])
    assert hit.passage.doc_id == "orders.csv"
    assert hit.passage.passage_id.startswith("orders.csv#sql-")
    assert hit.passage.title == "Query over orders"
    assert hit.passage.text.splitlines() == [
        "SQL: SELECT region, n FROM orders",
        "region | n",
        "Nordics | 30",
        " | 0.3333333333",
        f"{'x' * 80}… | <2 bytes>",
        "… (there are more rows)",
    ]
    other = rows_to_hit(rows, sql + " LIMIT 1", [view("orders", "orders.csv")])
    assert other.passage.passage_id != hit.passage.passage_id


@pytest.mark.parametrize("rows", [Rows(("n",), ()), Rows(("n", "m"), ((None, None),))])
def test_no_rows_are_no_evidence(rows: Rows) -> None:
    with pytest.raises(QueryError, match="found no rows"):
        rows_to_hit(rows, "SELECT n", [view("orders", "orders.csv")])
