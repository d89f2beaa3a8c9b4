import pytest

from programs.progress import in_minutes, progress


def test_progress_without_a_terminal_is_a_line_a_step_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("evaluating [x]", 3) as step:
        for n in range(3):
            step(f"score 0.{n}")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [line.split(" · ")[0] for line in lines] == [f"evaluating [x] {n}/3" for n in (1, 2, 3)]
    assert lines[2].endswith("0:00 left · score 0.2")


def test_a_time_has_no_sixty_seconds() -> None:
    assert [*map(in_minutes, (0.4, 59.4, 59.7, 119.7, 3600))] == ["0:00", "0:59", "1:00", "2:00", "60:00"]


def test_progress_on_a_terminal_shows_names_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress("evaluating [/x]", 1) as step:
        step("[/y] 1 errors")
    assert "evaluating [/x]" in capsys.readouterr().err
