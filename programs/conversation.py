"""The conversation before a follow-up, bounded: the last turns whole, the older ones by what they were about."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from programs import rules
from programs.bridging import content_words
from programs.narrowing import Fields, name_values
from retrievers.tokenizer import load_tokenizer, query_tokens

_TURNS = 6
_TURN_CHARS = 300
_REST_CHARS = 80  # what the cut part of a long turn was about
_EARLIER_CHARS = 240  # what all turns before the last ones were about
_SUBJECT_CHARS = 40
_READ_TURNS = 40  # what was said before is forgotten
_READ_CHARS = 2_000  # of a turn, however long
_WHOLE_WORDS = 3  # of a follow-up that can be searched for as it is
_ADDED_CHARS = 300  # by which a question may grow when it is made to stand alone
_NAMES = re.compile(r"[A-Z][\w&-]*(?:[ \u00a0]+[A-Z][\w&-]*)*")
_TITLES = re.compile(r"[《「“]([^《》「」“”\n]{2,40})[》」”]")
_OPENERS = frozenset(
    "a an and any are at but by can could did do does for from give has have he her his how i if in is it its may my "
    "no not of on one or our please she show so tell that the their then there these they this those to was we were "
    "what when where which who whose why will with would yes you your thanks hello hi ok".split()
)


def format_conversation(history: Sequence[Mapping[str, str]], fields: Fields | None = None) -> str:
    """Return a conversation for an LM, one turn a line: the last turns as they are, and before them what was talked of.

    A turn that is too long is cut, and what the rest of it names is kept; so is what older turns name (ids, names,
    titles, values of the index such as products and regions). An older question that names nothing keeps its first
    words. Of too many subjects the latest stay. So any history comes to about 2,600 characters at most.
    """
    texts = "\n".join(turn["text"][:_READ_CHARS] for turn in history[-_READ_TURNS:])
    values = [value for some in name_values(texts, fields or Fields()).values() for value in some]
    recent = [f"{turn['role']}: {_cut(turn['text'], values)}" for turn in history[-_TURNS:]]
    earlier = _list_subjects(history[-_READ_TURNS:-_TURNS], rules.fold(" ".join(recent)), values)
    return rules.repair("\n".join([f"earlier: {earlier}", *recent] if earlier else recent))


def keeps_to(standalone: str, question: str, history: Sequence[Mapping[str, str]]) -> bool:
    """Tell whether a question that was made to stand alone is still that question.

    It is not if it is in another language, runs on, names an id of which neither question nor conversation speaks
    (`310` speaks of `KX-310`), or only says again what was said before, and nothing that is new in the question.
    """
    said = rules.numbers(" ".join([question, *(turn["text"] for turn in history)]))
    invented = [one for one in rules.find_ids(standalone) if not rules.numbers(one) <= said]
    return (
        bool(standalone)
        and not invented
        and not rules.is_in_other_language(question, standalone)
        and len(standalone) <= len(question) + _ADDED_CHARS
        and not _repeats(standalone, question, history)
    )


def follow_on(question: str, history: Sequence[Mapping[str, str]]) -> str:
    """Return a follow-up that nothing could make stand alone: behind the last question if it says little by itself."""
    turns = (turn["text"] for turn in reversed(history) if turn["role"] == "user")
    asked = next((text for text in turns if not rules.is_small_talk(text)), "")
    says_enough = len(content_words(question)) >= _WHOLE_WORDS
    return question if says_enough or not asked or len(asked) > _TURN_CHARS else f"{asked} {question}"


def _repeats(standalone: str, question: str, history: Sequence[Mapping[str, str]]) -> bool:
    tokenizer = load_tokenizer()
    said = {token for turn in history[-_READ_TURNS:] for token in tokenizer(turn["text"][:_READ_CHARS])}
    return said.issuperset(tokenizer(standalone)) and not said.issuperset(query_tokens(question, tokenizer))


def find_subjects(text: str, values: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what a text names, in order and as written: ids, names, titles, and which of the values stand in it."""
    read = text[:_READ_CHARS]
    folded = read.casefold()
    named = [value for value in values if value.casefold() in folded]
    found = dict.fromkeys([*rules.find_ids(read), *_TITLES.findall(read), *_find_names(read), *named])
    first: dict[str, str] = {}
    for one in sorted(found, key=lambda one: (folded.find(one.casefold()) % (len(folded) + 1), -len(one))):
        if not any(rules.fold(one) in longer for longer in first):
            first[rules.fold(one)] = one
    return tuple(first.values())


def _find_names(text: str) -> list[str]:
    """Find capitalised names; the first word of a sentence is none by itself, nor is the word that asks."""
    names = []
    for match in _NAMES.finditer(text):
        words = [word for word in match.group().split() if not rules.find_ids(word)]
        bare = words[sum(1 for _ in takewhile(lambda word: word.casefold() in _OPENERS, words)) :]
        before = text[max(0, match.start() - 3) : match.start()].rstrip(" ")
        opens = not before or before[-1] in ".!?:;\n"
        if bare and not (opens and len(words) == 1) and len("".join(bare)) > 1:
            names.append(" ".join(bare))
    return names


def _list_subjects(turns: Sequence[Mapping[str, str]], recent: str, values: Sequence[str]) -> str:
    """List what turns were about, each once, oldest first, as far as there is room; the latest go first for that."""
    listed: dict[str, str] = {}
    for turn in reversed(turns):
        subjects = find_subjects(turn["text"], values)
        if not subjects and turn["role"] == "user":
            subjects = (_shorten(turn["text"], _SUBJECT_CHARS),)
        named = {rules.fold(one): one for one in subjects if rules.fold(one)}
        listed = {key: one for key, one in named.items() if key not in recent and key not in listed} | listed
        if len("; ".join(listed.values())) > _EARLIER_CHARS:
            break
    return _fit(list(listed.values())[::-1], _EARLIER_CHARS)


def _fit(latest_first: Iterable[str], chars: int) -> str:
    kept: list[str] = []
    for one in latest_first:
        if len("; ".join([*kept, one])) > chars:
            break
        kept.append(one)
    return "; ".join(reversed(kept))


def _cut(text: str, values: Sequence[str]) -> str:
    """Cut a long turn, and keep what the rest of it names."""
    if len(text) <= _TURN_CHARS:
        return text
    head = text[:_TURN_CHARS].rstrip()
    said = rules.fold(head)
    rest = [one for one in find_subjects(text[_TURN_CHARS:], values) if rules.fold(one) not in said]
    named = _fit(rest[::-1], _REST_CHARS)
    return f"{head} …" + (f" ({named})" if named else "")


def _shorten(text: str, chars: int) -> str:
    plain = " ".join(text[:_READ_CHARS].split())
    return plain if len(plain) <= chars else f"{plain[:chars].rstrip()} …"
