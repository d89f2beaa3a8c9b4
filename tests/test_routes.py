from datetime import date
from pathlib import Path

import pytest

from programs.__main__ import main
from programs.load import Tools
from programs.narrowing import Fields
from programs.routes import COLUMNS, count_routes, find_route, route_rows
from programs.tools import NO_TOOLS, Toolbox
from trainsets.cases import Case, load_sample

TODAY = date(2026, 5, 14)
FIELDS = Fields(
    {"date": "date", "type": "string", "product": "string"}, {"type": ("ticket",), "product": ("A-1", "B-1")}
)


@pytest.mark.parametrize(
    ("question", "route"),
    [
        ("Hello!", "small talk"),
        ("How much does it cost?", "asked back"),
        ("What does E-1024 mean?", "search"),
        ("Which ticket came last month?", "filtered"),
        ("Compare E-1024 and E-1025", "planner"),
    ],
)
def test_a_question_goes_the_way_that_the_program_sends_it(question: str, route: str) -> None:
    assert find_route(question, Toolbox(fields=FIELDS), TODAY) == route


def test_nobody_is_asked_back_in_a_conversation() -> None:
    assert find_route("How much does it cost?", Toolbox(fields=FIELDS), TODAY, is_follow_up=True) == "search"


def test_routes_are_counted_by_kind() -> None:
    said = ({"role": "user", "text": "What is the A-1?"},)
    cases = [
        Case(id="1", question="What does E-1024 mean?", kind="lookup"),
        Case(id="2", question="Compare E-1024 and E-1025", kind="lookup"),
        Case.model_validate({"id": "3", "question": "And the B-1?", "kind": "follow_up", "history": said}),
    ]
    counts = count_routes(cases, NO_TOOLS, TODAY)
    assert counts == {"lookup": {"search": 1, "planner": 1}, "follow_up": {"search": 1, "condensed": 1}}
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in route_rows(counts)]
    assert [(row["kind"], row["cases"], row["no planner"], row["share"]) for row in rows] == [
        ("follow_up", "1", "1", "100%"),
        ("lookup", "2", "1", "50%"),
        ("all", "3", "2", "67%"),
    ]
    assert (rows[0]["condensed"], rows[1]["condensed"]) == ("1", "0")


def test_most_lookups_and_single_hops_of_the_sample_need_no_planner() -> None:
    counts = count_routes(load_sample("dev"), NO_TOOLS, TODAY)
    for kind in ("lookup", "single_hop"):
        n = sum(number for name, number in counts[kind].items() if name != "condensed")
        assert n >= 10
        assert counts[kind].get("planner", 0) <= 0.4 * n


def test_the_command_prints_the_table(tools: Tools, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["routes", "--index", str(tools.index.path), "--today", "2026-05-14"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:1] == ["single_hop"] for line in lines)
    assert main(["routes", "--index", str(tmp_path)]) == 2
    assert "no index" in capsys.readouterr().err
