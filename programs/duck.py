"""One DuckDB query in a process of its own, which can be ended: DuckDB looks for an interrupt too seldom for that."""

import json
import resource
import sys
from contextlib import closing
from typing import Any

_CONFIG: dict[str, Any] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "lock_configuration": "true",
    "memory_limit": "512MB",
    "threads": "2",
}
_MAX_MEMORY = 4 << 30  # of the process, address space; a value that DuckDB builds is not under its own limit


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run the SELECT of a request `{"path", "sql", "n"}`; returns columns and rows, or an error."""
    try:
        import duckdb
    except ImportError:
        return {"error": "the duckdb package is not installed: pip install 'compiled-rag[databases]'"}
    try:
        with closing(duckdb.connect(request["path"], read_only=True, config=_CONFIG)) as connection:
            statements = connection.extract_statements(request["sql"])
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                return {"error": "refused: exactly one SELECT is allowed"}
            cursor = connection.execute(statements[0])
            columns = [column[0] for column in cursor.description or []]
            return {"columns": columns, "rows": cursor.fetchmany(request["n"])}
    except (duckdb.Error, MemoryError, RuntimeError, TypeError, ValueError) as error:
        return {"error": str(error) or type(error).__name__}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin)), default=str))
