import fcntl
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retrievers.locks import FolderBusy, IndexBusy, Lease, drop_others, hold_lock, is_leased, locked, make_leasable


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from retrievers.locks import hold_lock\n"
        f"with hold_lock(Path({str(tmp_path)!r})): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with hold_lock(tmp_path):
        pass


def test_the_holder_is_named(tmp_path: Path) -> None:
    with hold_lock(tmp_path), pytest.raises(IndexBusy, match=r"process \d+ \(since "), hold_lock(tmp_path):
        pass


def test_who_waits_is_told_for_whom_and_gets_the_lock_after_it(tmp_path: Path) -> None:
    holder = hold_lock(tmp_path)
    holder.__enter__()

    def tell(text: str) -> None:
        assert re.fullmatch(rf"{tmp_path}: waiting for process \d+ \(since .*\), which is writing this index", text)
        holder.__exit__(None, None, None)

    with hold_lock(tmp_path, wait=tell), pytest.raises(FolderBusy), hold_lock(tmp_path, busy=FolderBusy):
        pass


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_the_place_of_the_folder_is_named_and_kept(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match=f"/{place}: a file stands there"), hold_lock(tmp_path / place):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_lock_file_of_something_else_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_bytes(b"\xff\xfe")
    with (tmp_path / "LOCK").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(IndexBusy), hold_lock(tmp_path):
            pass


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_at_a_time_has_a_file_or_folder_locked(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file" if kind == "file" else tmp_path
    with locked(path, create=kind == "file"), pytest.raises(BlockingIOError), locked(path, wait=False):
        pass
    with locked(path, wait=False):
        pass


def test_who_waits_for_a_file_gets_it_when_its_holder_dies(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from retrievers.locks import locked\n"
        f"with locked(Path({str(tmp_path / 'a')!r}), create=True):\n"
        "    print(flush=True); sys.stdin.read(); os.kill(os.getpid(), 9)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(BlockingIOError), locked(tmp_path / "a", wait=False):
            pass
        holder.stdin.close()
        with locked(tmp_path / "a"):
            assert holder.wait() == -9


def test_only_what_is_to_be_made_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lease_keeps_a_generation_and_its_end_lets_it_go(tmp_path: Path) -> None:
    make_leasable(tmp_path)
    with Lease(tmp_path), Lease(tmp_path):
        assert is_leased(tmp_path)
    assert not is_leased(tmp_path)
    with pytest.raises(FileNotFoundError):
        Lease(tmp_path)


def test_a_generation_goes_at_once_and_what_a_killed_process_left_of_it_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("g000001", "g000002"):
        (tmp_path / name).mkdir()
        make_leasable(tmp_path / name)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("retrievers.locks.shutil.rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            drop_others(tmp_path, tmp_path / "g000002")
    assert [path.name for path in tmp_path.glob("g[0-9]*")] == ["g000002"]
    drop_others(tmp_path, tmp_path / "g000002")
    assert [path.name for path in tmp_path.iterdir()] == ["g000002"]
