import asyncio
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from dspy.utils.exceptions import (
    LMAuthError,
    LMError,
    LMInvalidRequestError,
    LMRateLimitError,
    LMServerError,
    LMTimeoutError,
    LMTransportError,
)
from faulty_server import FaultyServer
from scripted_server import Request, ScriptedServer, prompt_of

from programs.adapter import CutOffError, LeanJSONAdapter
from programs.endpoint import MAX_FAILURES, Breaker, Patience, StreamCutError, call_patiently
from programs.lms import MeteredLM, Roles, bind, check, make_lm, make_roles
from programs.meter import EndpointDown, Meter

ONE_TRY = Patience(n_retries=0)
SOON = Patience(backoff_s=0.01)
HURRIED = Patience(call_s=0.3, backoff_s=0.01)


def lm_at(server: FaultyServer | ScriptedServer, patience: Patience = SOON, **settings: object) -> MeteredLM:
    return make_lm("openai/test", server.url, patience=patience, cache=False, **settings)


# --- patience ---


@pytest.mark.parametrize("faults", [["429"], ["500", "503"], ["cut"]])
def test_what_may_pass_is_tried_again(faults: list[str]) -> None:
    with FaultyServer(faults) as server:
        lm = lm_at(server)
        assert lm("hi") == ["OK"]
        assert len(server.requests) == len(faults) + 1
        assert (lm.meter.usage.lm_calls, lm.meter.usage.retries) == (1, len(faults))


@pytest.mark.parametrize(("fault", "error"), [("500", LMServerError), ("429", LMRateLimitError), ("cut", LMError)])
def test_an_endpoint_is_tried_three_times_at_most(fault: str, error: type[LMError]) -> None:
    with FaultyServer(always=fault) as server:
        with pytest.raises(error):
            lm_at(server)("hi")
        assert len(server.requests) == 3


@pytest.mark.parametrize("fault", ["400", "401", "garbage"])
def test_what_will_not_pass_is_tried_once(fault: str) -> None:
    with FaultyServer(always=fault) as server:
        with pytest.raises(LMError):
            lm_at(server)("hi")
        assert len(server.requests) == 1


def test_an_endpoint_that_is_down_is_tried_three_times() -> None:
    with FaultyServer() as server:
        pass
    lm = lm_at(server)
    with pytest.raises(LMTransportError):
        lm("hi")
    assert lm.meter.usage.retries == 2


@pytest.mark.parametrize("fault", ["hang", "trickle"])
def test_a_call_ends_at_its_deadline_though_bytes_keep_coming(fault: str) -> None:
    with FaultyServer(always=fault) as server:
        with pytest.raises(LMTimeoutError, match=r"no answer within 0\.[0-3] seconds \(--timeout\)$"):
            lm_at(server, HURRIED)("hi")
        assert len(server.requests) <= 1  # the deadline is for the call with its retries


def test_a_server_that_asks_for_more_time_than_there_is_is_not_waited_for() -> None:
    with FaultyServer(["429"], retry_after="3600") as server, pytest.raises(LMRateLimitError):
        lm_at(server)("hi")


def test_waits_grow_and_the_servers_own_are_kept() -> None:
    slept: list[float] = []
    errors = iter([LMServerError("a"), LMServerError("b", retry_after=7.0), LMServerError("c"), LMServerError("d")])

    def attempt(left: float) -> None:
        raise next(errors)

    with pytest.raises(LMServerError, match="d"):
        call_patiently(attempt, Patience(n_retries=3), lambda: None, sleep=slept.append, clock=lambda: 0.0)
    assert slept[0] == pytest.approx(1.0, rel=0.25)
    assert slept[1] == 7.0
    assert slept[2] == pytest.approx(4.0, rel=0.25)


def test_what_a_call_raises_comes_out_of_its_thread() -> None:
    with FaultyServer() as server, pytest.raises(TypeError, match=r"must be a dspy.lm15.Request"):
        lm_at(server)("hi", request=3)


# --- the breaker ---


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fail() -> None:
    raise LMServerError("down")


