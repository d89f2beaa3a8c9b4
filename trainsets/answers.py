"""Score the text of an answer against what a gold case accepts, in English and Chinese."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from trainsets.cases import Case
from trainsets.normalize import facts, length_in_words, tokens

Words = tuple[str, ...]

RIGHT_ABOVE = 0.5
"""An answer is right when its score is above this: more than half of what was asked."""

LONG_ANSWER_WORDS = 12
"""From this length on a gold answer is prose, and token F1 itself is the credit."""

ROOM_WORDS = 40
"""Words that an answer may spend beyond twice its gold before it counts as rambling."""

_UNITS = set("ms s sec seconds min minutes h hour hours day days week weeks month months year years".split())
_UNITS |= set("mm cm m km g kg t v a ma w kw hz khz mhz kb mb gb % °c bar pa nm eur usd cny nok sek gbp chf".split())
_UNITS |= set("天日周月年小分秒毫元米伏安瓦")
_YES = {"yes", "yeah", "yep", "correct", "true", "是", "对", "是的", "对的"}
_NO = {"no", "nope", "not", "false", "否", "不", "没", "无", "不是", "没有", "不对", "不能", "不可以"}
_NEGATIONS = {"not", "never", "cannot", "isnt", "arent", "wasnt", "doesnt", "dont", "without", "不", "没", "未", "非"}
_SET_ASIDE = {"previously", "formerly", "former", "old", "older", "earlier", "outdated", "superseded", "replaces"}
_SET_ASIDE |= {"replaced", "replacing", "instead", "原", "旧", "曾", "以前", "此前", "之前"}
_COMPARATORS = {"than", "versus", "vs", "unlike", "with", "to", "over", "比", "于", "过"}


class NoGoldAnswerError(ValueError):
    """The case says nothing about its answer (a retrieval-only case), so its answer has no score."""


def exact_match(answer: str, accepted: Iterable[str]) -> float:
    """Say whether the answer is an accepted one after normalization: 1 or 0.

    Source: Rajpurkar et al. 2016, arXiv:1606.05250, with this project's normal form for both languages.
    """
    words = tokens(answer)
    return float(any(words == tokens(gold) for gold in accepted))


def token_f1(answer: str, accepted: Iterable[str]) -> float:
    """Give the best harmonic mean of token precision and recall over the accepted answers, 0..1.

    Chinese counts by characters. Yes or no is right or wrong as a whole, as in HotpotQA's script.

    Source: Rajpurkar et al. 2016, arXiv:1606.05250; Yang et al. 2018, arXiv:1809.09600 (hotpot_evaluate_v1.py).
    """
    return max((_f1(tokens(answer), tokens(gold)) for gold in accepted), default=0.0)


def contains_answer(answer: str, accepted: Iterable[str]) -> bool:
    """Say whether an accepted answer stands in the answer as a run of whole tokens (`24` is not in `E-1024`).

    A mention right after a negation does not count (`not supported`, 不需要). A gold yes or no needs the answer to
    begin with that polarity, because `是` stands in `不是`.
    """
    return any(_holds(answer, gold) for gold in accepted)


def key_point_recall(case: Case, answer: str) -> float | None:
    """Give the share of the case's key points that stand in the answer in an accepted phrasing; None without any.

    Source: the nugget recall of TREC QA (Voorhees 2003) and of RAGAS's answer correctness.
    """
    if not case.key_points:
        return None
    return sum(contains_answer(answer, phrasings) for phrasings in case.key_points) / len(case.key_points)


def group_recall(case: Case, answer: str) -> float | None:
    """Give the share of the parts of a multi-part answer that are hit; None without parts."""
    if not case.answer_groups:
        return None
    return sum(contains_answer(answer, group) for group in case.answer_groups) / len(case.answer_groups)


def falls_for_trap(case: Case, answer: str) -> bool:
    """Say whether the answer gives a wrong answer of the case, instead of the right one or along with it.

    A wrong answer inside an accepted one (`24 V` in `24 V DC`) is not a trap, nor is one that the answer itself
    denies or sets aside ("not 30 days", "previously 30 days", 原为30天). Where the question names the wrong answer (a
    choice between two), mentioning both is natural: the one that is named first counts, and one that follows "than",
    比 is the other side of the comparison.

    Source: the strict match of RAMDocs (Wang et al. 2025, arXiv:2504.13079): all correct answers and no wrong one.
    """
    words = tokens(answer)
    accepted = (*case.answer, *_flat(case.answer_groups), *_flat(case.key_points))
    right = [span for gold in accepted for span in _mentions(words, tokens(gold))]
    for wrong in case.wrong_answers:
        if _polarity(tokens(wrong)) is not None:
            if _polarity_of_answer(words) == _polarity(tokens(wrong)):
                return True
            continue
        spans = [span for span in _mentions(words, tokens(wrong)) if not any(_inside(span, good) for good in right)]
        spans = [span for span in spans if not _is_set_aside(words, span[0])]
        if spans and (not _spans(tokens(case.question), tokens(wrong)) or _named_first(words, spans, right)):
            return True
    return False


def answer_score(case: Case, answer: str, abstained: bool = False) -> float:
    """Score an answer, 0..1. This is the number that optimizers raise and that tables call "answer score".

    - Not answerable: 1 if the program abstained, else 0. Answerable and abstained, or empty: 0.
    - Chit-chat without a gold answer: 1 for any answer.
    - A wrong answer of the case, instead of the right one or along with it: 0.
    - `answer_groups`: 1 if every group is hit, else half of the share that is, so that a part is never right.
    - `answer`: the best over the accepted ones. 1 if it is given or stands in the answer; less the longer the answer
      rambles past `ROOM_WORDS`; else token F1, if every number and id of the gold is kept. Of a short answer's F1 the
      first half is chance (苏州 and 杭州 share 0.5), so max(0, 2 * F1 - 1); not if it only leaves out words around a
      number or id (`24` for `24 months`).
    - `key_points`: their recall. Together with `answer` or `answer_groups`: the mean of both.

    Raises:
        NoGoldAnswerError: the case is answerable and says nothing about its answer.
    """
    if not case.answerable:
        return float(abstained)
    if not has_gold_answer(case):
        raise NoGoldAnswerError(
            f"case {case.id}: no answer, answer_groups or key_points, so only its ranking has a score"
        )
    if abstained or not answer.strip() or falls_for_trap(case, answer):
        return 0.0
    if not (case.answer or case.answer_groups or case.key_points):
        return 1.0
    parts = [_groups_credit(case, answer) if case.answer_groups else _answer_credit(case, answer)]
    parts = parts if case.answer or case.answer_groups else []
    points = key_point_recall(case, answer)
    parts += [] if points is None else [points]
    return sum(parts) / len(parts)


def is_right(case: Case, answer: str, abstained: bool = False) -> bool:
    """Say whether the answer counts as right: its score is above `RIGHT_ABOVE`."""
    return answer_score(case, answer, abstained) > RIGHT_ABOVE


def is_yes_or_no(text: str) -> bool:
    """Say whether a text is a bare yes or no in either language."""
    return _polarity(tokens(text)) is not None


def has_gold_answer(case: Case) -> bool:
    """Say whether an answer to the case can be scored at all."""
    return bool(not case.answerable or case.answer or case.answer_groups or case.key_points or case.kind == "chitchat")


def _groups_credit(case: Case, answer: str) -> float:
    share = group_recall(case, answer) or 0.0
    gold_words = sum(length_in_words(tokens(group[0])) for group in case.answer_groups if group)
    return _conciseness(tokens(answer), gold_words) if share == 1.0 else share / 2


def _answer_credit(case: Case, answer: str) -> float:
    usable = [gold for gold in case.answer if not _contradicts_unit(tokens(answer), tokens(gold), case.answer)]
    return max((_credit(answer, gold) for gold in usable), default=0.0)


def _contradicts_unit(words: Words, gold: Words, accepted: Iterable[str]) -> bool:
    """Say whether a bare accepted number is given with a unit that its fuller accepted forms do not have.

    `3` beside `3 days` accepts "3", and "3 of them", but not "3 weeks".
    """
    fuller = {word for text in accepted for word in tokens(text) if set(gold) < set(tokens(text))}
    if len(gold) != 1 or not facts(" ".join(gold)) or not fuller:
        return False
    units = {words[end] for _, end in _spans(words, gold) if end < len(words)} & _UNITS
    return bool(units - fuller)


def _credit(answer: str, gold: str) -> float:
    words, gold_words = tokens(answer), tokens(gold)
    if words == gold_words and words:
        return 1.0
    if _holds(answer, gold):
        return _conciseness(words, length_in_words(gold_words))
    if not facts(gold) <= facts(answer) or _polarity(gold_words) is not None:
        return 0.0
    f1 = _f1(words, gold_words)
    only_leaves_out = bool(facts(gold)) and set(words) <= set(gold_words)
    return f1 if only_leaves_out or length_in_words(gold_words) >= LONG_ANSWER_WORDS else max(0.0, 2 * f1 - 1)


def _conciseness(words: Words, gold_length: float) -> float:
    return min(1.0, (ROOM_WORDS + 2 * gold_length) / max(1.0, length_in_words(words)))


def _f1(words: Words, gold: Words) -> float:
    if words == gold:
        return 1.0
    if _polarity(words) is not None or _polarity(gold) is not None:
        return 0.0
    shared = sum((Counter(words) & Counter(gold)).values())
    return 2 * shared / (len(words) + len(gold)) if shared else 0.0


def _holds(answer: str, gold: str) -> bool:
    words, gold_words = tokens(answer), tokens(gold)
    polarity = _polarity(gold_words)
    if polarity is not None:
        return _polarity_of_answer(words) == polarity
    return words == gold_words or bool(_mentions(words, gold_words))


def _polarity(words: Words) -> bool | None:
    """True for a bare yes, False for a bare no, None for anything that says more."""
    text = "".join(words)
    return True if text in _YES else False if text in _NO else None


def _polarity_of_answer(words: Words) -> bool | None:
    head = [*words[:1], "".join(words[:2])]
    if any(word in _NO for word in head):
        return False
    return True if any(word in _YES for word in head) else None


def _spans(words: Words, part: Words) -> list[tuple[int, int]]:
    n = len(part)
    return [(i, i + n) for i in range(len(words) - n + 1) if words[i : i + n] == part] if n else []


def _mentions(words: Words, part: Words) -> list[tuple[int, int]]:
    """Find the runs that are said and not denied by the word before, or by 不是."""
    return [
        (start, end)
        for start, end in _spans(words, part)
        if not (set(words[max(0, start - 1) : start]) & _NEGATIONS or words[max(0, start - 2) : start] == ("不", "是"))
    ]


def _is_set_aside(words: Words, start: int) -> bool:
    before = words[max(0, start - 4) : start]
    return bool(_SET_ASIDE & {*before, *("".join(pair) for pair in pairwise(before))})


def _inside(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return other[0] <= span[0] and span[1] <= other[1]


def _named_first(words: Words, wrong: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]) -> bool:
    wrong_starts = [start for start, end in wrong if not _is_compared_to(words, start, end)]
    right_starts = [start for start, end in right if not _is_compared_to(words, start, end)]
    return min(wrong_starts, default=len(words)) < min(right_starts, default=len(words))


def _is_compared_to(words: Words, start: int, end: int) -> bool:
    before, after = words[max(0, start - 1) : start], words[end : end + 2]
    return bool(_COMPARATORS & set(before)) or after == ("相", "比")


def _flat(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(text for group in groups for text in group)
