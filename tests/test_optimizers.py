import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest
import tiny
from dspy.evaluate import evaluate as evaluate_module
from dspy.utils.exceptions import LMServerError
from scripted_server import Reply, Request, ScriptedServer, fields_of, has_demos, question_of

from programs import optimizers
from programs.budget import Budget
from programs.endpoint import Patience
from programs.export import render_prompts
from programs.lms import Roles, bind, make_lm
from programs.load import Tools
from programs.meter import EndpointDown, Meter
from programs.optimizers import Compiled, DemoAwareMIPRO, Job, compile_program
from programs.rag import AgenticRAG, NaiveRAG
from programs.settings import Settings
from programs.trials import Watch
from trainsets.cases import Case, to_example
from trainsets.metrics import combined_score

pytestmark = pytest.mark.slow

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}
TRAIN = [to_example(Case.model_validate_json(line)) for line in map(tiny.line_of, tiny.cases_of("train"))]
DEV = [to_example(Case.model_validate_json(line)) for line in map(tiny.line_of, tiny.cases_of("dev"))]

STEP_DEMO = dspy.Example(
    augmented=True,
    passages="<passage 1> Fuse list\nF7 guards the fan.\n</passage>",
    question="Which fuse guards the fan?",
    answer="F7",
    citations=[1],
)


def metric(example: Any, prediction: Any, trace: Any = None) -> float | bool:
    score = combined_score(example.case, prediction)
    return score if trace is None else score >= 0.8


def compile_with(
    server: ScriptedServer,
    tools: Tools,
    settings: Settings,
    *,
    budget: int | None = None,
    teacher: Any = None,
    program: NaiveRAG | None = None,
    **more: Any,
) -> tuple[Compiled, Meter]:
    lm = make_lm("openai/test", server.url, patience=Patience(n_retries=0))
    watch = Watch(Budget(budget))
    with bind(Roles(lm, lm)):
        program = program or AgenticRAG(tools.retrievers)
        more = {"watch": watch, **more}
        return compile_program(program, metric, TRAIN, DEV, settings, teacher, **more), lm.meter


def demos_of(program: dspy.Module) -> dict[str, list[Any]]:
    return {name: predictor.demos for name, predictor in program.named_predictors() if predictor.demos}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("dspy").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("dspy").setLevel(logging.INFO)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(ANSWERS) as scripted:
        yield scripted


def test_bootstrap_fills_the_real_program_with_runs_that_were_right(server: ScriptedServer, tools: Tools) -> None:
    wrong = TRAIN[0].question
    del server.answers[wrong]
    compiled, _ = compile_with(server, tools, Settings("bootstrap", max_demos=2))
    demos = demos_of(compiled.program)
    assert {"answer", "judge"} <= set(demos)
    assert {demo.question for demo in demos["answer"]} == {TRAIN[1].question, TRAIN[2].question}
    assert all(demo.answer == ANSWERS[demo.question] and demo.augmented for demo in demos["answer"])
    assert "<passage 1>" in demos["answer"][0].passages  # never a raw gold case, which has no passages
    assert not compiled.stopped_at_budget


def test_compiling_leaves_the_seed_program_as_it_was(server: ScriptedServer, tools: Tools) -> None:
    seed = AgenticRAG(tools.retrievers)
    before = render_prompts(seed)
    for optimizer in ("bootstrap", "mipro"):
        compiled, _ = compile_with(server, tools, Settings(optimizer, n_trials=1), program=seed)
        assert compiled.program is not seed
        assert compiled.program.retrievers["hybrid"] is tools.retrievers["hybrid"]
        assert compiled.program.bounds == seed.bounds
    assert render_prompts(seed) == before
    assert demos_of(seed) == {}


@pytest.mark.parametrize("n", [1, 3])
def test_no_predictor_gets_more_demos_than_allowed(server: ScriptedServer, tools: Tools, n: int) -> None:
    compiled, _ = compile_with(server, tools, Settings("bootstrap", max_demos=n))
    assert max(map(len, demos_of(compiled.program).values())) == n


def test_nothing_right_is_a_program_without_demos(server: ScriptedServer, tools: Tools) -> None:
    server.answers.clear()
    compiled, _ = compile_with(server, tools, Settings("bootstrap"))
    assert demos_of(compiled.program) == {}
    assert render_prompts(compiled.program) == render_prompts(AgenticRAG(tools.retrievers))


def test_the_same_compile_gives_the_same_program(server: ScriptedServer, tools: Tools) -> None:
    for settings in (Settings("bootstrap"), Settings("mipro", n_trials=1, seed=3)):
        one, _ = compile_with(server, tools, settings)
        n_calls = len(server.requests)
        two, meter = compile_with(server, tools, settings)
        assert render_prompts(one.program) == render_prompts(two.program)
        assert len(server.requests) == n_calls  # all from the cache
        assert meter.paid_calls == 0