def test_a_breaker_opens_rests_and_lets_one_call_try() -> None:
    clock = Clock()
    breaker = Breaker(2, rest_s=30, clock=clock)
    with pytest.raises(LMServerError):
        breaker.guard(fail)
    with pytest.raises(EndpointDown, match="failed 2 times in a row: down"):
        breaker.guard(fail)
    with pytest.raises(EndpointDown, match="failed 2 times"):
        breaker.guard(lambda: pytest.fail("the endpoint was called"))
    clock.now = 31
    with pytest.raises(EndpointDown, match="failed 3 times"):
        breaker.guard(fail)
    clock.now = 50
    with pytest.raises(EndpointDown):
        breaker.guard(lambda: pytest.fail("the endpoint was called"))
    clock.now = 62

    def meanwhile() -> str:
        with pytest.raises(EndpointDown):
            breaker.guard(lambda: pytest.fail("two calls tried it"))
        return "up"

    assert breaker.guard(meanwhile) == "up"
    assert breaker.guard(lambda: "again") == "again"


def test_a_wrong_request_tells_nothing_about_the_endpoint() -> None:
    breaker = Breaker(1)

    def refuse() -> None:
        raise LMInvalidRequestError("too long")

    for _ in range(3):
        with pytest.raises(LMInvalidRequestError):
            breaker.guard(refuse)


def test_copies_share_a_breaker_and_two_endpoints_do_not() -> None:
    with FaultyServer(always="500") as bad, FaultyServer() as good:
        roles = Roles(lm_at(bad, ONE_TRY), lm_at(good, ONE_TRY))
        for _ in range(MAX_FAILURES - 1):
            copies = roles.with_own_meter()
            assert copies.answer("hi") == ["OK"]
            with pytest.raises(LMServerError):
                copies.decision("hi")
        with pytest.raises(EndpointDown):
            roles.decision("hi")
        assert roles.answer("hi") == ["OK"]
        n_requests = len(bad.requests)
        with pytest.raises(EndpointDown):
            roles.decision("hi")
        assert len(bad.requests) == n_requests


# --- the fallback ---


def name_colour(lm: MeteredLM, fruit: str = "lemon") -> str:
    with bind(Roles(lm, lm)):
        return str(dspy.Predict("fruit -> colour: str")(fruit=fruit).colour)


YELLOW = {"colour": lambda request: '{"colour": "yellow"}'}


@pytest.mark.parametrize("fault", ["500", "401", "garbage", "hang"])
def test_a_fallback_answers_where_the_endpoint_fails(fault: str) -> None:
    with FaultyServer(always=fault) as bad, ScriptedServer(replies=YELLOW) as good:
        meter = Meter()
        fallback = make_lm("openai/other", good.url, meter, cache=False)
        lm = make_lm("openai/test", bad.url, meter, patience=HURRIED, fallback=fallback, cache=False)
        assert [name_colour(lm, str(n)) for n in range(4)] == ["yellow"] * 4
        assert meter.usage.fallback_calls == meter.usage.lm_calls == 4
        assert {call.lm for call in meter.calls} == {"openai/other"}
        assert len(bad.requests) <= 6  # after two failures in a row it is left alone
        assert "json_schema" in good.requests[-1]["response_format"]


def test_a_request_that_is_wrong_is_not_sent_to_the_fallback() -> None:
    with FaultyServer(always="400") as bad, FaultyServer() as good:
        with pytest.raises(LMInvalidRequestError):
            name_colour(lm_at(bad, fallback=lm_at(good)))
        assert good.requests == []


def test_an_lm_that_is_down_passes_the_check_if_its_fallback_answers() -> None:
    with FaultyServer() as down:
        pass
    with FaultyServer() as good:
        check(lm_at(down, fallback=lm_at(good)))
        assert len(good.requests) == 1
    with pytest.raises(LMError, match="no answer from openai/test"):
        check(lm_at(down, fallback=lm_at(good)))


def test_when_both_fail_the_fallbacks_error_is_told() -> None:
    with FaultyServer(always="500") as bad, FaultyServer(always="401") as worse:
        with pytest.raises(LMAuthError):
            name_colour(lm_at(bad, ONE_TRY, fallback=lm_at(worse)))
        assert len(worse.requests) == 1


