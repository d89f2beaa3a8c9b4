"""Which way questions go before the first search: by rule, or by the planner; told without an LM."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Literal, Protocol

from programs.planning import find_choices, plan_by_rule, stands_alone
from programs.rules import is_small_talk
from programs.tools import Toolbox

Route = Literal["small talk", "asked back", "search", "filtered", "tools", "planner"]
COLUMNS = (
    "kind",
    "cases",
    "no planner",
    "share",
    "small talk",
    "asked back",
    "search",
    "filtered",
    "tools",
    "condensed",
)


class Asked(Protocol):
    """A question with what was said before it, and its kind."""

    @property
    def question(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def history(self) -> Sequence[object]: ...  # noqa: D102


def find_route(question: str, toolbox: Toolbox, today: date, *, is_follow_up: bool = False) -> Route:
    """Tell which way `AgenticRAG` sends a question; a follow-up is taken as if it had been made to stand alone."""
    if is_small_talk(question):
        return "small talk"
    if not is_follow_up and find_choices(question, toolbox.fields):
        return "asked back"
    steps = plan_by_rule(question, toolbox, today)
    if steps is None:
        return "planner"
    if any(step.tool != "hybrid" for step in steps):
        return "tools"
    return "filtered" if len(steps) > 1 else "search"


def count_routes(cases: Iterable[Asked], toolbox: Toolbox, today: date) -> dict[str, dict[str, int]]:
    """Count the routes of cases by kind; `condensed` are follow-ups that an LM makes stand alone first."""
    counts: dict[str, dict[str, int]] = {}
    for case in cases:
        route = find_route(case.question, toolbox, today, is_follow_up=bool(case.history))
        needs_condensing = bool(case.history) and route != "small talk" and not stands_alone(case.question)
        row = counts.setdefault(case.kind or "-", {})
        for name in (route, *(["condensed"] if needs_condensing else [])):
            row[name] = row.get(name, 0) + 1
    return counts


def route_rows(counts: Mapping[str, Mapping[str, int]]) -> list[tuple[str, ...]]:
    """Lay out counts under `COLUMNS`, one row a kind and one for all."""
    names = [name for name in COLUMNS if any(name in row for row in counts.values())]
    total = {name: sum(row.get(name, 0) for row in counts.values()) for name in (*names, "planner")}
    return [_row(kind, row) for kind, row in sorted(counts.items())] + [_row("all", total)]


def _row(kind: str, row: Mapping[str, int]) -> tuple[str, ...]:
    n = sum(count for name, count in row.items() if name != "condensed")
    n_by_rule = n - row.get("planner", 0)
    share = f"{n_by_rule / n:.0%}" if n else "-"
    return (kind, str(n), str(n_by_rule), share, *(str(row.get(name, 0)) for name in COLUMNS[4:]))
