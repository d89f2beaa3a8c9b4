"""What a compile may spend: LM calls, money and minutes, checked before every call of every LM in it."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from programs.meter import BudgetExceeded


class Budget(BaseCallback):
    """Counts the different requests of a compile and ends it at a limit; bind it as a DSPy callback.

    A request counts once, whether an LM or the answer cache serves it, and a repeat of it is free. So a command that is
    repeated after a kill comes to the same end as one that ran through, and one with a higher limit goes on from there.
    A call that failed counts each time. Two threads may send the same new request at once; then one is not counted.
    """

    def __init__(
        self,
        max_calls: int | None = None,
        max_cost_usd: float | None = None,
        max_minutes: float | None = None,
        cost_usd: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start the clock; `cost_usd` tells what the compile has cost so far."""
        self.max_calls = max_calls
        self.max_cost_usd = max_cost_usd
        self.max_minutes = max_minutes
        self._cost_usd = cost_usd
        self._began = time.monotonic()
        self._requests: set[str] = set()
        self._pending: dict[str, tuple[str, int]] = {}
        self._n_calls = 0
        self._lock = threading.Lock()

    @property
    def n_calls(self) -> int:
        """Different requests so far."""
        return self._n_calls

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.monotonic() - self._began

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Let a call through.

        Raises:
            BudgetExceeded: The call would go over a limit.
        """
        key, n = _request(instance, inputs)
        with self._lock:
            self._check_time_and_money()
            if key in self._requests:
                return
            if self.max_calls is not None and self._n_calls + n > self.max_calls:
                raise BudgetExceeded(f"the budget of {self.max_calls} LM calls is spent")
            self._requests.add(key)
            self._n_calls += n
            self._pending[call_id] = (key, n)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Forget the request of a call that failed, so that the next attempt counts again."""
        with self._lock:
            key, _ = self._pending.pop(call_id, ("", 0))
            if exception is not None:
                self._requests.discard(key)

    def _check_time_and_money(self) -> None:
        if self.max_minutes is not None and self.seconds >= self.max_minutes * 60:
            raise BudgetExceeded(f"the budget of {self.max_minutes:g} minutes is spent")
        if self.max_cost_usd is not None and self._cost_usd() >= self.max_cost_usd:
            raise BudgetExceeded(f"the budget of ${self.max_cost_usd:g} is spent")


@contextmanager
def count_calls(budget: Budget) -> Iterator[None]:
    """Count every LM call that is made inside."""
    with dspy.context(callbacks=[*dspy.settings.callbacks, budget]):
        yield


def _request(lm: Any, inputs: dict[str, Any]) -> tuple[str, int]:
    """Name a request by all that its answer depends on, and tell how many answers it asks for."""
    settings = {**lm.kwargs, **inputs.get("kwargs", {})}
    parts = [lm.model, inputs.get("prompt"), inputs.get("messages"), settings]
    text = json.dumps(parts, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest(), int(settings.get("n") or 1)
