"""What the command lines share: LM and index flags, tables on stdout, one line for a known error."""

import argparse
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs.addresses import without_secrets
from programs.meter import EndpointDown
from programs.places import INDEX_DIR, TRACKING_URI, tracking_uri
from programs.progress import printable

if TYPE_CHECKING:
    from programs.lms import Roles

PROGRAM_HELP = "naive, hybrid, agentic, an export folder, or a version: models:/NAME@champion"

_OURS = ("programs", "retrievers", "trainsets", "signatures")
_MOST = 10**9  # of anything; a thread can't wait for many more seconds than this
_TABLE_WIDTH = 140  # what the widest table of numbers needs; a narrower terminal wraps its lines


class UsageError(ValueError):
    """Flags or arguments that can't be used."""


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """Add a command to those of a parser; `text` says in lower case what it does, and `run` is found as `args.run`."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(run=run)
    return parser


def add_lm_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the LMs."""
    group = parser.add_argument_group("language models")
    group.add_argument(
        "--lm", default="local", metavar="LM", help="local (default), local:NAME, local:PATH.gguf or PROVIDER/MODEL"
    )
    group.add_argument("--answer-lm", metavar="LM", help="another LM for the answer")
    group.add_argument("--decision-lm", metavar="LM", help="another LM for plan, judge and rewrite")
    group.add_argument("--fallback-lm", metavar="LM", help="answers where the others fail; not behind --api-base")
    group.add_argument("--timeout", type=positive, metavar="S", help="seconds for one LM call with its retries (300)")
    group.add_argument("--api-base", metavar="URL", help="address of an OpenAI-compatible server; key in LM_API_KEY")


def lm_flags(args: argparse.Namespace) -> str:
    """Return the flags that name the LMs of a run, to be pasted after another command; none where all is default."""
    used = {"lm": args.lm if args.lm != "local" else None, "answer-lm": args.answer_lm, "decision-lm": args.decision_lm}
    used |= {"fallback-lm": args.fallback_lm, "api-base": args.api_base and without_secrets(args.api_base)}
    return "".join(f" --{name} {shlex.quote(value)}" for name, value in used.items() if value)


def add_index_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says where the index is."""
    parser.add_argument("--index", type=Path, default=INDEX_DIR, metavar="DIR", help=f"index folder ({INDEX_DIR})")


def add_tool_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name tools beyond search; the tables of the index itself are always there."""
    group = parser.add_argument_group("tools")
    group.add_argument(
        "--database",
        action="append",
        default=[],
        metavar="DB",
        help="read-only SQL over a SQLite or DuckDB file, or postgresql://…; may be repeated",
    )
    group.add_argument("--tools", type=Path, metavar="TOML", help="file that declares HTTP tools")


def add_case_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose gold cases and how they are sampled."""
    parser.add_argument("--cases", metavar="PATH", help="case file, folder of splits, or hub id (the sample set)")
    parser.add_argument("--seed", type=seed, default=0, help="picks samples and starts optimizers (0)")


def add_tracking_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where MLflow keeps its runs."""
    add_store_flag(parser)
    parser.add_argument("--experiment", metavar="NAME", help="MLflow experiment (one a program and case set)")


def add_store_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says which MLflow store is used."""
    default = tracking_uri()
    parser.add_argument("--tracking-uri", default=default, metavar="URI", help=f"MLflow store ({TRACKING_URI})")


def add_gate_flags(parser: argparse.ArgumentParser, *, on_by_default: bool) -> None:
    """Add the flags of the gate."""
    group = parser.add_argument_group("gate", "promote (proven better), keep (not proven), or reject: exit code 1")
    group.add_argument("--gate", action=argparse.BooleanOptionalAction, default=on_by_default, help="give a verdict")
    group.add_argument(
        "--gate-limit", action="append", default=[], metavar="NAME=VALUE", help="such as tokens_ratio=6, min_cases=50"
    )


def count(text: str) -> int:
    """Read a whole number of 0 or more, for argparse."""
    return _whole(text, 0, _MOST)


def positive(text: str) -> int:
    """Read a whole number above zero, for argparse."""
    return _whole(text, 1, _MOST)


def seed(text: str) -> int:
    """Read a seed that every random generator takes, for argparse."""
    return _whole(text, 0, 2**32 - 1)


def _whole(text: str, least: int, most: int) -> int:
    value = int(text)
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{value} is below {least}" if value < least else f"{value} is above {most}")
    return value


def roles_from(args: argparse.Namespace) -> "Roles":
    """Build the LMs that the flags ask for."""
    from programs.endpoint import Patience
    from programs.lms import make_roles

    return make_roles(
        args.lm,
        answer_lm=args.answer_lm,
        decision_lm=args.decision_lm,
        api_base=args.api_base,
        fallback_lm=args.fallback_lm,
        patience=Patience(call_s=args.timeout) if args.timeout else None,
    )


def amount(text: str) -> float:
    """Read a number above zero, for argparse; one that is infinite is no limit and not written as one."""
    if not (value := finite(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def finite(text: str) -> float:
    """Read a number that others can be compared with, for argparse."""
    if not math.isfinite(value := float(text)):
        raise argparse.ArgumentTypeError(f"{text} is no finite number")
    return value


def run_guarded(run: Callable[[], int]) -> int:
    """Run a command; a known error becomes one line on stderr.

    Returns:
        What `run` returns; 2 after a known error, 130 after Ctrl-C, 0 where the reader of our output, such as `head`,
        has gone. An unknown error is a defect and goes up.
    """
    try:
        code = run()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains at its end
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; what is finished is kept, repeat the command to go on\n")
        return 130
    except (Exception, EndpointDown) as error:
        if not _is_known(error):
            raise
        sys.stderr.write(printable(f"error: {in_one_line(error)}") + "\n")
        return 2


def in_one_line(error: BaseException) -> str:
    """Say what was wrong in one line; for what the file system refused, the path first and no error number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    said = error.args[0] if isinstance(error, KeyError) and error.args else error  # as text, a KeyError is in quotes
    return " ".join(str(said).split())


def _is_known(error: BaseException) -> bool:
    if isinstance(error, OSError) or type(error).__module__.split(".")[0] in _OURS:
        return True
    exceptions = sys.modules.get("dspy.utils.exceptions")
    return exceptions is not None and isinstance(error, exceptions.LMError)


def show_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table to stdout; the first column is text, the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    console = Console(markup=False, emoji=False, highlight=False)  # names are shown as they are
    console.width = max(_TABLE_WIDTH, console.width)
    with console.capture() as shown:  # what writes by itself ends the process when its reader has gone
        console.print(title)
        console.print(table)
    sys.stdout.write(shown.get())
