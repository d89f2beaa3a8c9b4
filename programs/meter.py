"""Counts what LM calls cost, and names what ends a run."""

import threading
from collections import deque
from dataclasses import asdict, dataclass, replace

_CALLS_KEPT = 64  # more than a run may make


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run spent.

    Calls answered from the LM cache are counted with the tokens they cost when they were made, so a repeated
    evaluation reports the same usage; `cached_calls` tells how many of `lm_calls` they are. `retries` are attempts
    after one that failed, `fallback_calls` those that another LM than the one asked was called for.
    """

    lm_calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    parse_failures: int = 0
    truncations: int = 0
    cost_usd: float = 0.0
    seconds: float = 0.0
    retries: int = 0
    fallback_calls: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Add two spendings field by field."""
        mine, theirs = asdict(self), asdict(other)
        return Usage(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True, slots=True)
class LMCall:
    """One call that was answered: which predictor asked (`judge`), which LM answered, what it cost."""

    asked: str
    lm: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    is_cached: bool = False
    is_cut_off: bool = False
    cost_usd: float = 0.0


class BudgetExceeded(BaseException):
    """The budget is spent, or the run that made a call is over.

    Not an `Exception`: DSPy's optimizers catch those, log them and go on calling.
    """


class EndpointDown(BaseException):
    """An LM failed several times in a row; the message is the last failure.

    Not an `Exception`: an optimizer would score the failures as 0, and an evaluation would record every case left as
    an error.
    """


class Meter:
    """A thread-safe running total."""

    def __init__(self) -> None:
        """Start at zero."""
        self._usage = Usage()
        self._calls: deque[LMCall] = deque(maxlen=_CALLS_KEPT)
        self._lock = threading.Lock()

    @property
    def usage(self) -> Usage:
        """The total so far."""
        return self._usage

    @property
    def calls(self) -> tuple[LMCall, ...]:
        """The latest calls that were answered, oldest first."""
        with self._lock:
            return tuple(self._calls)

    @property
    def paid_calls(self) -> int:
        """Calls that reached an LM."""
        usage = self._usage
        return usage.lm_calls - usage.cached_calls

    def add(self, usage: Usage, call: LMCall | None = None) -> None:
        """Add what one call, or one failure to read its output, cost."""
        with self._lock:
            self._usage = self._usage + usage
            if call is not None:
                self._calls.append(call)

    def taken(self, seconds: float) -> Usage:
        """Return the total with the wall time of the run filled in."""
        return replace(self._usage, seconds=seconds)
