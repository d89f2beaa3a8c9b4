"""What a program is doing, on a terminal: which step it is at, and for how long. Elsewhere nothing is written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.callback import BaseCallback
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

if TYPE_CHECKING:
    from programs.rag import NaiveRAG

Say = Callable[[str], None]

SEARCHING = "searching"
_STEPS = {
    "condense": "reading the question",
    "plan": "planning",
    "judge": "judging",
    "rewrite": "rewriting the query",
    "answer": "answering",
    "check": "checking the answer",
    "write_query": "writing a query",
    "call_tool": "choosing arguments of a tool",
}


@contextmanager
def show_steps(console: Console | None = None) -> Iterator[Say]:
    """Show the present step and its seconds on stderr if that is a terminal, and take it away at the end.

    The value is called with the step that begins.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TextColumn("{task.elapsed:.0f} s"))
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("starting", total=None)
        yield lambda step: shown.reset(task, description=step)


@contextmanager
def watch(program: "NaiveRAG", say: Say) -> Iterator[None]:
    """Call `say` with each step that `program` takes in this block: the predictor that an LM answers, else a search."""
    watcher = _Watcher({id(predictor): name for name, predictor in program.named_predictors()}, say)
    with dspy.context(callbacks=[*dspy.settings.callbacks, watcher]):
        say(SEARCHING)
        yield


class _Watcher(BaseCallback):
    """Told by DSPy of every module that is called."""

    def __init__(self, names: dict[int, str], say: Say) -> None:
        """Watch the predictors of these ids."""
        self._names, self._say = names, say
        self._open: set[str] = set()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Say what begins, if it is a predictor of the program."""
        if name := self._names.get(id(instance)):
            self._open.add(call_id)
            self._say(_STEPS.get(name, name))

    def on_module_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        """Say that no LM is asked any more."""
        if call_id in self._open:
            self._open.discard(call_id)
            self._say(SEARCHING)
