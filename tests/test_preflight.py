from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import dspy
import pytest
import tiny
from scripted_server import ScriptedServer

from programs.budget import Budget, count_calls
from programs.compile_lms import CompileLMs
from programs.decisions import leave_out
from programs.endpoint import Patience
from programs.estimate import Cost, Plan, Task, estimate_compile
from programs.lms import Roles, bind, make_lm
from programs.load import Tools
from programs.meter import Usage
from programs.preflight import (
    Check,
    Preflight,
    Subject,
    check_agreement,
    check_bootstrap,
    check_cost,
    check_decided,
    check_dependencies,
    check_headroom,
    check_lm,
    check_sizes,
    check_thresholds,
    look,
)
from programs.probing import ProbeRun
from programs.rag import CHECK_THRESHOLD, AgenticRAG, HybridRAG, NaiveRAG
from programs.settings import Limits
from trainsets.cases import Case
from trainsets.evaluation import run_cases

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}


def runs(passed: Sequence[bool], outcome: str = "wrong_with_evidence", **usage: int) -> list[ProbeRun]:
    spent = Usage(lm_calls=2, prompt_tokens=900, completion_tokens=100, **usage)
    return [ProbeRun(one, "right" if one else outcome, spent, 4.0, "“q” → “a”") for one in passed]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(ANSWERS) as scripted:
        yield scripted


def test_packages_that_an_optimizer_imports_late_are_looked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_dependencies(["bootstrap"]).level == "ok"
    assert check_dependencies(["mipro", "gepa"]).text == "dspy[optuna], gepa"
    monkeypatch.setattr("programs.preflight.find_spec", lambda module: None)
    missing = check_dependencies(["chain", "mipro"])
    assert (missing.level, missing.text) == ("hopeless", "not installed: pip install 'dspy[optuna]'")
    assert check_dependencies(["bootstrap"]).level == "ok"


def test_sizes_are_held_against_what_is_needed() -> None:
    assert check_sizes(["mipro"], 60, 20, 100, 20).level == "ok"
    few = check_sizes(["mipro"], 60, 5, 10, 20)
    assert few.level == "doubt"
    assert "on 5 validation cases one case is 20%" in few.text
    assert "10 dev cases prove nothing, the gate wants 20" in few.text
    assert check_sizes(["bootstrap", "mipro"], 1, 0, 100, 20).level == "hopeless"


def test_an_lm_is_asked_once_for_what_the_program_will_ask_it(server: ScriptedServer, tools: Tools) -> None:
    program, lm = AgenticRAG(tools.retrievers), make_lm("openai/test", server.url)
    with bind(Roles(lm, lm)):
        for name, predictor in program.named_predictors():
            assert check_lm(name, lm, predictor).level == "ok"
    assert len(server.requests) == len(program.predictors())
    assert server.calls_of("verdict")
    assert server.calls_of("steps")


def test_an_lm_without_structured_output_is_found_and_quoted(tools: Tools) -> None:
    with ScriptedServer(replies={"quotes": lambda request: "I think it is 4 A"}) as chatty:
        lm = make_lm("openai/test", chatty.url)
        with bind(Roles(lm, lm)):
            check = check_lm("decision LM", lm, AgenticRAG(tools.retrievers).judge)
    assert (check.what, check.level) == ("decision LM", "hopeless")
    assert check.text == "openai/test gives no JSON with quotes, verdict, missing, but: I think it is 4 A"


def test_headroom_is_what_the_seed_does_not_pass() -> None:
    assert check_headroom(runs([True, False])).level == "ok"
    assert check_headroom(runs([True] * 6)).level == "doubt"
    none = check_headroom(runs([True] * 20))
    assert (none.level, len(none.causes)) == ("hopeless", 3)
    assert none.text == "the seed program passes 20 of 20 train cases: nothing to win"


