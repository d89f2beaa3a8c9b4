"""What the README says to type is taken by the commands."""

import argparse
import re
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
WORDS = [shlex.split(line, comments=True) for block in BLOCKS for line in re.split(r"\n|;|&&", block)]
COMMANDS = [words[: words.index(">")] if ">" in words else words for words in WORDS if words[:1] == ["python"]]


class Taken(BaseException):
    """The flags were taken; the command need not run."""


@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(words[1:]) for words in COMMANDS])
def test_a_command_of_the_readme_has_the_flags_and_values_that_it_names(
    words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        original(parser, *args, **kwargs)
        raise Taken

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    is_module = words[1] == "-m"
    monkeypatch.setattr(sys, "argv", list(words[2:] if is_module else words[1:]))
    if is_module:  # another test may have imported it
        monkeypatch.delitem(sys.modules, f"{words[2]}.__main__", raising=False)
    run, target = (runpy.run_module, words[2]) if is_module else (runpy.run_path, str(ROOT / words[1]))
    with pytest.raises(Taken):
        run(target, run_name="__main__")


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) > 30