def test_a_fallback_by_flag_shares_the_meter() -> None:
    with ScriptedServer() as server:
        roles = make_roles("openai/a", api_base=server.url, fallback_lm="openai/b", patience=ONE_TRY)
        assert roles.answer.fallback is not None
        assert roles.answer.fallback.meter is roles.answer.meter
        apart = roles.with_own_meter()
        assert apart.answer.fallback is not None
        assert apart.answer.fallback.meter is apart.answer.meter is not roles.answer.meter


# --- outputs that end too soon, and what a call cost ---


def test_an_output_cut_off_at_the_limit_is_its_own_error() -> None:
    with ScriptedServer(replies={"answer": lambda request: '{"answer": "as I was say<cut>'}) as server:
        lm = lm_at(server)
        with bind(Roles(lm, lm)), pytest.raises(CutOffError, match="Cut off at max_tokens"):
            dspy.Predict("fruit -> answer: str, citations: list[int]")(fruit="lemon")
        assert (lm.meter.usage.truncations, lm.meter.usage.parse_failures) == (1, 1)
        assert lm.meter.calls[0].is_cut_off


def test_every_call_tells_who_asked_and_what_it_cost() -> None:
    class Painter(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = dspy.Predict("fruit -> colour: str")

        def forward(self, fruit: str) -> dspy.Prediction:
            return self.mix(fruit=fruit)

    with ScriptedServer() as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            for _ in range(2):
                Painter()(fruit="lemon")
        first, second = lm.meter.calls
    assert (first.asked, first.lm, first.is_cached, second.is_cached) == ("mix", "openai/test", False, True)
    assert first.prompt_tokens == second.prompt_tokens > 0
    assert first.seconds > 0


def test_threads_share_one_lm_that_fails_at_every_first_attempt() -> None:
    seen: set[str] = set()

    def reply(request: Request) -> str | int:
        prompt = prompt_of(request)
        is_first = prompt not in seen
        seen.add(prompt)
        return 503 if is_first else prompt.upper()

    with ScriptedServer(replies={"text": reply}) as server:
        lm = lm_at(server)
        with ThreadPoolExecutor(32) as pool:
            outputs = list(pool.map(lambda n: lm(f"call {n}"), range(64)))
        assert outputs == [[f"CALL {n}"] for n in range(64)]
        assert (lm.meter.usage.lm_calls, lm.meter.usage.retries) == (64, 64)


# --- streams ---


def stream(lm: MeteredLM) -> list[object]:
    program = dspy.streamify(dspy.Predict("fruit -> colour"))
    seen: list[object] = []

    async def collect() -> None:
        with dspy.context(lm=lm, adapter=LeanJSONAdapter()):
            async for chunk in program(fruit="lemon"):
                seen.append(chunk)

    try:
        asyncio.run(collect())
    except BaseExceptionGroup as group:  # anyio's
        error = group.exceptions[0]
        error.add_note(f"{len(seen)} chunks came before")
        raise error from None
    return seen


@pytest.mark.parametrize("faults", [[], ["500"]])
def test_a_stream_is_passed_on_and_tried_again_before_its_first_word(faults: list[str]) -> None:
    with FaultyServer([*faults, "stream"]) as server:
        *chunks, prediction = stream(lm_at(server))
        assert len(server.requests) == len(faults) + 1
    assert len(chunks) >= 2
    assert prediction.colour == "yellow"  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", ["cut-stream", "slow-stream"])
def test_a_stream_that_breaks_off_is_neither_repeated_nor_answered_by_another_lm(fault: str) -> None:
    with FaultyServer([fault]) as server, FaultyServer() as other:
        with pytest.raises(StreamCutError, match="the answer broke off"):
            stream(lm_at(server, HURRIED, fallback=lm_at(other)))
        assert len(server.requests) == 1
        assert other.requests == []


def test_a_stream_that_never_begins_ends_at_the_first_token_limit() -> None:
    with FaultyServer(always="hang") as server:
        with pytest.raises(LMError, match=r"no bytes for 0\.2s"):
            stream(lm_at(server, Patience(first_token_s=0.2, n_retries=0)))
