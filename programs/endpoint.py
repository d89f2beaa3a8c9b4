"""An LM endpoint that may fail: a deadline for the whole call, few retries with growing waits, a circuit breaker."""

import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from dspy.utils.exceptions import LMError, LMInvalidRequestError, LMTimeoutError, is_retryable_lm_error

from programs.meter import EndpointDown

MAX_FAILURES = 5  # calls in a row, each retried already
FAILURES_BEFORE_FALLBACK = 2  # where another LM stands by, waiting for this one is worth less
REST_S = 30.0

T = TypeVar("T")


class StreamCutError(LMError):
    """A stream ended early, after words of it had gone out: neither tried again nor answered by another LM."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often an endpoint is tried.

    `call_s` is for one call with its retries and waits; `first_token_s` for the first token of a stream, and for each
    one after it. The first wait is `backoff_s`, every other one twice as long, unless the server names one.
    """

    call_s: float = 300.0
    first_token_s: float = 120.0
    n_retries: int = 2
    backoff_s: float = 1.0


class Breaker:
    """Keeps callers from an endpoint that failed several times in a row; shared by the threads that call it.

    After `max_failures` it is open: nobody gets through for `rest_s` seconds, then one call tries the endpoint, and
    its outcome decides for the others.
    """

    def __init__(
        self, max_failures: int = MAX_FAILURES, rest_s: float = REST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start closed."""
        self.max_failures = max_failures
        self._rest_s = rest_s
        self._clock = clock
        self._n_failures = 0
        self._shut_until = 0.0
        self._lock = threading.Lock()
        self._last = ""

    def guard(self, call: Callable[[], T]) -> T:
        """Make a call, unless the endpoint is being left alone.

        Raises:
            EndpointDown: It is, or it is from this failure on.
            LMError: The call failed.
        """
        self._admit()
        try:
            result = call()
        except LMInvalidRequestError:  # this request is wrong (too long, say), which tells nothing about the endpoint
            raise
        except LMError as error:
            self._fail(error)
            raise
        with self._lock:
            self._n_failures = 0
        return result

    def _admit(self) -> None:
        with self._lock:
            if self._n_failures < self.max_failures:
                return
            if self._clock() < self._shut_until:
                raise EndpointDown(self._last)
            self._shut_until = self._clock() + self._rest_s  # this call tries it, the others go on waiting

    def _fail(self, error: LMError) -> None:
        with self._lock:
            self._n_failures += 1
            self._last = f"the LM failed {self._n_failures} times in a row: {error}"
            if self._n_failures >= self.max_failures:
                self._shut_until = self._clock() + self._rest_s
                raise EndpointDown(self._last) from error


def call_patiently(
    attempt: Callable[[float], T],
    patience: Patience,
    on_retry: Callable[[], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Call an endpoint until it answers, an error is final, or the time is up.

    Args:
        attempt: One call; gets the seconds that are left.
        patience: How long and how often.
        on_retry: Told of every attempt but the first.
        sleep: Waits.
        clock: Seconds, from any start.

    Raises:
        LMError: The last failure. One that the server wants repeated after the deadline is not waited for.
    """
    deadline = clock() + patience.call_s
    for n in itertools.count():
        try:
            return attempt(deadline - clock())
        except LMError as error:
            wait = _wait_after(n, error, patience)
            if n >= patience.n_retries or not is_retryable_lm_error(error) or clock() + wait >= deadline:
                raise
        sleep(wait)
        on_retry()
    raise AssertionError  # for mypy: the loop above has no end


def _wait_after(n: int, error: LMError, patience: Patience) -> float:
    if error.retry_after is not None and error.retry_after >= 0:
        return float(error.retry_after)
    return patience.backoff_s * 2**n * random.uniform(0.75, 1.25)  # so that threads do not come back together


def within(seconds: float, call: Callable[[], T], model: str) -> T:
    """Run a call on a thread of its own and stop waiting for it when the time is up.

    A timeout of the socket is not enough: a server that sends a byte now and then never trips it. The thread left
    behind ends with its socket.

    Raises:
        LMTimeoutError: The time is up.
        BaseException: Whatever the call raised.
    """
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=copy_context().run, args=(work,), daemon=True).start()
    try:
        return outcome.result(max(0.0, seconds))
    except TimeoutError:
        if outcome.done():  # in the last moment, or the call raised this itself
            return outcome.result()
        raise LMTimeoutError(f"no answer within {seconds:.1f} seconds (--timeout)", model=model) from None


class WatchedStream:
    """Passes on the tokens of one streamed call until a deadline, and remembers whether any went out."""

    def __init__(self, stream: Any, seconds: float, model: str) -> None:
        """Start the clock; `stream` is DSPy's own."""
        self.has_sent = False
        self._stream = stream
        self._deadline = time.monotonic() + seconds
        self._model = model

    async def send(self, item: Any) -> None:
        """Pass one on.

        Raises:
            LMTimeoutError: The time is up.
        """
        if time.monotonic() >= self._deadline:
            raise LMTimeoutError("the stream took too long", model=self._model)
        self.has_sent = True
        await self._stream.send(item)
