"""What is told on stderr while something runs: lines, and a bar where there is a terminal."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def printable(text: str) -> str:
    """Return a text with a mark for each character that would steer a terminal: what is told may come from anybody."""
    return _CONTROLS.sub("\ufffd", text)


def note(text: str) -> None:
    """Write a line of progress to stderr."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def in_minutes(seconds: float) -> str:
    """Return a time as minutes and seconds, such as 1:05."""
    return "{}:{:02}".format(*divmod(round(seconds), 60))


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar with count, time left and a remark; the value is called once a step with the remark."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield _plain_progress(title, total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        "left",
        TimeRemainingColumn(),
    )
    with Progress(*columns, TextColumn("{task.fields[remark]}", markup=False), console=console) as bar:
        task = bar.add_task(title, total=total, remark="")
        yield lambda remark: bar.update(task, advance=1, remark=remark)


def _plain_progress(title: str, total: int) -> Callable[[str], None]:
    began, done = time.monotonic(), 0

    def step(remark: str) -> None:
        nonlocal done
        done += 1
        left = (time.monotonic() - began) / done * (total - done)
        note(f"{title} {done}/{total} · {in_minutes(left)} left · {remark}")

    return step
