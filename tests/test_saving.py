import fcntl
import os
from pathlib import Path

import pytest

from programs import saving
from programs.saving import exchange, replace_folder


def left_over(place: Path, *names: str) -> Path:
    """A folder beside `place` as a killed save leaves it."""
    folder = place.with_name(f".{place.name}-saving-ab12cd_3")
    folder.mkdir()
    for name in names:
        (folder / name).write_text("half", encoding="utf-8")
    return folder


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    replace_folder(tmp_path / "deep" / "out", {"a": "1", "b": "2"})
    replace_folder(tmp_path / "deep" / "out", {"b": "3"})
    assert {path.name: path.read_text() for path in (tmp_path / "deep" / "out").iterdir()} == {"b": "3"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert (tmp_path / "deep" / "out").stat().st_mode & 0o777 == 0o755


def test_what_a_dead_process_left_is_cleared_away(tmp_path: Path) -> None:
    place = tmp_path / "out"
    left = [left_over(place, "a"), left_over(tmp_path / "out-keep", "a")]
    old = left[0].rename(left[0].with_name(f"{left[0].name}-old"))
    left_over(place)
    replace_folder(place, {"a": "1", "b": "2"})
    assert not old.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [left[1].name, "out"]  # that of another place stays


def test_what_a_living_process_writes_and_what_is_no_export_stays(tmp_path: Path) -> None:
    place = tmp_path / "out"
    written, mine = left_over(place, "a"), tmp_path / ".out-saving-personal"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine", encoding="utf-8")
    lock = os.open(written, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    replace_folder(place, {"a": "1"})
    assert (written / "a").read_text() == "half"
    assert (mine / "notes.txt").read_text() == "mine"
    os.close(lock)
    replace_folder(place, {"a": "1"})
    assert not written.exists()
    assert (mine / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_cleared_away_before_it_is_locked_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, make = [], saving.tempfile.mkdtemp

    def make_and_lose(**how: str) -> str:
        made.append(make(**how))
        if len(made) == 1:
            saving._clear(tmp_path / "out", ["a"])
        return made[-1]

    monkeypatch.setattr(saving.tempfile, "mkdtemp", make_and_lose)
    replace_folder(tmp_path / "out", {"a": "1"})
    assert len(made) == 2
    assert (tmp_path / "out" / "a").read_text() == "1"


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    replace_folder(tmp_path / "out", {"a": "1"})
    with pytest.raises(OSError, match="b/c"):
        replace_folder(tmp_path / "out", {"a": "2", "b/c": "x"})
    assert (tmp_path / "out" / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_folders_are_swapped_in_one_step_or_in_renames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for one_step in (True, False):
        if not one_step:
            monkeypatch.setattr(saving.ctypes, "CDLL", lambda name: object())
        fresh, folder = tmp_path / f"fresh{one_step}", tmp_path / f"folder{one_step}"
        for path in (fresh, folder):
            path.mkdir()
            (path / path.name).touch()
        exchange(fresh, folder)
        assert [path.name for path in folder.iterdir()] == [fresh.name]
        assert [path.name for path in fresh.iterdir()] == [folder.name]
