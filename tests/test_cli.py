import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import HEAVY, heavy_imports_of_help
from dspy.utils.exceptions import LMError

from programs.cli import UsageError, add_lm_flags, positive, roles_from, run_guarded, show_table
from programs.export import ProgramStateError
from programs.meter import EndpointDown
from programs.places import TRACKING_URI
from retrievers import IndexNotFound
from retrievers.store import NotInIndex
from trainsets.cases import CaseError
from trainsets.evaluation import COLUMNS

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "optimize": ["optimize.py"],
    "evaluate": ["evaluate.py"],
    "programs": ["-m", "programs"],
    "ask": ["-m", "programs", "ask"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_help_imports_nothing_that_takes_time(command: list[str]) -> None:
    assert heavy_imports_of_help(command) == ""


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_an_unknown_flag_is_a_usage_error(command: list[str]) -> None:
    arguments = [str(ROOT / part) if part.endswith(".py") else part for part in command]
    done = subprocess.run([sys.executable, *arguments, "--no-such-flag"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")


def raises(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


@pytest.mark.parametrize(
    "error",
    [
        UsageError("flags"),
        IndexNotFound("no index\n  here"),
        NotInIndex("no document 'x'"),
        CaseError("x.jsonl:3: id: missing"),
        ProgramStateError("damaged"),
        FileNotFoundError(2, "No such file or directory", "x"),
        LMError("down"),
        EndpointDown("down"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_known_error_is_one_line_and_exit_code_two(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(raises(error)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err[len("error: ")] not in "'\""
    assert captured.err.count("\n") == 1


def test_a_file_that_is_not_there_is_named_without_its_error_number(capsys: pytest.CaptureFixture[str]) -> None:
    run_guarded(raises(FileNotFoundError(2, "No such file or directory", "x.toml")))
    assert capsys.readouterr().err == "error: x.toml: No such file or directory\n"


def test_an_unknown_error_is_a_defect_and_goes_up() -> None:
    with pytest.raises(KeyError):
        run_guarded(raises(KeyError("x")))


def test_an_interrupt_is_130_and_says_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(raises(KeyboardInterrupt())) == 130
    assert "repeat the command to go on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "show",
    ["print('line')", "print('line' * 100_000)", "show_table('numbers', 'ab', [['x' * 100, 1]] * 1_000)"],
    ids=["at the end", "while it is written", "while a table is written"],
)
def test_a_reader_that_has_gone_is_no_error(show: str) -> None:
    code = f"from programs.cli import run_guarded, show_table; exit(run_guarded(lambda: {show} or 1))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_exit_code_of_a_command_is_its_own() -> None:
    assert [run_guarded(lambda code=code: code) for code in (0, 1)] == [0, 1]


@pytest.mark.parametrize("text", ["0", "-1"])
def test_a_count_below_one_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="below 1"):
        positive(text)
    assert positive("7") == 7


def test_a_table_shows_every_cell_whole_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    cells = ("runs/export", "0.123", "0.234", "0.345", "0.456", "0.567", "8.9", "12,345", "123.4", "234.5", "12", "13")
    show_table("12 dev cases · openai/test", COLUMNS, [cells])
    out = capsys.readouterr().out
    assert all(cell in out for cell in (*cells, *COLUMNS))
    assert len([line for line in out.splitlines() if line.strip()]) == 4  # title, head, rule, row


def test_names_in_a_table_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("[bold]title[/bold] :smile:", ("program",), [("[red]x[/red]",), ("[/oops]",), (":warning:",)])
    out = capsys.readouterr().out
    assert all(text in out for text in ("[bold]title[/bold] :smile:", "[red]x[/red]", "[/oops]", ":warning:"))


def test_what_the_command_lines_share_is_light() -> None:
    code = f"import sys, programs.cli; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == ""
    assert TRACKING_URI == "sqlite:///runs/mlflow.db"


def test_flags_choose_a_fallback_and_the_patience() -> None:
    parser = argparse.ArgumentParser()
    add_lm_flags(parser)
    flags = ["--lm", "openai/a", "--api-base", "http://127.0.0.1:9/v1", "--fallback-lm", "openai/b", "--timeout", "7"]
    roles = roles_from(parser.parse_args(flags))
    assert roles.answer.fallback is not None
    assert (roles.answer.fallback.label, roles.answer.fallback.model) == ("openai/b", "openai/b")
    assert roles.answer.patience.call_s == roles.answer.fallback.patience.call_s == 7
