"""Words quoted from passages: which of them stand there, which passages hold them, which an answer rests on."""

from collections.abc import Sequence
from functools import lru_cache

from programs import rules
from retrievers.records import Hit


def text_of(hits: Sequence[Hit]) -> str:
    """Return titles and texts of passages, one after another."""
    return "\n".join(f"{hit.passage.title}\n{hit.passage.text}" for hit in hits)


def stands_in(quote: str, text: str) -> bool:
    """Tell whether a text holds these words, whatever the markup and spacing."""
    wanted = _bare(quote)
    return bool(wanted) and wanted in _bare(text)


@lru_cache(maxsize=256)  # every quote is looked for in every passage, several times a question
def _bare(text: str) -> str:
    return rules.bare(text)


def quotes_of(hit: Hit, quotes: Sequence[str]) -> tuple[str, ...]:
    """Return the quotes that stand in a passage, but for markup and spacing."""
    text = text_of([hit])
    return tuple(quote for quote in quotes if stands_in(quote, text))


def find_quotes(quotes: Sequence[str], hits: Sequence[Hit]) -> tuple[str, ...]:
    """Return the quotes that stand in one of the passages."""
    found = {quote for hit in hits for quote in quotes_of(hit, quotes)}
    return tuple(quote for quote in quotes if quote in found)


def holding(quotes: Sequence[str], hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the passages that hold one of the quotes."""
    return tuple(hit for hit in hits if quotes_of(hit, quotes))


def cited(numbers: Sequence[int], answer: str, hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the passages of these numbers, from 1; where none is valid, those that hold the answer's words."""
    valid = tuple(hits[number - 1] for number in dict.fromkeys(numbers) if 1 <= number <= len(hits))
    wanted = rules.fold(answer)
    return valid or tuple(hit for hit in hits if wanted and wanted in rules.fold(hit.passage.text))
