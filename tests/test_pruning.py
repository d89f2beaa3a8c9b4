from collections.abc import Callable

import dspy
import pytest
import tiny
from scripted_server import Request, ScriptedServer, question_of

from programs.export import render_prompts
from programs.lms import Roles, bind, make_lm
from programs.load import Tools
from programs.meter import BudgetExceeded
from programs.pruning import prune_demos
from programs.rag import AgenticRAG, NaiveRAG
from trainsets.cases import Case
from trainsets.evaluation import run_cases

CASES = [Case.model_validate_json(tiny.line_of(case)) for case in tiny.cases_of("train")[:3]]
ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}
Score = Callable[[NaiveRAG], float]


def demo(mark: str, padding: int = 0) -> dspy.Example:
    return dspy.Example(passages="<passage 1> t" + " x" * padding, question=mark, answer="a", citations=[1])


def with_demos(tools: Tools, *demos: dspy.Example) -> AgenticRAG:
    program = AgenticRAG(tools.retrievers)
    program.answer.demos = list(demos)
    return program


def marks(program: NaiveRAG) -> list[str]:
    return [one.question for one in program.answer.demos]


def scoring_by(*needed: str) -> Score:
    """Each needed demo is worth a half; the real program runs, so that it is seen which predictors do."""

    def score(program: NaiveRAG) -> float:
        for case in CASES[:1]:
            program(question=case.question)
        return sum(0.5 for mark in needed if mark in marks(program))

    return score


@pytest.fixture
def bound() -> object:
    with ScriptedServer(ANSWERS) as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            yield server


def test_demos_that_add_nothing_go_and_those_that_pay_stay(tools: Tools, bound: ScriptedServer) -> None:
    program = with_demos(tools, demo("useless", 400), demo("useful", 900), demo("idle"))
    before = render_prompts(program)
    pruned = prune_demos(program, scoring_by("useful"))
    assert marks(pruned.program) == ["useful"]
    assert [(one.predictor, one.number) for one in pruned.dropped] == [("answer", 1), ("answer", 3)]
    assert pruned.dropped[0].n_tokens > 200 > pruned.dropped[1].n_tokens
    assert (pruned.n_tried, pruned.score_before, pruned.score_after) == (3, 0.5, 0.5)
    assert pruned.say().startswith("pruning: 2 of 3 demos dropped, ≈ 2")
    assert pruned.say().endswith("tokens; score 0.500 → 0.500")
    assert render_prompts(program) == before


def test_a_demo_that_harms_goes_and_the_score_rises(tools: Tools, bound: ScriptedServer) -> None:
    pruned = prune_demos(with_demos(tools, demo("bad")), lambda program: 0.0 if scoring_by("bad")(program) else 1.0)
    assert (marks(pruned.program), pruned.score_before, pruned.score_after) == ([], 0.0, 1.0)


def test_of_two_demos_that_do_the_same_the_longer_goes(tools: Tools, bound: ScriptedServer) -> None:
    def either(program: NaiveRAG) -> float:
        scoring_by()(program)
        return float(bool(marks(program)))

    assert marks(prune_demos(with_demos(tools, demo("short"), demo("long", 99)), either).program) == ["short"]


def test_a_demo_has_to_add_what_is_asked_of_it(tools: Tools, bound: ScriptedServer) -> None:
    program = with_demos(tools, demo("half"))
    assert marks(prune_demos(program, scoring_by("half"), min_gain=0.4).program) == ["half"]
    assert marks(prune_demos(program, scoring_by("half"), min_gain=0.5).program) == []


def test_demos_of_a_predictor_that_did_not_run_are_left_alone(tools: Tools, bound: ScriptedServer) -> None:
    program = with_demos(tools, demo("idle"))
    program.condense.demos = [dspy.Example(conversation="c", question="q", standalone="s")]
    pruned = prune_demos(program, scoring_by())
    assert marks(pruned.program) == []
    assert len(pruned.program.condense.demos) == 1


def test_a_budget_ends_pruning_with_what_was_decided(tools: Tools, bound: ScriptedServer) -> None:
    program = with_demos(tools, demo("a", 30), demo("b", 20), demo("c", 10))

    def limited(n: int) -> Score:
        calls = iter(range(n))

        def score(program: NaiveRAG) -> float:
            if next(calls, None) is None:
                raise BudgetExceeded("spent")
            return scoring_by("b")(program)

        return score

    stopped = prune_demos(program, limited(3))
    assert stopped.stopped_at_budget
    assert marks(stopped.program) == ["b", "c"]
    assert (stopped.n_tried, stopped.score_after) == (2, 0.5)
    assert "the other demos stay untried" in stopped.say()
    nothing = prune_demos(program, limited(0))
    assert (marks(nothing.program), nothing.score_before) == (["a", "b", "c"], None)
    assert nothing.say() == "pruning: no demo was tried; budget reached, the other demos stay untried"


def test_the_real_program_is_pruned_over_cases_and_the_same_again(tools: Tools) -> None:
    def answer(request: Request) -> str:
        has_it = any("useful" in str(message["content"]) for message in request["messages"])
        return tiny.answer_json(ANSWERS[question_of(request)] if has_it else "something else")

    def score(program: NaiveRAG) -> float:
        return sum(result.scores["combined"] or 0.0 for result in run_cases(program, CASES)) / len(CASES)

    program = with_demos(tools, demo("useless", 50), demo("useful", 50))
    with ScriptedServer(ANSWERS, replies={"answer": answer}) as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            first = prune_demos(program, score)
            n_calls = len(server.requests)
            again = prune_demos(program, score)
    assert marks(first.program) == ["useful"]
    assert (first.score_before, first.score_after) == (1.0, 1.0)
    assert render_prompts(again.program) == render_prompts(first.program)
    assert len(server.requests) == n_calls  # every answer came from the cache
