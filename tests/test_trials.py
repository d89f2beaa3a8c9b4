from collections.abc import Iterator
from typing import Any

import dspy
import pytest
import tiny
from scripted_server import ScriptedServer

from programs.lms import Roles, bind, make_lm
from programs.load import Tools
from programs.rag import AgenticRAG
from programs.trials import Standing, Watch
from trainsets.cases import Case, to_example
from trainsets.metrics import combined_score

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}
DEV = [to_example(Case.model_validate_json(line)) for line in map(tiny.line_of, tiny.cases_of("dev"))]


def metric(example: Any, prediction: Any, trace: Any = None) -> float:
    return combined_score(example.case, prediction)


@pytest.fixture(scope="module")
def lm() -> Iterator[Any]:
    with ScriptedServer(ANSWERS) as server:
        yield make_lm("openai/test", server.url)


def evaluate(lm: Any, watch: Watch, program: Any, cases: list[Any]) -> None:
    with bind(Roles(lm, lm)), dspy.context(callbacks=[watch, watch.budget]):
        dspy.Evaluate(devset=cases, metric=metric, num_threads=1)(program)


def variant(tools: Tools, instructions: str) -> AgenticRAG:
    program = AgenticRAG(tools.retrievers)
    program.answer.signature = program.answer.signature.with_instructions(instructions)
    return program


def test_a_program_scored_on_all_cases_is_a_trial_and_one_on_some_is_not(lm: Any, tools: Tools) -> None:
    watch = Watch()
    watch.begin("mipro", DEV)
    evaluate(lm, watch, AgenticRAG(tools.retrievers), DEV[:2])
    assert watch.trials == []
    evaluate(lm, watch, AgenticRAG(tools.retrievers), DEV)
    [trial] = watch.trials
    assert trial.score > 0.9
    assert (trial.number, trial.stage, trial.n_cases, trial.is_best) == (1, "mipro", 3, True)
    assert trial.lm_calls == watch.budget.n_calls > 0


def test_the_best_of_a_stage_is_kept_as_it_was_and_the_first_of_equals(tools: Tools) -> None:
    watch = Watch()
    watch.begin("one", DEV)
    scores = [0.5, 0.7, 0.7, 0.6]
    programs = [variant(tools, str(number)) for number in range(4)]
    for program, score in zip(programs, scores, strict=True):
        watch.record(program, score, 3)
    programs[1].answer.demos = [dspy.Example(question="later")]
    assert watch.best is not None
    assert watch.best.answer.signature.instructions == "1"
    assert watch.best.answer.demos == []
    assert [trial.is_best for trial in watch.trials] == [True, True, False, False]
    assert len({trial.program for trial in watch.trials}) == 4
    watch.begin("two", DEV)
    assert watch.best is None
    watch.record(programs[0], 0.1, 3)
    assert (watch.trials[-1].number, watch.trials[-1].is_best) == (5, True)


def test_progress_tells_place_best_score_and_time_left(tools: Tools) -> None:
    told: list[Standing] = []
    watch = Watch(tell=told.append, cost_usd=lambda: 0.125)
    watch.begin("mipro", DEV, n_trials=2)
    watch.record(variant(tools, "a"), 0.5, 3)
    watch.record(variant(tools, "b"), 0.25, 3)
    watch.begin("gepa", DEV)
    watch.record(variant(tools, "c"), 0.75, 3)
    assert [(one.place, one.n_trials, one.best_score) for one in told] == [(1, 2, 0.5), (2, 2, 0.5), (1, None, 0.75)]
    assert [one.seconds_left for one in told[1:]] == [0.0, None]
    assert told[1].line() == "mipro trial 2/2 · score 0.250 · best 0.500 · 0 LM calls · $0.12 · about 0:00 left"
    assert told[2].line() == "gepa trial 1 · score 0.750 · best 0.750 · 0 LM calls · $0.12"


def test_runs_are_scored_where_an_optimizer_does_not_evaluate(lm: Any, tools: Tools) -> None:
    watch = Watch()
    watch.begin("simba", DEV, metric=metric, n_runs=2)
    program, exploring = AgenticRAG(tools.retrievers), AgenticRAG(tools.retrievers)
    exploring.set_lm(lm)  # as SIMBA does, at another temperature
    with bind(Roles(lm, lm)), dspy.context(callbacks=[watch]):
        for example in DEV:
            exploring(**example.inputs())
        assert watch.trials == []
        program(**DEV[0].inputs())
        program(question="something else")
        assert watch.trials == []
        program(**DEV[1].inputs())
    [trial] = watch.trials
    assert (trial.n_cases, trial.score > 0.9) == (2, True)
