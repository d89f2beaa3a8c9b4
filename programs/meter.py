"""Counts what LM calls cost, and stops them at a budget."""

import threading
from dataclasses import asdict, dataclass, replace

MAX_FAILURES = 5  # calls in a row, each retried already


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run spent.

    Calls answered from the LM cache are counted with the tokens they cost when they were made, so a repeated
    evaluation reports the same usage; `cached_calls` tells how many of `lm_calls` they are.
    """

    lm_calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    parse_failures: int = 0
    truncations: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        """Add two spendings field by field."""
        mine, theirs = asdict(self), asdict(other)
        return Usage(**{name: mine[name] + theirs[name] for name in mine})


class BudgetExceeded(BaseException):
    """The LM-call budget is spent.

    Not an `Exception`: DSPy's optimizers catch those, log them and go on calling.
    """


class EndpointDown(BaseException):
    """An LM failed several times in a row; the message is the last failure.

    Not an `Exception`: an optimizer would score the failures as 0, and an evaluation would record every case left as
    an error.
    """


class Meter:
    """A thread-safe running total. `max_calls` bounds the calls that reach an LM; cached ones are free."""

    def __init__(self, max_calls: int | None = None) -> None:
        """Start at zero."""
        self.max_calls = max_calls
        self._usage = Usage()
        self._failures_in_a_row = 0
        self._lock = threading.Lock()

    @property
    def usage(self) -> Usage:
        """The total so far."""
        return self._usage

    @property
    def paid_calls(self) -> int:
        """Calls that reached an LM."""
        usage = self._usage
        return usage.lm_calls - usage.cached_calls

    def admit(self) -> None:
        """Let one more call through.

        Raises:
            BudgetExceeded: `max_calls` calls have been made.
        """
        if self.max_calls is not None and self.paid_calls >= self.max_calls:
            raise BudgetExceeded(f"the budget of {self.max_calls} LM calls is spent")

    def add(self, usage: Usage) -> None:
        """Add what one call, or one failure to read its output, cost."""
        with self._lock:
            self._usage = self._usage + usage
            self._failures_in_a_row = 0

    def fail(self, error: Exception) -> None:
        """Count a call that failed, its retries included.

        Raises:
            EndpointDown: No call has succeeded since `MAX_FAILURES` of them failed.
        """
        with self._lock:
            self._failures_in_a_row += 1
            is_down = self._failures_in_a_row >= MAX_FAILURES
        if is_down:
            raise EndpointDown(f"the LM failed {MAX_FAILURES} times in a row: {error}") from error

    def taken(self, seconds: float) -> Usage:
        """Return the total with the wall time of the run filled in."""
        return replace(self._usage, seconds=seconds)
