import math

import dspy
import pytest
import tiny
from scripted_server import ScriptedServer

from programs.estimate import Cost, Plan, Task, estimate_compile, estimate_runs, plan_compile
from programs.lms import Roles, bind, make_lm
from programs.load import Tools
from programs.optimizers import Settings, compile_program
from programs.rag import AgenticRAG
from trainsets.cases import Case, to_example
from trainsets.metrics import combined_score

TASK = Task(n_train=40, n_val=12, n_predictors=5, max_demos=2)
COST = Cost(lm_calls=2.0, tokens=1000.0, cost_usd=0.01, seconds=10.0)


def plan_of(*stages: str, task: Task = TASK, pass_rate: float = 0.5) -> Plan:
    plan = plan_compile(stages, task, pass_rate)
    assert plan is not None
    return plan


def test_bootstrap_stops_when_it_has_its_demos_or_the_trainset_is_through() -> None:
    assert plan_of("bootstrap") == Plan(n_seed=4, n_seed_most=40, n_least=2)
    assert plan_of("bootstrap", pass_rate=0.0).n_seed == 40
    assert plan_of("bootstrap", task=Task(3, 0, 1, max_demos=9)).n_seed == 3


def test_mipro_counts_its_trials_as_dspy_does() -> None:
    by_trials = plan_of("mipro", task=Task(40, 12, 5, n_trials=3))
    assert (by_trials.n_runs, by_trials.n_written) == (3 * 12, 5 + 5 * 3)
    lm = dspy.LM("openai/x")
    optimizer = dspy.MIPROv2(metric=lambda *_: 1.0, auto="light", prompt_model=lm, task_model=lm)
    program = dspy.Module()
    program.one, program.two = dspy.Predict("a -> b"), dspy.Predict("b -> c")
    n_trials = optimizer._set_num_trials_from_num_candidates(program, False, 6)
    assert plan_of("mipro", task=Task(40, 12, 2)).n_runs == n_trials * 12
    large = plan_of("mipro", task=Task(40, 400, 2))  # cut to 100 validation cases, in minibatches
    assert large.n_runs == n_trials * 35 + (n_trials // 5 + 1) * 100


@pytest.mark.parametrize("auto", ["light", "heavy"])
def test_gepa_plans_what_dspy_lets_it_spend(auto: str) -> None:
    n_candidates = {"light": 6, "heavy": 18}[auto]
    budget = dspy.GEPA.auto_budget(None, 5, n_candidates, 12)  # type: ignore[arg-type]
    assert plan_of("gepa", task=Task(40, 12, 5, auto=auto)).n_runs == budget


def test_stages_add_up_and_an_unknown_one_is_no_plan() -> None:
    chain = plan_of("bootstrap", "mipro")
    assert chain.n_seed == plan_of("bootstrap").n_seed + plan_of("mipro").n_seed
    assert chain.n_least == plan_of("bootstrap").n_least
    assert plan_compile(["bootstrap", "magic"], TASK, 0.5) is None
    assert plan_of("labeled") == Plan()


@pytest.mark.parametrize("stage", ["random-search", "mipro", "copro", "simba", "gepa"])
def test_more_cases_and_larger_runs_are_never_cheaper(stage: str) -> None:
    small, large = Task(20, 6, 2), Task(80, 40, 5, auto="heavy")
    assert plan_of(stage, task=small).n_runs < plan_of(stage, task=large).n_runs
    assert plan_of(stage, task=small).n_least > 0


def test_an_estimate_goes_from_no_demos_to_all_of_them() -> None:
    estimate = estimate_compile(Plan(n_seed=4, n_seed_most=40, n_runs=100), COST, TASK)
    assert estimate.lm_calls == (208, 280)
    assert estimate.tokens == (104_000, 340_000)
    assert estimate.seconds == (1040, 3400)
    assert estimate.say() == "208 to 280 LM calls · 104k to 340k tokens · 17 min to 57 min · $1.04 to $3.40"
    parallel = estimate_compile(Plan(n_runs=100), COST, TASK, n_threads=4)
    assert parallel.seconds == (250, 750)


def test_calls_that_write_instructions_cost_more_than_others() -> None:
    estimate = estimate_compile(Plan(n_written=10), COST, TASK)
    assert estimate.lm_calls == (10, 10)
    assert math.isclose(estimate.tokens[0], 10 * 500 * 3)


def test_what_was_not_measured_is_not_told() -> None:
    untimed = Cost(lm_calls=2.0, tokens=1000.0, cost_usd=0.0, seconds=None)
    assert estimate_runs(10, 0, untimed, TASK).say() == "20 LM calls · 10k tokens"
    assert estimate_compile(Plan(n_written=3), Cost(0, 0, 0, None), TASK).lm_calls == (3, 3)


def test_measuring_runs_seed_and_compiled_programs() -> None:
    estimate = estimate_runs(10, 10, COST, TASK)
    assert estimate.lm_calls == (40, 40)
    assert estimate.tokens == (20_000, 40_000)


@pytest.mark.parametrize("optimizer", ["bootstrap", "mipro", "gepa"])
def test_a_real_compile_stays_within_its_plan(optimizer: str, tools: Tools) -> None:
    train, val = (
        [to_example(Case(**case)) for case in map(as_case, tiny.cases_of(split))] for split in ("train", "dev")
    )
    answers = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}

    def metric(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> float:
        return combined_score(example.case, prediction)

    with ScriptedServer(answers, needs_demos=frozenset(list(answers)[2:6])) as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            settings = Settings(optimizer, max_demos=2, n_trials=3, seed=1)
            program = AgenticRAG(tools.retrievers)
            compile_program(program, metric, train, val, settings)
        n_runs = len(server.calls_of("citations"))
        n_written = len(server.calls_of("proposed_instruction")) + len(server.calls_of("new_instruction"))
    plan = plan_of(
        optimizer, task=Task(len(train), len(val), len(program.predictors()), max_demos=2, n_trials=3), pass_rate=1.0
    )
    assert plan.n_least <= n_runs <= plan.n_seed_most + plan.n_runs
    assert n_written <= plan.n_written


def as_case(record: dict) -> dict:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
