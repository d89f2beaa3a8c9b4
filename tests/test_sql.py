import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from programs.databases import QueryError, Rows, SQLite, TableSchema
from programs.sql import Tables, TableView, check_values, describe_tables, rows_to_hit

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
        "  region TEXT: 'Iberia', 'Nordics', 'Southern Europe', 'Alps', 'Baltics'",
        '  "unit price" NUMERIC: 1 to 12.5',
        "  note TEXT: 'it''s urgent'",
    ]


def test_of_many_values_three_are_shown_those_that_the_question_names_first(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "c.db")) as connection, connection:
        connection.execute("CREATE TABLE parts (part TEXT, price NUMERIC)")
        connection.executemany("INSERT INTO parts VALUES (?, ?)", [(f"P-{n:03}", n) for n in range(100, 120)])
    [view] = Tables(SQLite(tmp_path / "c.db")).choose("price of parts P-117, 105 or less")
    assert view.describe("price of parts P-117, 105 or less").splitlines() == [
        "parts",
        "  part TEXT: 'P-117', 'P-100', 'P-101', …",
        "  price NUMERIC: 105, 117, 100, …",
    ]


def test_text_in_a_column_of_numbers_is_shown_as_it_stands(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "e.db")) as connection:
        connection.executescript("CREATE TABLE odd (size NUMERIC, at INTERVAL); INSERT INTO odd VALUES ('big', '1 h')")
        connection.commit()
    [view] = Tables(SQLite(tmp_path / "e.db")).choose("odd size")
    assert view.describe("odd size").splitlines()[1:] == ["  size NUMERIC: big", "  at INTERVAL: 1 h"]


def test_of_the_tables_of_documents_only_the_best_are_shown_and_of_a_database_those_to_join(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "d.db")) as connection:
        connection.executescript("CREATE TABLE orders (region, year); CREATE TABLE orders_old (region, year, quarter);")
    database = SQLite(tmp_path / "d.db")
    question = "orders by region, year and quarter"
    assert [view.schema.name for view in Tables(database).choose(question)] == ["orders_old", "orders"]
    assert [view.schema.name for view in Tables(database, texts={}).choose(question)] == ["orders_old"]


def test_a_table_that_shares_little_of_a_long_question_is_not_about_it(tables: Tables) -> None:
    assert tables.choose("orders of which region?")
    assert not tables.choose("How many of the orders that the customer in that region had changed came too late?")


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
    return TableView(TableSchema(name, (), source), ())


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


@pytest.mark.parametrize("rows", [Rows(("n",), ()), Rows(("n", "m"), ((None, None),)), Rows(("n",), ((0,),))])
def test_no_rows_are_no_evidence(rows: Rows) -> None:
    with pytest.raises(QueryError, match="found no rows"):
        rows_to_hit(rows, "SELECT COUNT(*) AS n", [view("orders", "orders.csv")])


def test_a_sum_may_be_zero() -> None:
    assert "\n0" in rows_to_hit(Rows(("n",), ((0,),)), "SELECT SUM(n)", [view("o", "o.csv")]).passage.text


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM orders WHERE region = 'Nordics'",
        "SELECT 1 FROM orders WHERE region LIKE '%southern%' AND note <> 'it''s late'",
        "SELECT 1 FROM orders WHERE region IN ('Nordics', 'Southern Europe', 'Alps', 'Baltics', 'Iberia')",  # all
        "SELECT 1 FROM orders WHERE strftime('%Y', note) = '2025' AND note = '2025-01-31'",
    ],
)
def test_a_query_may_pick_rows_by_what_its_question_names(tables: Tables, sql: str) -> None:
    question = "How late were the Nordics and Southern Europe last year?"
    check_values(sql, question, tables.choose("orders by region"))


def test_all_values_of_one_column_excuse_none_of_another(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "f.db")) as connection:
        connection.executescript(
            "CREATE TABLE t (kind, area); INSERT INTO t VALUES ('all', '华东区'), ('all', '华南区')"
        )
        connection.commit()
    views = Tables(SQLite(tmp_path / "f.db")).choose("t kind area")
    check_values("SELECT 1 FROM t WHERE kind = 'all'", "华中区", views)
    with pytest.raises(QueryError, match="华东区"):
        check_values("SELECT 1 FROM t WHERE kind = 'all' AND area = '华东区'", "华中区", views)


def test_the_values_of_a_table_are_read_once(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tables.choose("orders by region")
    monkeypatch.setattr(tables.database, "select", lambda *_: pytest.fail("read again"))
    assert tables.choose("orders by region") == chosen


@pytest.mark.parametrize("condition", ["= '华东区'", "<> '华东区'", "LIKE '%华东%'", "in ('华中区', '华东区')"])
def test_a_query_that_takes_a_value_near_the_one_asked_for_is_refused(tables: Tables, condition: str) -> None:
    with pytest.raises(QueryError, match=r"does not name '.*华东"):
        check_values(f"SELECT a FROM t WHERE b {condition}", "华中区的订单量是多少", tables.choose("orders by region"))