def test_a_program_that_never_passes_is_refused_with_three_causes_likeliest_first() -> None:
    failing = [*runs([False] * 6), *runs([False] * 14, "not_retrieved", parse_failures=1)]
    check = check_bootstrap(failing, 40, ["bootstrap"], "the seed program")
    assert check.level == "hopeless"
    assert check.text == "no run of 20 by the seed program is good enough to become a demo"
    assert [cause.partition(":")[0] for cause in check.causes] == [
        "the evidence is not found",
        "the LM does not use what is found, or its replies can't be read",
        "the gold is narrower than right answers are",
    ]
    assert check.causes[0].endswith("– 14 of 20 cases, such as “q” → “a”")
    assert check.causes[1].endswith("– 6 of 20 cases, 14 unreadable replies, such as “q” → “a”")
    assert check.causes[2].endswith("– 0 of 20 cases")


def test_verdicts_that_change_when_asked_again_are_a_doubt() -> None:
    check = check_agreement([("sufficient", "sufficient"), ("sufficient", "insufficient")])
    assert (check.level, check.text.partition(":")[0]) == ("doubt", "1 of 2 verdicts were the same when asked again")
    assert check_agreement([("sufficient", "sufficient")]).level == "ok"


def test_one_pass_is_enough_and_other_optimizers_need_none() -> None:
    assert check_bootstrap(runs([False] * 19 + [True]), 40, ["bootstrap"], "x").level == "ok"
    assert check_bootstrap(runs([False] * 20), 40, ["copro"], "x").level == "doubt"
    assert check_bootstrap(runs([False] * 6), 40, ["bootstrap"], "x").level == "doubt"  # too few to be sure


def test_thresholds_are_looked_for_only_where_they_are_to_be_fitted() -> None:
    assert check_thresholds(["bootstrap"], HybridRAG({})) == []
    [none] = check_thresholds(["bootstrap", "reanchor"], HybridRAG({}))
    assert (none.level, none.text) == (
        "hopeless",
        "reanchor has nothing to fit: HybridRAG decides nothing at a threshold that could be fitted; "
        "use --program agentic, or another --optimizer",
    )
    program = AgenticRAG({})
    [found] = check_thresholds(["reanchor"], program)
    assert (found.level, found.text) == ("ok", f"check.supported {CHECK_THRESHOLD:g}")
    leave_out(program.check)
    [left_out] = check_thresholds(["reanchor"], program)
    assert left_out.level == "hopeless"
    assert "check.supported has a threshold of 0, so it is left out and never asked" in left_out.text


@pytest.mark.parametrize(
    ("n_decided", "n_train", "level", "text"),
    [
        (0, 60, "doubt", "0 of 6 runs came to a decision with a threshold: nothing to fit, rules settle the answers"),
        (1, 30, "doubt", "about 5 of 30 train cases to fit it on: too few to trust"),
        (2, 30, "ok", "2 of 6 runs came to a decision with a threshold: about 10 of 30 train cases to fit it on"),
    ],
)
def test_too_few_runs_that_come_to_a_decision_are_a_doubt(n_decided: int, n_train: int, level: str, text: str) -> None:
    probed = [replace(one, is_decided=place < n_decided) for place, one in enumerate(runs([True, False] * 3))]
    check = check_decided(probed, n_train)
    assert (check.what, check.level) == ("decisions", level)
    assert check.text.endswith(text)


COST = Cost(lm_calls=2, tokens=1000, cost_usd=0.01, seconds=6)
PLAN = Plan(n_seed=10, n_seed_most=10, n_runs=90, n_least=10)
EXPECTED = estimate_compile(PLAN, COST, Task(10, 10, 5, max_demos=1))


def checked(**limits: Any) -> Check:
    return check_cost(PLAN, EXPECTED, COST, Limits(**limits))


