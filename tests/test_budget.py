import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import dspy
import pytest
from dspy.utils.exceptions import LMServerError
from scripted_server import ScriptedServer

from programs.budget import Budget
from programs.endpoint import Patience
from programs.lms import MeteredLM, Roles, bind, make_lm
from programs.meter import BudgetExceeded


def call(lm: MeteredLM, budget: Budget, *prompts: str, **settings: object) -> None:
    with bind(Roles(lm, lm)), dspy.context(callbacks=[budget]):
        for prompt in prompts:
            lm(prompt, **settings)


def test_different_requests_count_once_each_and_repeats_are_free() -> None:
    with ScriptedServer() as server:
        lm, budget = make_lm("openai/test", server.url), Budget(2)
        call(lm, budget, "one", "one", "two", "one", "two")
        assert budget.n_calls == len(server.requests) == 2
        with pytest.raises(BudgetExceeded, match="the budget of 2 LM calls is spent"):
            call(lm, budget, "three")
        call(lm, budget, "one")  # known already
        assert budget.n_calls == len(server.requests) == 2


def test_an_answer_from_the_cache_counts_so_that_a_repeat_comes_to_the_same_end() -> None:
    with ScriptedServer() as server:
        lm = make_lm("openai/test", server.url)
        call(lm, Budget(), "one", "two")
        again = Budget(3)
        with pytest.raises(BudgetExceeded):
            call(lm, again, "one", "two", "three", "four")
        assert (again.n_calls, len(server.requests)) == (3, 3)


def test_temperature_and_model_make_another_request() -> None:
    with ScriptedServer() as server:
        budget = Budget()
        call(make_lm("openai/test", server.url), budget, "one")
        call(make_lm("openai/other", server.url), budget, "one")
        call(make_lm("openai/test", server.url), budget, "one", temperature=0.5, rollout_id=1)
        call(make_lm("openai/test", server.url), budget, "one", temperature=0.5, rollout_id=2)
        assert budget.n_calls == len(server.requests) == 4


def test_several_answers_to_one_request_count_as_many_calls() -> None:
    with ScriptedServer() as server, pytest.raises(BudgetExceeded):
        call(make_lm("openai/test", server.url), Budget(2), "one", n=3, temperature=1.0)


def test_a_failed_call_counts_every_time() -> None:
    with ScriptedServer(replies={"text": lambda request: 500}) as server:
        lm, budget = make_lm("openai/test", server.url, patience=Patience(n_retries=0)), Budget(2)
        for _ in range(2):
            with pytest.raises(LMServerError):
                call(lm, budget, "one")
        with pytest.raises(BudgetExceeded):
            call(lm, budget, "one")
        assert len(server.requests) == 2


def test_threads_never_go_over_it() -> None:
    with ScriptedServer(seconds=0.01) as server:
        lm, budget = make_lm("openai/test", server.url), Budget(10)
        refused = threading.Semaphore(0)

        def call_some(worker: int) -> None:
            try:
                for n in range(9):
                    lm(f"call {worker} {n}")
            except BudgetExceeded:
                refused.release()

        with bind(Roles(lm, lm)), dspy.context(callbacks=[budget]), ThreadPoolExecutor(8) as pool:
            for worker in range(8):
                pool.submit(copy_context().run, call_some, worker)
        assert all(refused.acquire(blocking=False) for _ in range(8))
        assert budget.n_calls == len(server.requests) == 10


def test_money_and_minutes_end_it_too(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        lm, spent = make_lm("openai/test", server.url), iter([0.0, 0.5, 1.0])
        with pytest.raises(BudgetExceeded, match=r"the budget of \$1 is spent"):
            call(lm, Budget(max_cost_usd=1, cost_usd=lambda: next(spent)), "one", "two", "three")
        assert len(server.requests) == 2
        with pytest.raises(BudgetExceeded, match=r"the budget of 1e-09 minutes is spent"):
            call(lm, Budget(max_minutes=1e-9), "four")
