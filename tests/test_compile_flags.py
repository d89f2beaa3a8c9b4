import pytest

from programs.compile_flags import limits_from, parse, settings_from
from programs.settings import Limits, Settings


def test_no_flag_is_the_defaults_of_the_settings_and_no_limit() -> None:
    args = parse([], "what it does")
    assert settings_from(args) == Settings()
    assert limits_from(args) == Limits()


def test_flags_become_settings_and_limits() -> None:
    flags = "--optimizer chain:labeled,gepa --max-demos 2 --auto heavy --trials 7 --seed 5 --threads 3 --step-demos"
    args = parse([*flags.split(), "--max-lm-calls", "90", "--max-cost", "1.5", "--max-minutes", "0.5"], None)
    assert settings_from(args) == Settings("chain:labeled,gepa", 2, "heavy", 7, 5, 3, step_demos=True)
    assert limits_from(args) == Limits(90, 1.5, 0.5)


def test_an_unknown_optimizer_is_told_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--optimizer", "magic"], None)
    assert "no optimizer 'magic': expected labeled, knn, " in capsys.readouterr().err
