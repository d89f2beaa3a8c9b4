import json
from collections.abc import Sequence
from dataclasses import replace

import dspy
import pytest
import tiny
from scripted_server import Request, ScriptedServer

from programs.estimate import Cost
from programs.lms import Roles, bind, make_lm
from programs.load import Tools
from programs.meter import Usage
from programs.probing import ProbeRun, mean_cost, probe, repeat_judgements
from programs.rag import AgenticRAG, HybridRAG

ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}


def run_of(passed: bool) -> ProbeRun:
    return ProbeRun(passed, "right" if passed else "not_retrieved", Usage(), 1.0)


def test_probing_goes_on_only_while_all_or_none_pass() -> None:
    def ran(passed: Sequence[bool], n: int, most: int = 8) -> int:
        return len(probe(lambda place: run_of(passed[place]), range(len(passed)), n, most))

    assert ran([True, False] * 5, n=4) == 4
    assert ran([False] * 5 + [True] * 5, n=4) == 6
    assert ran([True] * 20, n=4) == 8
    assert ran([False] * 3, n=4) == 3
    assert ran([True] * 20, n=0) == 0
    assert ran([True] * 20, n=10) == 10


def test_the_judge_is_asked_again_past_the_cache(tools: Tools) -> None:
    verdicts = iter(["sufficient", "sufficient", "sufficient", "insufficient"])
    quotes = {"quotes": lambda request: judgement(request, next(verdicts))}
    with ScriptedServer(ANSWERS, replies=quotes) as moody:
        lm, program = make_lm("openai/test", moody.url), AgenticRAG(tools.retrievers)
        trace: list = []
        with bind(Roles(lm, lm)), dspy.context(trace=trace):
            for question in ("What does E-1024 mean?", "What does E-1025 mean?"):
                program(question=question)
            pairs = repeat_judgements(program, trace, lm)
        assert len(moody.calls_of("verdict")) == 4
    assert pairs == [("sufficient", "sufficient"), ("sufficient", "insufficient")]
    assert repeat_judgements(HybridRAG(tools.retrievers), trace, lm) == []


def judgement(request: Request, verdict: str) -> str:
    quote = "supply voltage" if "E-1024" in str(request["messages"][-1]) else "module layout"
    return json.dumps({"quotes": [quote], "verdict": verdict, "missing": ""})


def test_the_cost_of_a_run_is_timed_without_the_cache() -> None:
    spent = Usage(lm_calls=2, prompt_tokens=900, completion_tokens=100)
    both = [
        ProbeRun(True, "right", replace(spent, cached_calls=2), 1.0),
        ProbeRun(True, "right", spent, 10.0),
    ]
    assert mean_cost(both) == Cost(lm_calls=2, tokens=1000, cost_usd=0, seconds=10)
    assert mean_cost(both[:1]).seconds is None
    with pytest.raises(ValueError, match="no runs"):
        mean_cost([])