def test_a_budget_that_is_enough_is_fine() -> None:
    assert checked().text == "200 LM calls · 100k to 190k tokens · 10 min to 19 min · $1.00 to $1.90"
    assert checked(max_lm_calls=200, max_cost=2, max_minutes=20).level == "ok"


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({"max_lm_calls": 100}, "100 LM calls are about 50% of that"),
        ({"max_cost": 0.25}, "0.25 dollars are about 25% of that"),
        ({"max_minutes": 2}, "2 minutes are about 20% of that"),
    ],
)
def test_a_budget_that_ends_a_compile_early_is_told(limits: dict, share: str) -> None:
    check = checked(**limits)
    assert check.level == "doubt"
    assert share in check.text


@pytest.mark.parametrize("limits", [{"max_lm_calls": 19}, {"max_cost": 0.09}, {"max_minutes": 0.9}])
def test_a_budget_that_ends_it_before_the_first_score_is_hopeless(limits: dict) -> None:
    check = checked(**limits)
    assert check.level == "hopeless"
    assert "end it before there is anything to keep" in check.text


def test_a_limit_in_money_needs_a_price() -> None:
    free = replace(COST, cost_usd=0.0)
    check = check_cost(PLAN, EXPECTED, free, Limits(max_cost=1.0), is_priced=False)
    assert check.level == "doubt"
    assert "no price is known" in check.text


def test_all_is_said_in_lines_and_what_is_hopeless_with_its_causes() -> None:
    checks = (Check("cases", "ok", "fine"), Check("judge", "doubt", "hm"), Check("demos", "hopeless", "no", ("a", "b")))
    report = Preflight(checks)
    assert report.refusals == checks[2:]
    assert report.say().splitlines() == [
        "preflight:",
        "  ok    cases       fine",
        "  doubt judge       hm",
        "  STOP  demos       no",
        "        likely causes:",
        "        1. a",
        "        2. b",
    ]


# All of it, with the real program.

CASES = [Case.model_validate_json(tiny.line_of(case)) for case in tiny.cases_of("train")]


def subject(server: ScriptedServer, tools: Tools, **fields: Any) -> Subject[Case]:
    program = AgenticRAG(tools.retrievers)

    def run(case: Case) -> ProbeRun:
        [result] = run_cases(program, [case])
        usage = result.prediction.usage if result.prediction else Usage()
        return ProbeRun((result.scores.get("combined") or 0.0) >= 0.8, result.outcome, usage, result.seconds)

    lm = make_lm("openai/test", server.url, patience=Patience(n_retries=0))
    roles = Roles(lm, lm)
    lms = CompileLMs(roles, roles, fields.pop("teacher", None), fields.pop("proposer", None))
    given: dict[str, Any] = {"stages": ["bootstrap"], "task": Task(6, 0, 5), "n_probes": 2, "n_measured": (3, 3)}
    return Subject(**{"program": program, "cases": CASES, "run": run, **given, **fields, "lms": lms})


def looked(subject: Subject[Case], *others: Check, budget: int | None = None) -> dict[str, Check]:
    with bind(subject.lms.compiling), count_calls(Budget(budget)):
        return {check.what: check for check in look(subject, *others).checks}


def test_a_look_names_everything_and_runs_few_cases(tools: Tools) -> None:
    with ScriptedServer(ANSWERS, needs_demos=frozenset([CASES[1].question])) as server:
        about = subject(server, tools)
        checks = looked(about, Check("gold", "ok", "apart"))
        assert len({str(request["messages"]) for request in server.calls_of("citations")}) == 1 + 2
    assert list(checks) == [
        "packages", "cases", "gold", "answer LM", "decision LM", "headroom", "demos", "judge", "compile", "measuring",
    ]  # fmt: skip
    assert {check.level for check in checks.values()} == {"ok"}
    assert checks["headroom"].text == "the seed program passes 1 of 2 train cases"
    assert "LM calls" in checks["compile"].text
    assert " s" in checks["compile"].text


