"""The language of a text, by its script and its commonest words."""

import re

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")
_LATIN = re.compile(r"[A-Za-z]+")
_ENGLISH = frozenset(
    "a an and are as at be been by can do does for from has have how if in into is it its more most not of on or that "
    "the their there these this to was we were what when where which who why will with you your".split()
)
# Letters that are neither Latin nor Han: accents and other scripts.
_FOREIGN = re.compile("[^\\W\\d_A-Za-z\u3400-\u9fff]")
_SAMPLE = 1_000


def detect_language(text: str) -> str:
    """Name the language of a text: `zh`, `ja`, `ko`, `en`, or `other`.

    A Han character says about as much as a Latin word, so they are counted against each other. Latin text of a dozen
    words without any of the commonest English ones is `other`; shorter text passes for English.
    """
    sample = text[:_SAMPLE]
    scripts = (_HAN, _KANA, _HANGUL) if not sample.isascii() else ()
    n_han, n_kana, n_hangul = (len(script.findall(sample)) for script in scripts) if scripts else (0, 0, 0)
    words = [word.lower() for word in _LATIN.findall(sample)]
    if n_kana and n_kana * 5 >= n_han and n_kana + n_han >= len(words):
        return "ja"
    if n_hangul > n_han and n_hangul >= len(words):
        return "ko"
    if n_han and n_han >= len(words):
        return "zh"
    if not words:
        return "other"
    n_foreign = len(_FOREIGN.findall(sample)) if not sample.isascii() else 0
    is_english = any(word in _ENGLISH for word in words) or len(words) < 12
    return "en" if is_english and n_foreign < len(words) else "other"