def test_a_budget_ends_bootstrapping_with_the_demos_so_far(server: ScriptedServer, tools: Tools) -> None:
    whole, meter = compile_with(server, tools, Settings("bootstrap", max_demos=3))
    one_run = meter.paid_calls // 3
    server.requests.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPILED_RAG_CACHE", f"{tools.index.path}/other-cache")
        stopped, meter = compile_with(server, tools, Settings("bootstrap", max_demos=3), budget=one_run + 1)
    assert stopped.stopped_at_budget
    assert meter.paid_calls == len(server.requests) == one_run + 1
    [demo] = demos_of(stopped.program)["answer"]
    assert demo.question == TRAIN[0].question
    assert demo in demos_of(whole.program)["answer"]
    assert render_prompts(stopped.program.deepcopy()) == render_prompts(stopped.program)


PROPOSED = "Answer in the words of the passage. Marked."


def needs_the_proposal(request: Request) -> str:
    """Right only with the proposed instruction, or for the questions that are easy."""
    question = question_of(request)
    is_right = PROPOSED in request["messages"][0]["content"] or question in [case.question for case in TRAIN[:2]]
    return tiny.answer_json(ANSWERS[question] if is_right else "something else")


@pytest.fixture
def proposing() -> Iterator[ScriptedServer]:
    replies = {
        "answer": needs_the_proposal,
        "proposed_instruction": lambda request: f'{{"proposed_instruction": "{PROPOSED}"}}',
    }
    with ScriptedServer(ANSWERS, replies=replies) as scripted:
        yield scripted


MIPRO = Settings("mipro", max_demos=1, n_trials=3, seed=1)


