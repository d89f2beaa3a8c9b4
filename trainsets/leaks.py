"""Do the prompts of a compiled program hold held-out gold: a question of dev or test, or its answer with it."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import log

from trainsets.answers import contains_answer, is_yes_or_no
from trainsets.cases import Case
from trainsets.checks import NEAR_DUPLICATE, Finding, rest_on_other_facts
from trainsets.normalize import facts, length_in_words, tokens

TELLING_WORDS = 4
"""A question shorter than this ("and by quarter?") may stand anywhere by chance; a Chinese character is 0.6 words."""

SHARED_WEIGHT = 0.5
"""An answer is given away where it stands with so much of its question, its rare words weighing most. Alone it is not:
"24 V" is the answer to many questions."""

_SENTENCE = re.compile(r"(?:[.!?](?=\s)|[\n。！？；])+")


def find_leaks(texts: Mapping[str, str], cases: Sequence[Case], shown: Sequence[Case] = ()) -> list[Finding]:
    """Find held-out cases that prompts give away.

    Args:
        texts: Where a text stands, such as `answer demo 2`, to the text. Passages belong to the corpus, which every
            program searches, so they are no leak and should be left out.
        cases: Cases that no optimizer may have seen.
        shown: Cases that demos may be made of. Their questions may follow the pattern of a held-out one, as long as
            they ask for other facts: "how often is the pump exchanged" is not "how often is the fan exchanged".

    Returns:
        One finding a case and place, in the order of the texts: the question stands there, the same is asked there in
        other words, or a sentence holds its answer together with most of what the question asks about.
    """
    rarity, asked = _rarity(cases), _by_sentence(shown)
    return [
        Finding("error", case.id, f"{what} in {where}")
        for where, text in texts.items()
        for case in cases
        if (what := _leak(text, case, rarity, asked))
    ]


def _leak(text: str, case: Case, rarity: Mapping[str, float], asked: Mapping[str, Sequence[Case]]) -> str:
    if not all(_holds(text, turn.text) for turn in case.history):  # a follow-up means nothing without what it follows
        return ""
    question = tokens(case.question)
    is_telling = length_in_words(question) >= TELLING_WORDS
    if is_telling and _holds(text, case.question):
        return "its question stands"
    for sentence in _sentences(text):
        if is_telling and _asks_the_same(sentence, case.question):
            if not any(rest_on_other_facts(one, case) for one in asked.get(_key(sentence), ())):
                return "the same is asked"
        if _gives_away(sentence, case, rarity):
            return "its answer stands with what is asked"
    return ""


def _holds(text: str, part: str) -> bool:
    return f" {' '.join(tokens(part))} " in f" {' '.join(tokens(text))} "


def _asks_the_same(sentence: str, question: str) -> bool:
    one, other = set(tokens(sentence)), set(tokens(question))
    return facts(sentence) == facts(question) and len(one & other) > NEAR_DUPLICATE * len(one | other)


def _gives_away(sentence: str, case: Case, rarity: Mapping[str, float]) -> bool:
    words, asked = set(tokens(sentence)), set(tokens(case.question))
    shared, total = sum(rarity[word] for word in words & asked), sum(rarity[word] for word in asked)
    if not total or shared < SHARED_WEIGHT * total:
        return False
    parts = [case.answer, *case.answer_groups, *case.key_points]
    # What the question says already is no answer to it.
    accepted = [[text for text in part if not is_yes_or_no(text) and not _holds(case.question, text)] for part in parts]
    return any(part and contains_answer(sentence, part) for part in accepted)


def _sentences(text: str) -> Iterator[str]:
    yield from (sentence for part in _SENTENCE.split(text) if (sentence := part.strip()))


def _by_sentence(cases: Sequence[Case]) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        for sentence in _sentences(case.question):
            found[_key(sentence)].append(case)
    return found


def _key(sentence: str) -> str:
    return " ".join(tokens(sentence))


def _rarity(cases: Sequence[Case]) -> dict[str, float]:
    counts = Counter(word for case in cases for word in set(tokens(case.question)))
    return {word: log(1 + len(cases) / count) for word, count in counts.items()}
