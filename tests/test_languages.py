import pytest

from retrievers.languages import detect_language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The controller is offline.", "en"),
        ("控制器离线怎么办", "zh"),
        ("E-1024 是什么意思", "zh"),
        ("NX-200 控制器的 FW 5.1.0 固件说明", "zh"),
        ("The controller (控制器) is offline when the supply is low.", "en"),
        ("これはペンです。とても便利です。", "ja"),
        ("제어기가 오프라인입니다", "ko"),
        ("Der Regler bleibt stehen, wenn die Spannung unter den Grenzwert sinkt und niemand quittiert.", "other"),
        ("E-1024", "en"),
        ("123 456", "other"),
        ("", "other"),
    ],
)
def test_the_language_follows_script_and_common_words(text: str, language: str) -> None:
    assert detect_language(text) == language