def test_mipro_runs_its_three_steps_and_keeps_the_better_instruction_also_at_its_budget(
    proposing: ScriptedServer, tools: Tools, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled, meter = compile_with(proposing, tools, MIPRO)
    assert proposing.calls_of("proposed_instruction")  # step 2, of instructions
    asked = {question_of(request) for request in proposing.calls_of("citations")}
    assert {case.question for case in DEV} <= asked  # step 3, of trials on the validation cases
    assert any(has_demos(request) for request in proposing.calls_of("citations"))  # with demos from step 1
    assert compiled.program.answer.signature.instructions == PROPOSED
    assert not compiled.stopped_at_budget

    budget = meter.paid_calls - 1
    proposing.requests.clear()
    monkeypatch.setenv("COMPILED_RAG_CACHE", str(tmp_path))
    stopped, meter = compile_with(proposing, tools, MIPRO, budget=budget)
    assert stopped.stopped_at_budget
    assert meter.paid_calls == len(proposing.requests) == budget
    assert stopped.program.answer.signature.instructions == PROPOSED


def test_a_budget_that_ends_mipro_before_its_first_score_gives_the_seed(
    proposing: ScriptedServer, tools: Tools
) -> None:
    stopped, meter = compile_with(proposing, tools, MIPRO, budget=2)
    assert stopped.stopped_at_budget
    assert meter.paid_calls == len(proposing.requests) == 2
    assert render_prompts(stopped.program) == render_prompts(AgenticRAG(tools.retrievers))


@pytest.mark.parametrize("optimizer", ["bootstrap", "mipro"])
def test_stdout_stays_clean_while_optimizers_print(
    server: ScriptedServer, tools: Tools, optimizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_with(server, tools, Settings(optimizer, n_trials=1))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Bootstrap" in captured.err


@pytest.mark.parametrize("optimizer", ["bootstrap", "mipro"])
@pytest.mark.parametrize("n_good", [0, 3])
def test_an_lm_that_goes_down_ends_the_compile(tools: Tools, optimizer: Any, n_good: int) -> None:
    with (
        ScriptedServer(ANSWERS, dies_after=n_good) as server,
        pytest.raises((EndpointDown, LMServerError), match="scripted failure 500"),
    ):
        compile_with(server, tools, Settings(optimizer, n_trials=2))


def test_a_teacher_runs_the_program_while_demos_are_collected(tools: Tools) -> None:
    with ScriptedServer() as student, ScriptedServer(ANSWERS) as teacher:
        lm = make_lm("openai/teacher", teacher.url)
        compiled, meter = compile_with(student, tools, Settings("bootstrap"), teacher=lm)
        assert student.requests == []
        assert len(teacher.requests) == lm.meter.paid_calls > 0
        assert meter.paid_calls == 0
        assert ANSWERS[TRAIN[0].question] in [demo.answer for demo in demos_of(compiled.program)["answer"]]
        assert all(predictor.lm is None for predictor in compiled.program.predictors())


def test_a_decision_lm_of_its_own_is_used_while_compiling(tools: Tools) -> None:
    with ScriptedServer(ANSWERS) as answering, ScriptedServer(ANSWERS) as deciding:
        roles = Roles(make_lm("openai/d", deciding.url), make_lm("openai/a", answering.url))
        with bind(roles):
            compile_program(AgenticRAG(tools.retrievers), metric, TRAIN, [], Settings("bootstrap"))
        assert all("citations" in str(request["response_format"]) for request in answering.requests)
        assert answering.requests
        assert deciding.calls_of("verdict")
        assert not deciding.calls_of("citations")


SMALL = {
    "labeled": Settings("labeled", max_demos=2),
    "knn": Settings("knn", max_demos=2),
    "bootstrap": Settings("bootstrap", max_demos=2),
    "random-search": Settings("random-search", max_demos=2, n_trials=1, seed=4),
    "mipro": Settings("mipro", max_demos=1, n_trials=2, seed=3),
    "copro": Settings("copro", max_demos=1, n_trials=2),
    "simba": Settings("simba", max_demos=2, n_trials=2, seed=1),
    "gepa": Settings("gepa", n_trials=3, seed=1),
    "chain": Settings("chain:labeled,gepa", max_demos=1, n_trials=2),
}
WRITTEN = {"proposed_instruction", "new_instruction", "module_advice"}


def helped_by_demos_or_instructions(request: Request) -> str:
    question, helped = question_of(request), has_demos(request) or PROPOSED in request["messages"][0]["content"]
    is_right = helped or question == TRAIN[0].question
    return tiny.answer_json(ANSWERS[question] if is_right else "something else")


def write_instructions(request: Request) -> str:
    """Every text field is the instruction; advice is for the answerer."""
    return json.dumps(
        {name: {"answer": PROPOSED} if name == "module_advice" else PROPOSED for name in fields_of(request)}
    )


@pytest.fixture
def helpful() -> Iterator[ScriptedServer]:
    by_field = dict.fromkeys(["proposed_instruction", "new_instruction", "discussion"], write_instructions)
    with ScriptedServer(ANSWERS, replies={"answer": helped_by_demos_or_instructions, **by_field}) as scripted:
        yield scripted


def score_on_dev(server: ScriptedServer, program: NaiveRAG) -> float:
    lm = make_lm("openai/test", server.url)
    with bind(Roles(lm, lm)):
        return sum(float(metric(case, program(**case.inputs()))) for case in DEV) / len(DEV)


@pytest.mark.parametrize("settings", SMALL.values(), ids=SMALL)
def test_every_optimizer_compiles_the_real_program_to_a_better_one_and_the_same_again(
    helpful: ScriptedServer, tools: Tools, settings: Settings
) -> None:
    more = {"step_demos": {"answer": [STEP_DEMO]}, "embed": tools.index.embedder.embed_queries}
    compiled, _ = compile_with(helpful, tools, settings, **more)
    assert score_on_dev(helpful, AgenticRAG(tools.retrievers)) < 0.5 < score_on_dev(helpful, compiled.program)
    assert all(predictor.lm is None for predictor in compiled.program.predictors())
    assert set(compiled.program.dump_state()) == {name for name, _ in compiled.program.named_predictors()}
    n_calls = len(helpful.requests)
    again, meter = compile_with(helpful, tools, settings, **more)
    assert (len(helpful.requests), meter.paid_calls) == (n_calls, 0)  # the whole way from the cache
    assert render_prompts(again.program) == render_prompts(compiled.program)
    assert not set(vars(compiled.program)) - set(vars(AgenticRAG(tools.retrievers)))  # nothing of the optimizer's


def test_a_budget_ends_every_optimizer_with_its_best_so_far_and_the_same_again(
    helpful: ScriptedServer, tools: Tools
) -> None:
    more = {"step_demos": {"answer": [STEP_DEMO]}, "embed": tools.index.embedder.embed_queries}
    for name in ("random-search", "copro", "simba", "gepa"):
        helpful.requests.clear()
        budget = 40 if name == "simba" else 25
        stopped, meter = compile_with(helpful, tools, SMALL[name], budget=budget, **more)
        assert stopped.stopped_by == f"the budget of {budget} LM calls is spent"
        assert meter.paid_calls <= len(helpful.requests) <= budget
        assert all(trial.lm_calls <= budget for trial in stopped.trials)
        again, meter = compile_with(helpful, tools, SMALL[name], budget=budget, **more)
        assert (again.stopped_by, meter.paid_calls) == (stopped.stopped_by, 0)
        assert render_prompts(again.program) == render_prompts(stopped.program)


def test_a_stopped_stage_ends_the_chain_and_a_higher_budget_goes_on_from_there(
    helpful: ScriptedServer, tools: Tools
) -> None:
    chain = Settings("chain:bootstrap,random-search", max_demos=1, n_trials=1)
    stopped, meter = compile_with(helpful, tools, chain, budget=3)
    assert stopped.stopped_at_budget
    n_calls = len(helpful.requests)
    whole, meter = compile_with(helpful, tools, chain)
    assert not whole.stopped_at_budget
    assert meter.usage.cached_calls >= n_calls  # what the first one paid for


def test_optimizers_start_from_the_demos_a_program_has(helpful: ScriptedServer, tools: Tools) -> None:
    start = AgenticRAG(tools.retrievers)
    start.answer.demos = [STEP_DEMO]
    for settings in (SMALL["gepa"], SMALL["random-search"], Settings("bootstrap", max_demos=9)):
        compiled, _ = compile_with(helpful, tools, settings, program=start)
        assert STEP_DEMO in compiled.program.answer.demos, settings.optimizer
    assert start.answer.demos == [STEP_DEMO]
    lm = make_lm("openai/test", helpful.url)
    job = Job(metric, TRAIN, DEV, SMALL["mipro"], step_demos={"answer": [STEP_DEMO]})
    with bind(Roles(lm, lm)):
        optimizer = DemoAwareMIPRO(job, metric=metric, auto="light", max_labeled_demos=0, max_bootstrapped_demos=1)
        optimizer._set_random_seeds(1)
        found = optimizer._bootstrap_fewshot_examples(
            start, TRAIN, 1, None, num_fewshot_candidates=4, max_bootstrapped_demos=1, max_labeled_demos=0,
            max_errors=1, metric_threshold=None,
        )  # fmt: skip
    sets = dict(zip([name for name, _ in start.named_predictors()], found.values(), strict=True))
    assert [STEP_DEMO] in sets["answer"]
    assert len({len(each) for each in sets.values()}) == 1  # MIPROv2 expects as many sets for each predictor


def test_an_lm_of_its_own_writes_the_instructions(helpful: ScriptedServer, tools: Tools) -> None:
    for name in ("mipro", "copro", "gepa"):
        with ScriptedServer(replies=helpful.replies) as writing:
            compile_with(helpful, tools, SMALL[name], proposer=make_lm("openai/writer", writing.url))
            assert any(WRITTEN & set(fields_of(request)) for request in writing.requests)
        assert not any(WRITTEN & set(fields_of(request)) for request in helpful.requests), name


def test_gepa_hands_the_feedback_on_a_predictor_to_the_lm_that_rewrites_it(
    helpful: ScriptedServer, tools: Tools
) -> None:
    def tell(example: Any, prediction: Any, predictor: str) -> str:
        return f"told of {predictor}: {example.id}"

    compile_with(helpful, tools, SMALL["gepa"], feedback=tell)
    written = [str(request["messages"]) for request in helpful.calls_of("new_instruction")]
    assert written
    assert all("told of" in text for text in written)
    assert not any("told of condense" in text for text in written)  # no run called it


def test_bootstrapping_accepts_by_the_bool_and_candidates_are_scored_by_the_number(
    helpful: ScriptedServer, tools: Tools
) -> None:
    # A float is truthy, so a metric that only gave numbers would make demos of every run.
    calls: list[bool] = []

    def lenient(example: Any, prediction: Any, trace: Any = None) -> float | bool:
        calls.append(trace is not None)
        return metric(example, prediction) if trace is None else False

    lm = make_lm("openai/test", helpful.url)
    with bind(Roles(lm, lm)):
        for name in ("bootstrap", "random-search"):
            compiled = compile_program(AgenticRAG(tools.retrievers), lenient, TRAIN, DEV, SMALL[name])
            assert demos_of(compiled.program) == {}
    assert set(calls) == {True, False}


@pytest.mark.parametrize("name", ["random-search", "simba", "gepa", "mipro"])
def test_a_budget_holds_with_several_threads(helpful: ScriptedServer, tools: Tools, name: str) -> None:
    settings = replace(SMALL[name], n_threads=4)
    at_once = {example.question for example in (TRAIN if name == "simba" else DEV)}

    def in_company(reply: Callable[[Request], Reply], request: Request) -> Reply:
        if question_of(request) in at_once:
            helpful.wait_until(lambda: helpful.most_in_flight > 1)
        return reply(request)

    for field in ("quotes", "answer"):
        helpful.replies[field] = partial(in_company, helpful.replies.get(field, helpful.scripted_reply))
    stopped, _ = compile_with(helpful, tools, settings, budget=20)
    assert stopped.stopped_by == "the budget of 20 LM calls is spent"
    assert helpful.most_in_flight > 1
    assert len(helpful.requests) <= 20 + settings.n_threads


def test_mipro_keeps_its_best_so_far_also_where_it_scores_on_a_part_of_the_validation_cases(
    helpful: ScriptedServer, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(optimizers._MIPRO_VALSET, "light", 2)  # for 100
    compile_settings = Settings("mipro", max_demos=1, auto="light", seed=1)
    first_score = compile_with(helpful, tools, compile_settings, budget=45)[0].trials[0]
    assert first_score.n_cases == 2
    helpful.requests.clear()
    stopped, _ = compile_with(helpful, tools, compile_settings, budget=first_score.lm_calls + 1)
    assert stopped.stopped_at_budget
    assert [trial.number for trial in stopped.trials][:1] == [1]


@pytest.mark.parametrize("name", ["bootstrap", "random-search", "mipro", "simba", "gepa"])
def test_a_metric_that_raises_ends_the_compile_and_is_no_score_of_zero(
    helpful: ScriptedServer, tools: Tools, name: str
) -> None:
    def broken(example: Any, prediction: Any, trace: Any = None) -> float | bool:
        raise KeyError("a column that is not there")

    lm = make_lm("openai/test", helpful.url)
    with bind(Roles(lm, lm)), pytest.raises(KeyError, match="a column that is not there"):
        compile_program(AgenticRAG(tools.retrievers), broken, TRAIN, DEV, SMALL[name])


def test_a_program_that_fails_on_a_case_scores_zero_there_and_the_compile_goes_on(
    helpful: ScriptedServer, tools: Tools
) -> None:
    helpful.replies["answer"] = lambda request: (
        400 if question_of(request) == TRAIN[1].question else helped_by_demos_or_instructions(request)
    )
    for name in ("random-search", "simba"):
        compiled, _ = compile_with(helpful, tools, SMALL[name], step_demos={"answer": [STEP_DEMO]})
        assert demos_of(compiled.program) or name == "simba"
        assert compiled.trials


def test_mipro_without_validation_cases_scores_on_all_train_cases(helpful: ScriptedServer, tools: Tools) -> None:
    # MIPROv2 by itself would take four fifths of them away from the demos.
    lm = make_lm("openai/test", helpful.url)
    with bind(Roles(lm, lm)):
        compiled = compile_program(AgenticRAG(tools.retrievers), metric, TRAIN, [], SMALL["mipro"])
    assert {trial.n_cases for trial in compiled.trials} == {len(TRAIN)}


def test_a_module_that_an_optimizer_marked_as_compiled_is_saved_all_the_same(tools: Tools) -> None:
    # DSPy leaves such a module out of `named_parameters`, and so out of what is saved.
    seed, marked = AgenticRAG(tools.retrievers), AgenticRAG(tools.retrievers)
    marked.answer.demos = [STEP_DEMO]
    marked._compiled = True
    bare = optimizers._bare(seed, marked)
    assert not getattr(bare, "_compiled", False)
    assert bare.dump_state().keys() == seed.dump_state().keys()
    assert bare.answer.demos == [STEP_DEMO]


def test_a_case_that_dspy_sends_again_is_scored_once_and_not_counted_again(
    helpful: ScriptedServer, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It sends the last ones again after two minutes, while the first attempt goes on.
    monkeypatch.setattr(evaluate_module, "ParallelExecutor", partial(evaluate_module.ParallelExecutor, timeout=0.01))
    answer = helpful.replies["answer"]

    def answer_once_sent_again(request: Request) -> Reply:
        helpful.wait_until(lambda: len(helpful.requests) > 2)  # DSPy looks once a second
        return answer(request)

    helpful.replies["answer"] = answer_once_sent_again
    lm, watch = make_lm("openai/test", helpful.url, cache=False), Watch(Budget())
    program = NaiveRAG(tools.retrievers)
    watch.begin("test", DEV[:2])
    with bind(Roles(lm, lm)), dspy.context(callbacks=[watch, watch.budget]):
        dspy.Evaluate(devset=DEV[:2], metric=metric, num_threads=4)(program)
        assert [trial.n_cases for trial in watch.trials] == [2]
        sent = [str(request["messages"]) for request in helpful.requests]
        assert len(sent) > watch.budget.n_calls == len(set(sent))
