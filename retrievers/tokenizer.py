"""One tokenizer for English and Chinese: words, ids kept whole, Chinese words by jieba."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from retrievers.readers.parsed import UnreadableFile
from retrievers.readers.text import decode

VERSION = "bilingual-2"
ID_WEIGHT = 3

_FUNCTION_WORDS = frozenset(
    (
        "a an the of to in on at by for with from as is are was were be been being am do does did done has "
        "have had having and or not no nor but if then than that this these those it its he she they them his "
        "her their him we you i me my our your who whom whose which what when where why how there here can "
        "could will would shall should may might must about into over under between during before after above "
        "below up down out off again further once all any both each few more most other some such only own "
        "same so too very s t just also "
        "的 了 是 在 我 有 和 就 不 人 都 一 一个 上 也 很 到 说 要 去 你 会 着 没有 看 好 自己 "
        "这 吗 呢 吧 啊 什么 怎么 怎么样 怎样 如何 哪些 哪个 哪 为什么 多少 几 请问 与 及 或 被 把 "
        "对 从 而 以 之 其 该 那 这个 那个 可以 能 呀 么 "
    ).split()
)

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HAN_RUN = re.compile(f"[{_HAN}]+")
# jieba's own dictionaries may have a frequency and a part of speech behind the word.
_DICTIONARY_LINE = re.compile(r"(\S+)(?:\s+\d+)?(?:\s+[a-zA-Z]+)?")
# A chunk is a run of Han characters, or a run of letters and digits that may be joined by the marks that ids use.
_CHUNK = re.compile(rf"[{_HAN}]+|(?:(?![{_HAN}])[^\W_])+(?:[-_./:'](?:(?![{_HAN}])[^\W_])+)*")
_JOINT = re.compile(r"[-_./:']")
_POSSESSIVE = re.compile(r"'s?$")
# Letters before the first digit (`e-1024`, `inc-778899`, `fk22`, `v2.3.1`) or digits with a short suffix (`4410-ab`).
_ID = re.compile(
    r"(?:[a-z]+[-_./]?\d|\d+[-_/][a-z]{1,3}(?![a-z]))[a-z0-9]*(?:[-_./](?:[a-z]{0,3}\d[a-z0-9]*|[a-z]{1,3}))*"
)


class WordsError(ValueError):
    """A file of words that cannot be read."""


class Tokenizer:
    """Text to the tokens that BM25 counts; documents and queries go through the same one.

    NFKC and case folding first, so full-width and half-width forms meet. A run with a digit and a joint is an id or a
    number and stays whole (`e-1024`, `v2.3.1`, `2024-01-15`); its parts of three letters or more are tokens too, so
    `covid-19` is found by `covid`. Joined words without digits are split.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        """Take `words`, the custom dictionary: terms that jieba must not cut; it is shown Chinese characters alone."""
        folded = {_fold(word).strip() for word in words}
        self.words = tuple(sorted(word for word in folded if _HAN_RUN.fullmatch(word)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Share the tokenizer with copies, and load it again where it was sent: jieba's dictionary does neither."""
        return load_tokenizer, (self.words,)

    @property
    def fingerprint(self) -> str:
        """Name what decides the tokens: the rules' version and the custom dictionary."""
        if not self.words:
            return VERSION
        return f"{VERSION}+{hashlib.sha256(chr(10).join(self.words).encode()).hexdigest()[:12]}"

    def __call__(self, text: str) -> list[str]:
        """Cut `text` into tokens, in order, repeats kept."""
        tokens: list[str] = []
        for chunk in _CHUNK.findall(_fold(text)):
            if chunk.isascii() and chunk.isalnum():  # most words: nothing to cut
                tokens.append(chunk)
            else:
                tokens.extend(self._cut(chunk))
        return tokens

    def find(self, text: str, wanted: Iterable[str]) -> set[str]:
        """Find which of the tokens `wanted` are tokens of `text`; what can't hold one is not cut."""
        sought, found = set(wanted), set[str]()
        for chunk in dict.fromkeys(_CHUNK.findall(_fold(text))):
            is_whole = chunk.isascii() and chunk.isalnum()
            if chunk in sought if is_whole else any(one in chunk for one in sought):
                found |= sought.intersection((chunk,) if is_whole else self._cut(chunk))
                sought -= found
        return found

    def _cut(self, chunk: str) -> Iterable[str]:
        if not _HAN_RUN.match(chunk):
            return _cut_word(chunk)
        tokens: list[str] = [chunk] if len(chunk) == 1 else self._jieba.cut_for_search(chunk)
        return tokens

    @cached_property
    def _jieba(self) -> Any:
        """Load the dictionary: a quarter of a second, that a corpus without Chinese saves."""
        import rjieba  # jieba in Rust: the same words in a tenth of the time

        segmenter = rjieba.Jieba()
        for word in self.words:
            segmenter.add_word(word, None, None)
        return segmenter


@lru_cache(maxsize=8)
def load_tokenizer(words: tuple[str, ...] = ()) -> Tokenizer:
    """Share one tokenizer per custom dictionary: its dictionary takes a quarter of a second to load."""
    return Tokenizer(words)


def read_words(path: Path) -> tuple[list[str], list[str]]:
    """Read a custom dictionary, one word a line, as plain text or as jieba has it (`word frequency part-of-speech`).

    Returns:
        The words; and the lines, each with its number, that have no effect: they hold other than Chinese characters.

    Raises:
        WordsError: It is no text.
    """
    try:
        lines = [line.strip() for line in decode(path.read_bytes()).split("\n")]
    except UnreadableFile as error:
        raise WordsError(f"{path}: {error}; expected a file of words, one a line") from None
    words, unused = list[str](), list[str]()
    for number, line in enumerate(lines, start=1):
        match = _DICTIONARY_LINE.fullmatch(line)
        if match and _HAN_RUN.fullmatch(_fold(match[1])):
            words.append(match[1])
        elif line:
            unused.append(f"{number}: {line[:40]!r}")
    return words, unused


def tokenize(text: str) -> list[str]:
    """Cut `text` into tokens with the default dictionary."""
    return load_tokenizer()(text)


def query_tokens(text: str, tokenizer: Tokenizer) -> list[str]:
    """Cut a query: each token once, without function words unless nothing else is left, ids as often as they weigh."""
    tokens = list(dict.fromkeys(tokenizer(text)))
    content = [token for token in tokens if token not in _FUNCTION_WORDS] or tokens
    ids = set(find_ids(text))
    return [token for token in content for _ in range(ID_WEIGHT if token in ids else 1)]


def find_ids(text: str) -> list[str]:
    """List the ids in `text` (`e-1024`, `inc-778899`, `fk22`) as tokens, in order, without repeats."""
    chunks = (_POSSESSIVE.sub("", match.group()) for match in _CHUNK.finditer(_fold(text)))
    return list(dict.fromkeys(chunk for chunk in chunks if _ID.fullmatch(chunk)))


def _fold(text: str) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode("utf-8")  # half of a surrogate pair cannot be stored
    return unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")


def _cut_word(chunk: str) -> Iterator[str]:
    chunk = _POSSESSIVE.sub("", chunk)
    parts = _JOINT.split(chunk)
    if len(parts) == 1:
        yield chunk
    elif any(character.isdigit() for character in chunk) and "'" not in chunk:
        yield chunk
        yield from (part for part in parts if len(part) > 2 and part.isalpha())
    else:
        yield from parts