def test_a_program_that_passes_everything_by_its_step_demos_is_not_refused(
    server: ScriptedServer, tools: Tools
) -> None:
    passed = ProbeRun(True, "right", Usage(lm_calls=2), 4.0, "")
    program = AgenticRAG(tools.retrievers)
    all_passed: dict[str, Any] = {"program": program, "cases": CASES * 4, "run": lambda case: passed}
    assert looked(subject(server, tools, **all_passed))["headroom"].level == "hopeless"
    program.answer.demos = [dspy.Example(question="q", passages="p", answer="a", citations=[1])]
    checks = looked(subject(server, tools, **all_passed))
    assert checks["headroom"].level == "doubt"
    assert checks["headroom"].text.startswith("the seed program with its step demos passes 20 of 20 train cases")
    assert checks["demos"].text == "20 of 20 runs by the seed program with its step demos may become demos"


def test_a_second_look_is_free_and_the_compile_meets_its_answers_in_the_cache(
    tools: Tools, server: ScriptedServer
) -> None:
    first = looked(subject(server, tools))
    n_calls = len(server.requests)
    again = looked(subject(server, tools))
    assert len(server.requests) == n_calls
    assert again["headroom"] == first["headroom"]
    assert "judge" not in again
    assert " s" not in again["compile"].text  # cached answers tell no time


def test_what_is_hopeless_for_free_costs_no_call(tools: Tools, server: ScriptedServer) -> None:
    checks = looked(subject(server, tools, task=Task(1, 0, 5), stages=["mipro"]))
    assert checks["cases"].level == "hopeless"
    assert "answer LM" not in checks
    assert server.requests == []


def test_an_lm_that_can_not_be_read_is_hopeless_before_any_case_runs(tools: Tools) -> None:
    with ScriptedServer(replies={"answer": lambda request: "F3, I guess"}) as chatty:
        checks = looked(subject(chatty, tools))
        assert len(chatty.requests) == 2
    assert checks["answer LM"].level == "hopeless"
    assert "headroom" not in checks


def test_a_seed_that_never_passes_is_refused_and_a_teacher_may_save_it(tools: Tools) -> None:
    with ScriptedServer() as ignorant, ScriptedServer(ANSWERS) as knowing:
        refused = looked(subject(ignorant, tools))["demos"]
        assert (refused.level, len(refused.causes)) == ("hopeless", 3)
        assert refused.text.startswith("no run of 6 by the seed program")
        teacher = make_lm("openai/teacher", knowing.url)
        checks = looked(subject(ignorant, tools, teacher=teacher))
    assert checks["demos"].text == "1 of 1 runs by openai/teacher may become demos"
    assert checks["teacher LM"].level == "ok"


def test_every_lm_of_the_compile_is_asked(tools: Tools, server: ScriptedServer) -> None:
    proposer = make_lm("openai/proposer", server.url)
    checks = looked(subject(server, tools, proposer=proposer, n_probes=0))
    assert {"answer LM", "decision LM", "proposer LM"} <= set(checks)
    assert {request["model"] for request in server.requests} == {"test", "proposer"}
    assert checks["probe"].level == "note"
    naive = looked(subject(server, tools, program=NaiveRAG(tools.retrievers), n_probes=0))
    assert "decision LM" not in naive


def test_a_fit_of_thresholds_is_looked_at_with_the_runs_that_are_there(tools: Tools, server: ScriptedServer) -> None:
    checks = looked(subject(server, tools, stages=["reanchor"]))
    assert (checks["thresholds"].level, checks["decisions"].level) == ("ok", "doubt")  # the rules settle these
    assert "LM calls" in checks["compile"].text
    n_calls = len(server.requests)
    refused = looked(subject(server, tools, stages=["reanchor"], program=NaiveRAG(tools.retrievers)))
    assert list(refused) == ["packages", "cases", "thresholds"]
    assert len(server.requests) == n_calls


def test_a_budget_that_is_spent_while_looking_is_said(tools: Tools, server: ScriptedServer) -> None:
    checks = looked(subject(server, tools), budget=3)
    assert checks["budget"].text == "the budget of 3 LM calls is spent before the compile has begun"
    assert len(server.requests) == 3
