from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from scripted_server import ScriptedServer

from programs.budget import Budget
from programs.compile_lms import CompileLMs
from programs.compile_run import make_watch, open_journal, prune, report_compile
from programs.journal import Trial
from programs.lms import Roles, make_lm
from programs.meter import Usage
from programs.optimizers import Compiled
from programs.rag import NaiveRAG
from programs.settings import Limits, Settings

DEMO = dspy.Example(augmented=True, passages="p", question="q", answer="a", citations=[1])


@pytest.fixture
def lms() -> Iterator[CompileLMs]:
    with ScriptedServer() as server:
        roles = Roles(lm := make_lm("openai/test", server.url), lm)
        yield CompileLMs(roles, roles.with_own_meter(), None, None)


def program(*demos: dspy.Example) -> NaiveRAG:
    made = NaiveRAG({})
    made.answer.demos = list(demos)
    return made


def test_threads_and_limits_may_change_from_one_attempt_to_the_next_and_nothing_else(
    tmp_path: Path, lms: CompileLMs
) -> None:
    def path(settings: Settings, start: NaiveRAG | None = None, **others: Any) -> Path:
        with open_journal(tmp_path, start or program(), settings, lms, others) as journal:
            return journal.path

    first = path(Settings(), cases="a")
    assert path(Settings(n_threads=8), cases="a") == first
    others = [
        path(Settings(seed=1), cases="a"),
        path(Settings(), cases="b"),
        path(Settings(), program(DEMO), cases="a"),
    ]
    assert len({first, *others}) == 4


def test_what_an_earlier_attempt_came_to_and_spent_is_told_and_counted(
    tmp_path: Path, lms: CompileLMs, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_journal(tmp_path, program(), Settings(), lms, {}) as journal:
        journal.add(Trial(1, "mipro", 0.25, 3, "abc", True, 9, 0.75))
    with open_journal(tmp_path, program(), Settings(), lms, {}) as journal:
        assert capsys.readouterr().err == "going on after 1 trials of an earlier attempt, best score 0.250\n"
        watch = make_watch(journal, lms, Limits(9, 2.0, 3.0), lambda trial, one: None)
        budget = watch.budget
        assert (budget.max_calls, budget.max_cost_usd, budget.max_minutes) == (9, 2.0, 3.0)
        lms.compiling.answer.meter.add(Usage(cost_usd=0.5))
        watch.record(program(), 0.5, 3)
        assert journal.trials[-1].cost_usd == 1.25


def test_a_pruned_program_takes_the_place_of_the_compiled_one(capsys: pytest.CaptureFixture[str]) -> None:
    def score(one: NaiveRAG) -> float:
        if dspy.settings.trace is not None:  # by which it is seen which predictors ran
            dspy.settings.trace.append((one.answer, {}, None))
        return 1.0

    compiled = Compiled(program(DEMO), None, ())
    pruned = prune(compiled, score, Budget())
    assert pruned.program.answer.demos == []
    assert compiled.program.answer.demos == [DEMO]
    assert "pruning: 1 of 1 demos dropped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("compiled", "expected"),
    [
        (Compiled(program(DEMO)), ["demos: answer 1; 4 LM calls, 1 of them made now"]),
        (
            Compiled(program(DEMO), "the budget of 4 LM calls is spent"),
            [
                "demos: answer 1; 4 LM calls, 1 of them made now (budget reached, best so far)",
                "the budget of 4 LM calls is spent; repeat the command with a higher limit to go on from here",
            ],
        ),
        (
            Compiled(program()),
            [
                "demos: none; 4 LM calls, 1 of them made now",
                "nothing that was tried was good enough to be kept: the compiled program equals the seed",
            ],
        ),
    ],
    ids=["demos", "budget", "nothing"],
)
def test_the_end_of_a_compile_is_told(
    lms: CompileLMs, capsys: pytest.CaptureFixture[str], compiled: Compiled, expected: list[str]
) -> None:
    lms.compiling.answer.meter.add(Usage(lm_calls=4, cached_calls=3))
    watch: Any = SimpleNamespace(budget=SimpleNamespace(n_calls=4))
    report_compile(compiled, program(), watch, lms)
    assert capsys.readouterr().err.splitlines() == expected
