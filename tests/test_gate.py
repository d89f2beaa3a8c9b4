from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import tiny
from predictions import Prediction
from scripted_server import Request, ScriptedServer, has_demos, question_of

from programs.lms import Roles, bind, make_lm
from programs.load import Tools
from programs.meter import Usage
from programs.optimizers import Settings, compile_program
from programs.rag import AgenticRAG, NaiveRAG
from trainsets.cases import Case, to_example
from trainsets.evaluation import CaseResult, run_cases
from trainsets.gate import GateResult, LimitError, Limits, gate, parse_limits, say
from trainsets.metrics import combined_score

MIXED = [0.0, 1.0] * 20  # what a program in use scores on 40 cases


def results(scores: Sequence[float | None], *, tokens: int = 1000, calls: int = 2, seconds: float = 1.0) -> list:
    """One result a score; None is a case that errored. Even cases are English, odd ones Chinese."""
    return [
        CaseResult(
            Case(id=str(n), question=f"q{n}", answer=("a",), kind="lookup", lang="zh" if n % 2 else "en"),
            Prediction(usage=Usage(lm_calls=calls, prompt_tokens=tokens)),
            {} if score is None else {"combined": score},
            "right" if score else "errored" if score is None else "wrong_with_evidence",
            "it broke" if score is None else None,
            seconds,
        )
        for n, score in enumerate(scores)
    ]


def texts(result: GateResult, verdict: str) -> list[str]:
    return [reason.text for reason in result.reasons if reason.verdict == verdict]


def test_a_proven_improvement_is_promoted() -> None:
    result = gate(results([0.5, 1.0] * 20), {"seed": results(MIXED)})
    assert result.verdict == "promote"
    assert texts(result, "promote")[0].startswith("better than seed: +0.250, 95 % interval +0.1")


def test_a_proven_regression_is_rejected() -> None:
    result = gate(results([0.0, 0.5] * 20), {"seed": results(MIXED)})
    assert result.verdict == "reject"
    assert texts(result, "reject")[0].startswith("worse than seed: -0.250")


def test_what_is_not_proven_keeps_what_is_in_use() -> None:
    scores = [1.0, *MIXED[1:]]
    assert gate(results(scores), {"seed": results(MIXED)}).verdict == "keep"
    assert gate(results(MIXED), {"seed": results(MIXED)}).verdict == "keep"


def test_few_cases_prove_nothing() -> None:
    few = gate(results([1.0] * 5), {"seed": results([0.0] * 5)})
    assert few.verdict == "keep"
    assert "fewer than 20 cases prove nothing" in texts(few, "keep")[0]
    assert gate(results([1.0] * 5), {"seed": results([0.0] * 5)}, Limits(min_cases=5)).verdict == "promote"


def test_the_champion_must_be_beaten_and_the_seed_not_lost_to() -> None:
    better, best = results([0.5, 1.0] * 20), results([1.0] * 40)
    assert gate(best, {"champion": better, "seed": results(MIXED)}).verdict == "promote"
    assert gate(better, {"champion": better, "seed": results(MIXED)}).verdict == "keep"
    assert gate(better, {"champion": results(MIXED), "seed": better}).verdict == "promote"
    assert gate(better, {"champion": results(MIXED), "seed": best}).verdict == "reject"


def test_one_slice_that_is_proven_worse_rejects_a_better_mean() -> None:
    candidate = results([1.0, 0.5] * 20)  # English up by 1, Chinese down by 0.5
    result = gate(candidate, {"seed": results(MIXED)})
    assert result.verdict == "reject"
    assert texts(result, "promote")  # it is better over all
    [reason] = texts(result, "reject")
    assert reason.startswith("zh cases lower than with seed: -0.500")


