"""The passages of a demo, cut to what its output rests on: every call pays for them again."""

from collections.abc import Sequence
from dataclasses import dataclass

from programs.changes import estimate_tokens
from programs.prompting import excerpt, split_lines
from programs.quotes import stands_in
from programs.rules import bare, is_chinese
from retrievers.records import Hit

_TOKENS = 30
_CHARS, _CHINESE_CHARS = 110, 50  # about as many tokens
_LEAST_CHARS = 6  # letters and digits of a line that says something


@dataclass(frozen=True, slots=True)
class Shown:
    """A passage as it stands in a prompt, and the hit behind it."""

    heading: str
    body: str
    hit: Hit

    def holds_any(self, quotes: Sequence[str]) -> bool:
        """Tell whether one of the quotes stands in what is shown."""
        return any(stands_in(quote, self.body) for quote in quotes)


def sentences(text: str) -> list[str]:
    """Cut a text into its lines and sentences, without those that are empty."""
    return [part for part in map(str.strip, split_lines(text)) if part]


def shorten(shown: Sequence[Shown], quotes: Sequence[str], question: str) -> tuple[str, dict[int, int]]:
    """Show only what a demo needs of its passages: the lines around every quote, and one passage more to tell it from.

    Where quotes stand in several passages there is enough to choose from; where there is none, two passages are shown.

    Returns:
        The passages in the format of `format_passages`, numbered anew; old number → new number.
    """
    quoted = [number for number, one in enumerate(shown) if one.holds_any(quotes)]
    others = [number for number in range(len(shown)) if number not in quoted]
    kept = sorted([*quoted, *others[: max(0, 2 - len(quoted))]])
    parts = []
    for place, number in enumerate(kept, 1):
        one = shown[number]
        body = _cut([quote for quote in quotes if stands_in(quote, one.body)], one.body, question)
        parts.append(f"<passage {place}> {one.heading}\n{body}\n</passage>")
    return "\n".join(parts), {number + 1: place for place, number in enumerate(kept, 1)}


def _cut(quotes: Sequence[str], body: str, question: str) -> str:
    if not quotes:
        return excerpt(body, question, _CHINESE_CHARS if is_chinese(body) else _CHARS)
    pieces = split_lines(body)
    kept = sorted({place for quote in quotes for place in _around(quote, pieces)})
    text = ""
    for place in kept:
        gap = "" if place - 1 in kept or not place else "… " if not text else " … "
        text = f"{text.rstrip() if gap else text}{gap}{pieces[place]}"
    return text.strip() + (" …" if kept[-1] < len(pieces) - 1 else "")


def _around(quote: str, pieces: Sequence[str]) -> range:
    """Find the fewest lines that hold a quote; take in the one after and the one before as far as there is room."""
    n = len(pieces)
    runs = (range(first, first + length) for length in range(1, n + 1) for first in range(n - length + 1))
    held = next((run for run in runs if stands_in(quote, "".join(pieces[run.start : run.stop]))), range(n))
    for before, after in ((0, 1), (1, 0)):
        wider = range(max(held.start - before, 0), min(held.stop + after, n))
        added = [pieces[place] for place in wider if place not in held]
        if all(map(_says_something, added)) and estimate_tokens("".join(pieces[wider.start : wider.stop])) <= _TOKENS:
            held = wider
    return held


def _says_something(piece: str) -> bool:
    return len(bare(piece)) >= _LEAST_CHARS and not piece.startswith("#")
