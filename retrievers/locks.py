"""Who is alone with a file or folder and who reads an index: file locks that the system drops when a process dies."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Self

LOCK = "LOCK"
_LEASE = "LEASE"
_GONE = "gone-"


class FolderBusy(RuntimeError):  # noqa: N818
    """Another process is writing the folder."""


class IndexBusy(FolderBusy):
    """Another process is writing the index."""


@contextmanager
def locked(path: Path, *, wait: bool = True, create: bool = False) -> Iterator[None]:
    """Be the only one that has locked a file or folder.

    Args:
        path: The file or folder; it may be removed or moved meanwhile, and the lock goes with it.
        wait: For another process to let go of it, however long that takes.
        create: The file, where it is missing.

    Raises:
        BlockingIOError: Another process has it, and `wait` is false.
        FileNotFoundError: It is missing.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(
    path: Path, what: str = "index", busy: type[FolderBusy] = IndexBusy, wait: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Be the only writer of the folder at `path`, which is made when missing.

    Args:
        path: The folder.
        what: What it holds, for messages.
        busy: Raised if another process writes it.
        wait: Told who writes it, to wait for that process instead of raising.

    Raises:
        FolderBusy: Another process is writing it; the message names it.
        NotADirectoryError: It, or a folder above it, is a file.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"{path}: a file stands there, expected a folder; name another place") from None
    file = path / LOCK
    with ExitStack() as held:
        try:
            held.enter_context(locked(file, wait=False, create=True))
        except BlockingIOError:
            holder = file.read_text(encoding="utf-8", errors="replace").strip() or "another process"
            if wait is None:
                raise busy(f"{path}: {holder} is writing this {what}; wait for it or stop it") from None
            wait(f"{path}: waiting for {holder}, which is writing this {what}")
            held.enter_context(locked(file))
        file.write_text(f"process {os.getpid()} (since {time.strftime('%Y-%m-%d %H:%M:%S')})\n", encoding="utf-8")
        yield


class Lease:
    """Keeps a generation of an index on disk while somebody reads it."""

    def __init__(self, generation: Path) -> None:
        """Take the lease.

        Raises:
            FileNotFoundError: The generation is gone: a newer one has replaced it.
        """
        self._file: BinaryIO = (generation / _LEASE).open("rb")
        fcntl.flock(self._file, fcntl.LOCK_SH)
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self.release()
            raise FileNotFoundError(f"{generation}: was removed while it was being opened")

    def release(self) -> None:
        """Give the lease back."""
        self._file.close()

    def __enter__(self) -> Self:
        """Hold the lease for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lease back."""
        self.release()


def make_leasable(generation: Path) -> None:
    """Write the file that leases lock."""
    (generation / _LEASE).touch()


def drop_others(path: Path, current: Path) -> None:
    """Remove all generations of an index but the current one and those that somebody reads.

    They are renamed first: what a killed process leaves of one is then no generation any more.
    """
    for folder in path.glob("g[0-9]*"):
        if folder != current and not is_leased(folder):
            folder.rename(path / f"{_GONE}{time.time_ns()}-{folder.name}")
    for folder in path.glob(f"{_GONE}*"):
        shutil.rmtree(folder, ignore_errors=True)


def is_leased(generation: Path) -> bool:
    """Tell whether a process reads this generation; the lease file is removed when none does.

    The file goes while the exclusive lock is held, so a reader either has its lease first or finds the file gone.
    """
    try:
        file = (generation / _LEASE).open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        (generation / _LEASE).unlink()
        return False
