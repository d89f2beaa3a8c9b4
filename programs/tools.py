"""The tools beyond search that a program may use: a fixed list of databases and HTTP tools, and when to ask them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from programs.apis import ApiError, ApiTool, load_apis
from programs.databases import Database, DatabaseDown, QueryError, SQLite, open_database
from programs.narrowing import Fields
from programs.sql import Tables, TableView, check_values, describe_tables, rows_to_hit
from retrievers import Index
from retrievers.records import Hit

SQL = "sql"
FAILED_QUERY = "no answer from the query: "  # which the LM wrote: that it failed is no error of the program
N_TRIES = 2  # a call that failed is repaired once
_AGGREGATE = re.compile(
    r"\b(how many|how much|total|sum|add up|average|mean|count|number of|most|least|highest|lowest|largest|smallest|"
    r"biggest|cheapest|most expensive|longest|shortest|top \d+|per (month|quarter|region|year|week|day)|altogether|"
    r"together|overall|in all|list all|share of|percentage)\b|"
    r"一共|总共|合计|总计|总和|总数|总额|总量|加起来|合起来|共有|平均|最[多少高低大小贵便长短]|排名|前\d+|统计|占比|"
    r"几[个台批家只件次人张份]|多少[个台批家只件次人张份元万]|多少$",
    re.IGNORECASE,
)

Decide = Callable[..., tuple[Any, str | None]]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of a tool: what it was asked, and what came of it, a hit or the reason why there is none."""

    tool: str
    query: str
    hits: tuple[Hit, ...] = ()
    error: str | None = None
    decided_by_rule: bool = False


@dataclass(frozen=True)
class Toolbox:
    """What a program may use besides its retrievers, and what its index can filter by. Copies share it."""

    tables: tuple[Tables, ...] = ()
    apis: Mapping[str, ApiTool] = field(default_factory=dict)
    fields: Fields = field(default_factory=Fields)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the toolbox: DSPy's optimizers deep-copy programs."""
        return self

    def identify(self) -> dict[str, Any]:
        """Describe the tools as plain data: the tables with their columns, the HTTP tools; no secrets.

        What stands in documents the corpus version identifies.
        """
        tables = [
            [one.database.dialect, schema.source, schema.name, list(map(list, schema.columns))]
            for one in self.tables
            if not one.of_corpus
            for schema in one.database.schemas()
        ]
        return {"tables": tables, "apis": [tool.model_dump(mode="json") for tool in self.apis.values()]}

    def choose_tables(self, question: str) -> tuple[Database, tuple[TableView, ...]] | None:
        """Return the tables for a question that adds up, counts or compares; None where none is about it."""
        if not _AGGREGATE.search(question):
            return None
        chosen = ((one.database, views) for one in self.tables if (views := one.choose(question)))
        return next(chosen, None)

    def choose_apis(self, question: str) -> tuple[ApiTool, ...]:
        """Return the HTTP tools whose words a question holds."""
        return tuple(tool for tool in self.apis.values() if tool.is_asked_for(question))


NO_TOOLS = Toolbox()


def make_toolbox(index: Index, databases: Sequence[str] = (), apis: Path | None = None) -> Toolbox:
    """Gather the tables of an index, a user's databases, and the HTTP tools that a file declares.

    Raises:
        FileNotFoundError: There is no such database or file.
        QueryError: A database can't be opened.
        ApiError: A declaration is wrong.
    """
    own = {table.name: table for table in index.tables()}
    sources = {name: table.doc_id or table.source for name, table in own.items()}
    texts = {name: table.text for name, table in own.items()}
    tables = [Tables(SQLite(index.tables_path, sources), texts)] if own else []
    tables += [Tables(open_database(address)) for address in databases]
    declared = load_apis(apis) if apis else {}
    if taken := sorted({"hybrid", "keyword", "dense", SQL} & set(declared)):
        raise ApiError(f"{apis}: name: {taken[0]!r} is a tool of the program's own")
    return Toolbox(tuple(tables), declared, Fields.of(index))


def ask_tables(
    database: Database, views: Sequence[TableView], question: str, write: Decide, may_ask: Callable[[], bool]
) -> list[Attempt]:
    """Let the LM write a query and run it; what fails is told to the LM, which may write another one."""
    attempts: list[Attempt] = []
    shown = describe_tables(views, question, database.dialect)
    while len(attempts) < N_TRIES and not (attempts and attempts[-1].hits) and may_ask():
        problem = attempts[-1] if attempts else None
        told = f"{problem.query}: {problem.error}" if problem else "none yet"
        output, error = write(tables=shown, question=question, problem=told)
        attempts.append(
            _run_query(database, views, question, str(output.sql)) if output else Attempt(SQL, question, error=error)
        )
    return attempts


def _run_query(database: Database, views: Sequence[TableView], question: str, sql: str) -> Attempt:
    sql = re.sub(r"^\s*```(?:sql)?|```\s*$", "", sql).strip()
    try:
        check_values(sql, question, views)
        return Attempt(SQL, sql, (rows_to_hit(database.select(sql), sql, views),))
    except DatabaseDown as error:
        return Attempt(SQL, sql, error=str(error))
    except QueryError as error:
        return Attempt(SQL, sql, error=f"{FAILED_QUERY}{error}")


def ask_api(tools: Sequence[ApiTool], question: str, choose: Decide, may_ask: Callable[[], bool]) -> list[Attempt]:
    """Call one of the tools: with arguments by rule where the question holds them, else as the LM fills them in."""
    if len(tools) == 1 and (arguments := tools[0].arguments_by_rule(question)):
        return [_call(tools[0], arguments, by_rule=True)]
    attempts: list[Attempt] = []
    known = {tool.name: tool for tool in tools}
    shown = "\n".join(tool.describe() for tool in tools)
    while len(attempts) < N_TRIES and not (attempts and attempts[-1].hits) and may_ask():
        told = f"{attempts[-1].query}: {attempts[-1].error}" if attempts else "none yet"
        output, error = choose(tools=shown, question=question, problem=told)
        if output is None:
            attempts.append(Attempt(tools[0].name, question, error=error))
        elif output.tool in known:
            attempts.append(_call(known[output.tool], output.arguments))
        elif output.tool.strip().lower() in ("none", ""):
            break
        else:
            reason = f"no tool {output.tool!r}; known are {', '.join(known)}"
            attempts.append(Attempt(str(output.tool), question, error=reason))
    return attempts


def _call(tool: ApiTool, arguments: Mapping[str, Any], by_rule: bool = False) -> Attempt:
    shown = ", ".join(f"{name}={value}" for name, value in arguments.items())
    try:
        return Attempt(tool.name, shown, (tool.call(arguments),), decided_by_rule=by_rule)
    except ApiError as error:
        return Attempt(tool.name, shown, error=str(error), decided_by_rule=by_rule)
