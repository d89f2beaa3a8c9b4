"""Write a folder in one step: it is whole or as it was before, and what a killed save left is cleared away."""

import ctypes
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from retrievers.locks import locked


def replace_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write a folder of text files in place of the one that is there, if any."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _unfinished(folder) as fresh:
        fresh.chmod(0o755)
        for name, text in files.items():
            (fresh / name).write_text(text, encoding="utf-8")
        if folder.exists():
            exchange(fresh, folder)
        else:
            os.replace(fresh, folder)
    _clear(folder, files.keys())


def exchange(fresh: Path, folder: Path) -> None:
    """Swap two folders in one step where the system can (Linux), else in two renames."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2 and renameat2(here, os.fsencode(fresh), here, os.fsencode(folder), swap) == 0:
        return
    old = fresh.with_name(f"{fresh.name}-old")
    os.replace(folder, old)
    os.replace(fresh, folder)
    os.replace(old, fresh)


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """Make a hidden folder beside `folder`, locked as long as this process writes it, and gone in the end."""
    with ExitStack() as held:
        fresh = _make_locked(folder, held)
        held.callback(shutil.rmtree, fresh, ignore_errors=True)
        yield fresh


def _make_locked(folder: Path, held: ExitStack) -> Path:
    while True:
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-saving-"))
        with suppress(FileNotFoundError):  # somebody who was clearing away took it for a dead one before it was locked
            held.enter_context(locked(fresh))
            if fresh.exists():
                return fresh
            held.close()


def _clear(folder: Path, names: Iterable[str]) -> None:
    """Remove the unfinished folders of saves that were killed: those with the same files that nobody has locked.

    Called when `folder` is in place: where the system can't swap, a killed save may have left the only whole copy.
    """
    pattern = re.compile(rf"\.{re.escape(folder.name)}-saving-\w{{8}}(-old)?")
    for left in [one for one in folder.parent.iterdir() if pattern.fullmatch(one.name)]:
        with suppress(OSError), locked(left, wait=False):  # one being written is locked, one that is finished is gone
            if {file.name for file in left.iterdir()} <= set(names):
                shutil.rmtree(left)
