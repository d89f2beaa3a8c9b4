import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import asdict

import dspy
import pytest
from dspy.utils.exceptions import ContextWindowExceededError, LMServerError
from scripted_server import ScriptedServer

from programs.endpoint import MAX_FAILURES, Patience
from programs.lms import Roles, bind, make_lm
from programs.meter import BudgetExceeded, EndpointDown, Meter, Usage


def test_usage_adds_every_field() -> None:
    one = Usage(1, 2, 3, 4, 5, 6, 7.0, 8.0, 9, 10)
    assert asdict(one + one) == {name: 2 * value for name, value in asdict(one).items()}


def test_threads_lose_no_count() -> None:
    meter = Meter()
    with ThreadPoolExecutor(8) as pool:
        wait([pool.submit(meter.add, Usage(lm_calls=1, prompt_tokens=3)) for _ in range(2000)])
    assert (meter.usage.lm_calls, meter.usage.prompt_tokens) == (2000, 6000)


def test_a_budget_is_not_caught_by_a_handler_of_exceptions() -> None:
    # DSPy's optimizers wrap calls in `except Exception` and go on.
    assert not issubclass(BudgetExceeded, Exception)
    assert not issubclass(EndpointDown, Exception)


def test_calls_from_the_cache_are_counted_with_their_tokens() -> None:
    with ScriptedServer() as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            lm("one and a few words")
            first = lm.meter.usage
            for _ in range(5):
                lm("one and a few words")
            lm("two and a few words")
        assert len(server.requests) == 2
        assert first.prompt_tokens > 0
        assert first.completion_tokens == 0  # "OK" is less than one token of the script
        usage = lm.meter.usage
    assert (usage.lm_calls, usage.cached_calls, lm.meter.paid_calls) == (7, 5, 2)
    assert usage.prompt_tokens == 7 * first.prompt_tokens


def test_a_cache_read_in_another_process_still_tells_its_tokens() -> None:
    with ScriptedServer(replies={"text": lambda request: "a longer reply, of several tokens"}) as server:
        for expected_cached in (0, 1):
            lm = make_lm("openai/test", server.url)
            with bind(Roles(lm, lm)):  # binding opens the cache anew: from disk
                lm("one")
            assert lm.meter.usage.cached_calls == expected_cached
            assert lm.meter.usage.completion_tokens == 8
        assert len(server.requests) == 1


def test_a_call_whose_usage_a_server_does_not_report_counts_as_paid() -> None:
    with ScriptedServer(reports_usage=False) as server:
        lm = make_lm("openai/test", server.url, cache=False)
        lm("one")
    assert lm.meter.usage.lm_calls == lm.meter.paid_calls == 1


def test_a_truncated_output_is_counted() -> None:
    with ScriptedServer(replies={"text": lambda request: "cut in the mid<cut>"}) as server:
        lm = make_lm("openai/test", server.url)
        lm("one")
    assert lm.meter.usage.truncations == 1


def test_several_outputs_of_one_call_are_several_calls() -> None:
    with ScriptedServer() as server:
        lm = make_lm("openai/test", server.url)
        assert len(lm("one", n=3, temperature=0.7, cache=False)) == 3
        assert lm.meter.usage.lm_calls == len(server.requests)


def test_both_roles_and_the_run_count_the_same_call() -> None:
    run = Meter()
    with ScriptedServer() as server:
        lm = make_lm("openai/test", server.url)
        with dspy.context(run_meter=run):
            lm("one")
    assert run.usage == lm.meter.usage
    assert run.usage.lm_calls == 1


def test_an_lm_that_keeps_failing_ends_the_run() -> None:
    with ScriptedServer(replies={"text": lambda request: 500}) as server:
        lm = make_lm("openai/test", server.url, patience=Patience(n_retries=0), cache=False)
        for n in range(MAX_FAILURES - 1):
            with pytest.raises(LMServerError):
                lm(f"call {n}")
        with pytest.raises(EndpointDown, match=r"failed 5 times in a row: .*scripted failure 500"):
            lm("last")


def test_failures_with_a_success_between_them_do_not_end_the_run() -> None:
    with ScriptedServer(replies={"text": lambda request: 500 if "bad" in str(request) else "OK"}) as server:
        lm = make_lm("openai/test", server.url, patience=Patience(n_retries=0), cache=False)
        for n in range(3 * MAX_FAILURES):
            with pytest.raises(LMServerError):
                lm(f"bad {n}")
            lm(f"good {n}")


def test_a_prompt_that_is_too_long_tells_nothing_about_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = make_lm("openai/test", "http://127.0.0.1:9/v1")
    monkeypatch.setattr(dspy.LM, "__call__", _too_long)
    for _ in range(2 * MAX_FAILURES):
        with pytest.raises(ContextWindowExceededError):
            lm("long")


def _too_long(*args: object, **kwargs: object) -> None:
    raise ContextWindowExceededError(message="too many tokens")


def test_threads_left_behind_stop_at_their_next_call() -> None:
    left, done, outcome = threading.Event(), threading.Event(), []
    with ScriptedServer(replies={"text": lambda request: "OK" if left.wait(60) else 500}) as server:
        lm = make_lm("openai/test", server.url, cache=False)

        def work() -> None:
            try:
                for n in range(50):
                    lm(f"call {n}")
            except BudgetExceeded as error:
                outcome.append(str(error))
            finally:
                done.set()

        with bind(Roles(lm, lm)):
            threading.Thread(target=copy_context().run, args=(work,)).start()
            server.wait_until(lambda: len(server.requests) == 1)
        left.set()
        assert done.wait(60)
        assert len(server.requests) == 1
        lm("a new run is not refused")
    assert outcome == ["the run that made this call is over"]


def test_lms_with_a_meter_of_their_own_are_counted_apart() -> None:
    with ScriptedServer() as server:
        lm = make_lm("openai/test", server.url, cache=False)
        apart = Roles(lm, lm).with_own_meter()
        assert apart.decision is apart.answer
        apart.answer("one")
        apart.decision("two")
        lm("three")
    assert (apart.answer.meter.paid_calls, lm.meter.paid_calls) == (2, 1)
