"""How passages are shown to an LM, and the fixed sentences that need no LM."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from programs import rules
from programs.run import Bounds
from retrievers.records import Hit

SMALL_TALK = {
    "en": "Hello! Ask me anything that the indexed documents may answer.",
    "zh": "您好！请提问，我会根据已收录的资料回答。",
}
IN_CHINESE = "（请用中文回答）"
NAME_BOTH = " (The passages disagree and neither is newer: give each value with its source. 各说法都列出)"
_QUOTE_CHARS = 160
_PIECE = re.compile(r"[^\n。！？；]*?(?:[.!?](?=\s)|[\n。！？；]|$)\s*", re.DOTALL)
_DELIMITER = re.compile(r"</?passage\b[^>]*>", re.IGNORECASE)


def format_passages(hits: Sequence[Hit], question: str, bounds: Bounds) -> str:
    """Number and delimit passages; of a long one the part that has most of the question's words is shown.

    Status and date of the document stand in the opening line, so that a newer source can be told from an older one.
    Text that imitates a delimiter is taken out.
    """
    return "\n".join(_format_passage(number, hit, question, bounds.passage_chars) for number, hit in enumerate(hits, 1))


def _format_passage(number: int, hit: Hit, question: str, chars: int) -> str:
    passage = hit.passage
    facts = [str(passage.metadata[key]) for key in ("status", "date") if passage.metadata.get(key)]
    heading = _DELIMITER.sub(" ", " | ".join([passage.title, *facts]))
    return f"<passage {number}> {heading}\n{excerpt(_DELIMITER.sub(' ', passage.text), question, chars)}\n</passage>"


def split_lines(text: str) -> list[str]:
    """Cut a text after every line and sentence; nothing of it is lost."""
    return [piece for piece in _PIECE.findall(text) if piece]


@lru_cache(maxsize=64)  # the judge is shown a passage, then the answerer is
def excerpt(text: str, question: str, chars: int) -> str:
    """Return the run of whole lines or sentences, at most `chars` long, that holds most of the question's words.

    Of equals the first one wins; a piece that alone is too long is cut. What was left out shows as `…`.
    """
    if len(text) <= chars:
        return text
    pieces = split_lines(text)
    wanted = rules.words(question)
    held = [wanted & rules.words(piece) for piece in pieces]
    ends = [_find_end(pieces, start, chars) for start in range(len(pieces))]
    best = max(range(len(pieces)), key=lambda start: (len(set[str]().union(*held[start : ends[start]])), -start))
    window = "".join(pieces[best : ends[best]])
    before = "… " if best else ""
    after = " …" if ends[best] < len(pieces) else ""
    return before + window.strip()[:chars] + after


def _find_end(pieces: Sequence[str], start: int, chars: int) -> int:
    """Return the place after the last of the pieces from `start` on that fit into `chars`; one always does."""
    end, length = start + 1, len(pieces[start])
    while end < len(pieces) and length + len(pieces[end]) <= chars:
        length, end = length + len(pieces[end]), end + 1
    return end


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars].rstrip() + " …"


def name_sources(question: str, said: Sequence[tuple[str, str]]) -> str:
    """Return the sentence that tells which source says what, where it stays open which one holds."""
    if rules.is_chinese(question):
        return f"各来源说法不一：{'；'.join(f'《{title}》“{_cut(quote, _QUOTE_CHARS)}”' for title, quote in said)}。"
    return f"The sources disagree: {'; '.join(f'{title}: “{_cut(quote, _QUOTE_CHARS)}”' for title, quote in said)}."


def ask_back(question: str, choices: Mapping[str, Sequence[str]]) -> str:
    """Return a question back to the user, with what the documents offer."""
    if rules.is_chinese(question):
        offered = "；".join(f"{key}：{'、'.join(values)}" for key, values in choices.items())
        return "请问您指的是哪一个？" + (f"资料中有 {offered}。" if offered else "")
    offered = "; ".join(f"{key}: {', '.join(values)}" for key, values in choices.items())
    return "Which one do you mean?" + (f" The documents cover {offered}." if offered else "")


def say_not_found(question: str, queries: Sequence[str], known: Sequence[str] = ()) -> str:
    """Return the abstention: that the documents do not say, what was searched, and the nearest words found."""
    searched = dict.fromkeys(queries)
    nearest = [_cut(quote, _QUOTE_CHARS) for quote in known[:2]]
    if rules.is_chinese(question):
        found = f"。相近的内容：{'；'.join(f'“{quote}”' for quote in nearest)}" if nearest else ""
        return f"资料中没有找到答案。已检索：{'；'.join(searched)}{found}"
    found = f". Nearest: {'; '.join(f'“{quote}”' for quote in nearest)}" if nearest else ""
    return f"The documents do not say. Searched: {'; '.join(searched)}{found}"