def test_a_slice_that_falls_within_chance_or_within_the_margin_is_no_reason_to_reject() -> None:
    chance = [0.6 if n % 2 == 0 else 0.0 if n < 5 else 1.0 for n in range(40)]  # two Chinese cases of twenty
    before = [0.0 if n % 2 == 0 else 1.0 if n < 35 else 0.9 for n in range(40)]
    result = gate(results(chance), {"seed": results(before)}, Limits(slice_margin=0.05))
    assert result.verdict == "promote"
    assert texts(result, "note")[0].startswith("zh cases lower than with seed")
    small = gate(results([0.6, 0.96] * 20), {"seed": results(MIXED)})
    assert small.verdict == "promote"
    assert not texts(small, "note")


def test_slices_with_too_few_cases_are_not_looked_at() -> None:
    candidate = results([1.0, 0.5] * 20)
    assert gate(candidate, {"seed": results(MIXED)}, Limits(min_slice=21)).verdict == "promote"


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        ({"tokens": 4600}, "4,600 tokens a case, 4.6 × seed (at most 4.5 ×)"),
        ({"calls": 4}, "4.0 LM calls a case, 2.0 × seed (at most 1.5 ×)"),
        ({"seconds": 2.5}, "2.5 seconds at P95, 2.5 × seed (at most 2 ×)"),
    ],
)
def test_a_better_program_over_a_ceiling_is_rejected(cost: dict, reason: str) -> None:
    result = gate(results([1.0] * 40, **cost), {"seed": results(MIXED)})
    assert (result.verdict, texts(result, "reject")) == ("reject", [reason])
    loose = Limits(calls_ratio=9, tokens_ratio=9, seconds_ratio=9)
    assert gate(results([1.0] * 40, **cost), {"seed": results(MIXED)}, loose).verdict == "promote"


def test_times_of_cached_answers_are_not_compared() -> None:
    cached = [
        replace(one, prediction=Prediction(usage=Usage(lm_calls=2, cached_calls=1, prompt_tokens=1000)))
        for one in results([1.0] * 40, seconds=99)
    ]
    assert gate(cached, {"seed": results(MIXED)}).verdict == "promote"
    assert gate(results([1.0] * 40, seconds=99), {"seed": cached}).verdict == "keep"


def test_errors_are_counted_and_their_cases_left_out_of_the_scores() -> None:
    failing = gate(results([None, None, *[1.0] * 38]), {"seed": results(MIXED)})
    assert failing.verdict == "reject"
    assert texts(failing, "reject") == ["2 of 40 cases errored, with seed 0"]
    assert "(paired bootstrap, 38 cases)" in texts(failing, "promote")[0]
    assert gate(results([None] * 40), {"seed": results(MIXED)}).verdict == "reject"
    assert gate(results([1.0] * 40), {"seed": results([None] * 3 + MIXED[3:])}).verdict == "promote"


def test_an_objection_rejects_whatever_the_scores_say() -> None:
    result = gate(results([1.0] * 40), {"seed": results(MIXED)}, objections=["dev-3 stands in the demos"])
    assert (result.verdict, result.reasons[0].text) == ("reject", "dev-3 stands in the demos")


def test_the_verdict_is_said_and_kept_with_its_reasons() -> None:
    result = gate(results([1.0] * 40, tokens=9000), {"seed": results(MIXED)})
    lines = say(result).splitlines()
    assert lines[0] == "gate: REJECT – do not use it"
    assert lines[1] == "  reject  9,000 tokens a case, 9.0 × seed (at most 4.5 ×)"
    assert lines[2].startswith("  promote better than seed: +0.500")
    plain = result.to_json()
    assert (plain["verdict"], plain["limits"]["tokens_ratio"], len(plain["reasons"])) == ("reject", 4.5, 2)


def test_other_cases_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="not of the same cases"):
        gate(results(MIXED), {"seed": results(MIXED[:-1])})
    with pytest.raises(ValueError, match="one baseline at least"):
        gate(results(MIXED), {})


