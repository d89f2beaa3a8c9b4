"""How passages and conversations are shown to an LM, and the fixed sentences that need no LM."""

import re
from collections.abc import Mapping, Sequence

from programs import rules
from programs.run import Bounds
from retrievers.records import Hit

SMALL_TALK = {
    "en": "Hello! Ask me anything that the indexed documents may answer.",
    "zh": "您好！请提问，我会根据已收录的资料回答。",
}
_TURNS = 6
_TURN_CHARS = 300
_DELIMITER = re.compile(r"</?passage\b[^>]*>", re.IGNORECASE)


def format_passages(hits: Sequence[Hit], bounds: Bounds) -> str:
    """Number and delimit passages; each is cut at the bound, and text that imitates a delimiter is taken out.

    Status and date of the document stand in the opening line, so that a newer source can be told from an older one.
    """
    return "\n".join(_format_passage(number, hit, bounds.passage_chars) for number, hit in enumerate(hits, 1))


def _format_passage(number: int, hit: Hit, chars: int) -> str:
    passage = hit.passage
    facts = [str(passage.metadata[key]) for key in ("status", "date") if passage.metadata.get(key)]
    heading = _DELIMITER.sub(" ", " | ".join([passage.title, *facts]))
    text = _DELIMITER.sub(" ", passage.text)
    return f"<passage {number}> {heading}\n{_cut(text, chars)}\n</passage>"


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars].rstrip() + " …"


def format_conversation(history: Sequence[Mapping[str, str]]) -> str:
    """Return the last turns of a conversation, bounded, one a line."""
    return "\n".join(f"{turn['role']}: {_cut(turn['text'], _TURN_CHARS)}" for turn in history[-_TURNS:])


def say_not_found(question: str, queries: Sequence[str]) -> str:
    """Return the abstention: that the documents do not say, and what was searched."""
    searched = dict.fromkeys(queries)
    if rules.is_chinese(question):
        return f"资料中没有找到答案。已检索：{'；'.join(searched)}"
    return f"The documents do not say. Searched: {'; '.join(searched)}"
