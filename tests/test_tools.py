import copy
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_embedder import HashEmbedder

from programs.apis import ApiError
from programs.databases import DatabaseDown, QueryError
from programs.load import Tools
from programs.tools import FAILED_QUERY, ask_tables, make_toolbox
from retrievers import build_index, open_index
from trainsets.cases import load_sample


def test_a_toolbox_holds_the_tables_of_the_index_then_the_users(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "orders.csv").write_text("region,quantity\nNordics,30\nUK,4\n")
    build_index(tmp_path / "docs", tmp_path / "index", HashEmbedder())
    with closing(sqlite3.connect(tmp_path / "staff.db")) as connection, connection:
        connection.execute("CREATE TABLE staff (name TEXT, site TEXT)")
        connection.execute("INSERT INTO staff VALUES ('Ada', 'Trondheim')")
    toolbox = make_toolbox(open_index(tmp_path / "index", HashEmbedder()), [str(tmp_path / "staff.db")])
    own, users = toolbox.tables
    assert [schema.name for schema in own.database.schemas()] == ["orders"]  # and not the catalogue of tables
    assert [schema.source for schema in own.database.schemas()] == ["orders.csv"]
    chosen = toolbox.choose_tables("How many staff are there per site, Trondheim?")
    assert chosen is not None
    assert chosen[0] is users.database
    assert copy.deepcopy(toolbox) is toolbox
    columns = [["name", "TEXT"], ["site", "TEXT"]]
    users_own = [["SQLite", "staff.db", "staff", columns]]
    assert toolbox.identify()["tables"] == users_own  # what the corpus holds, its version identifies
    assert str(tmp_path) not in str(toolbox.identify())


def test_an_index_without_tables_has_no_sql(tools: Tools) -> None:
    assert make_toolbox(tools.index).tables == ()


def test_a_database_that_is_not_there_is_said(tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such database file"):
        make_toolbox(tools.index, [str(tmp_path / "none.db")])


def test_an_http_tool_can_not_take_the_name_of_a_search(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(
        '[[tool]]\nname = "sql"\ndescription = "d"\nurl = "http://h/"\nhost = "h"\nwhen = ["x"]\n'
    )
    with pytest.raises(ApiError, match="name: 'sql' is a tool of the program's own"):
        make_toolbox(tools.index, apis=tmp_path / "t.toml")


def test_questions_of_the_sample_that_want_sql_are_told() -> None:
    from programs.tools import _AGGREGATE

    cases = [case for split in ("train", "dev", "test") for case in load_sample(split) if case.kind == "aggregate"]
    assert [case.question for case in cases if not _AGGREGATE.search(case.question)] == []


def test_no_query_is_written_where_no_call_may_be_made() -> None:
    class Never:
        dialect = "SQLite"

    def write(**inputs: Any) -> Any:
        raise AssertionError("called")

    assert ask_tables(Never(), (), "q", write, lambda: False) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "told"), [(DatabaseDown("gone"), "gone"), (QueryError("bad"), f"{FAILED_QUERY}bad")])
def test_a_database_that_is_gone_is_told_apart_from_a_query_that_fails(error: QueryError, told: str) -> None:
    class Failing:
        dialect = "SQLite"

        def select(self, sql: str) -> Any:
            raise error

    def write(**inputs: Any) -> Any:
        return SimpleNamespace(sql="SELECT 1"), None

    attempts = ask_tables(Failing(), (), "q", write, lambda: True)  # type: ignore[arg-type]
    assert {attempt.error for attempt in attempts} == {told}