def test_limits_are_read_from_settings() -> None:
    assert parse_limits(["tokens_ratio=6", "min_cases=3"]) == Limits(tokens_ratio=6.0, min_cases=3)
    for wrong, message in {
        "tokens=6": "no gate limit 'tokens', expected NAME=VALUE with one of min_cases, ",
        "tokens_ratio=x": "gate limit tokens_ratio: 'x', expected a finite number of 0 or more",
        "tokens_ratio=nan": "gate limit tokens_ratio: 'nan'",
        "tokens_ratio=inf": "gate limit tokens_ratio: 'inf', expected a finite number of 0 or more",
        "min_cases=-1": "gate limit min_cases: '-1', expected a whole number of 0 or more",
        "min_cases": "gate limit min_cases: ''",
    }.items():
        with pytest.raises(LimitError, match=message):
            parse_limits([wrong])


# The real program, compiled against a scripted LM.


@dataclass(frozen=True)
class Trial:
    seed: list[CaseResult]
    compiled: list[CaseResult]


ASKED = [*tiny.cases_of("dev"), *tiny.cases_of("test")]
DEV = [
    Case.model_validate_json(tiny.line_of(case | {"id": f"{case['id']}-{n}", "question": f"{case['question']} ({n})"}))
    for case in ASKED
    for n in range(5)
]
TRAIN = [Case.model_validate_json(tiny.line_of(case)) for case in tiny.cases_of("train")]
GOLD = {case.question: case.answer[0] for case in [*TRAIN, *DEV]}


def compile_and_run(tools: Tools, server: ScriptedServer, teacher: ScriptedServer) -> Trial:
    def metric(example: object, prediction: object, trace: object = None) -> bool:
        return combined_score(example.case, prediction) >= accept  # type: ignore[attr-defined]

    accept = 0.0 if teacher is not server else 0.8  # a metric that takes anything lets a bad teacher through
    lm, other = make_lm("openai/test", server.url), make_lm("openai/teacher", teacher.url)
    with bind(Roles(lm, lm)):
        seed: NaiveRAG = AgenticRAG(tools.retrievers)
        examples = [to_example(case) for case in TRAIN]
        compiled = compile_program(seed, metric, examples, [], Settings("bootstrap", max_demos=2), other)
        return Trial(_ordered(seed), _ordered(compiled.program))


def _ordered(program: NaiveRAG) -> list[CaseResult]:
    found = {result.case.id: result for result in run_cases(program, DEV)}
    return [found[case.id] for case in DEV]


def parrot(request: Request) -> str:
    """Answers as its demos do: right without demos, badly after bad ones."""
    right = GOLD.get(question_of(request), "something else")
    bad = any("nonsense" in str(message["content"]) for message in request["messages"])
    return tiny.answer_json("nonsense" if bad else right)


@pytest.fixture
def bad_teacher() -> Iterator[ScriptedServer]:
    with ScriptedServer(GOLD, replies={"answer": lambda request: tiny.answer_json("nonsense")}) as server:
        yield server


@pytest.mark.slow
def test_a_planted_regression_on_the_real_program_is_rejected(tools: Tools, bad_teacher: ScriptedServer) -> None:
    with ScriptedServer(GOLD, replies={"answer": parrot}) as server:
        trial = compile_and_run(tools, server, bad_teacher)
        assert any(has_demos(request) for request in server.requests)
    result = gate(trial.compiled, {"seed": trial.seed})
    assert result.verdict == "reject"
    assert texts(result, "reject")[0].startswith("worse than seed: -0.")


@pytest.mark.slow
def test_a_planted_improvement_on_the_real_program_is_promoted(tools: Tools) -> None:
    hard = frozenset(case.question for case in DEV[::2])
    with ScriptedServer(GOLD, needs_demos=hard) as server:
        trial = compile_and_run(tools, server, server)
    result = gate(trial.compiled, {"seed": trial.seed}, Limits(tokens_ratio=9, seconds_ratio=1e9))
    assert result.verdict == "promote", say(result)
    assert gate(trial.seed, {"seed": trial.seed}).verdict == "keep"
