"""Which of several sources holds: the re-issue over what it superseded, the newer over the older, else both."""

import re
from collections.abc import Sequence

from programs import rules
from programs.quotes import quotes_of
from retrievers.records import Hit
from trainsets.normalize import facts

_SUPERSEDED = {"superseded", "obsolete", "withdrawn", "replaced", "expired", "archived", "void", "cancelled"}
_SUPERSEDED |= {
    "作废",
    "已作废",
    "废止",
    "已废止",
    "失效",
    "已失效",
    "被替代",
    "已替代",
    "旧版",
    "过期",
    "已过期",
    "归档",
}
_PAST = re.compile(
    r"\b(before|previous(ly)?|former(ly)?|earlier|old(er)?|back (in|then)|used to|until|originally|superseded)\b|"
    r"(以前|之前|原来|原先|当时|旧|上一版|过去|曾)",
    re.IGNORECASE,
)
_REPLACES = re.compile(
    r"\b(replaces|supersedes|takes the place of|in place of|corrects)\b|(?<![不未非])(取代|代替|替代|替换|废止|更正)",
    re.IGNORECASE,
)
_IS_REPLACED = re.compile(r"\b(superseded|replaced) by\b|[被由].{0,40}(取代|代替|替代|替换)", re.IGNORECASE)
_ISSUE = re.compile(
    r"\b(?:issue|edition|revision|version)\s*(\d[\d.]*)|第\s*(\d+)\s*版|版本\s*(\d[\d.]*)", re.IGNORECASE
)
_HEAD_CHARS = 400  # of a document; there it says which issue it is
_SENTENCE = re.compile(r"[^.!?。！？；\n]+(?:[.!?](?!\s)[^.!?。！？；\n]*)*")
_VALUE = re.compile(
    r"[A-Za-z€$¥-]*\d[A-Za-z0-9.,:/%-]*(?<![.,:])(?:\s?(?:[A-Za-z°℃%]{1,12}|[\u4e00-\u9fff]{1,2})(?![A-Za-z]))?"
)
_POINT_CHARS = 40
_MAX_POINTS = 4
_EDITION = re.compile(
    r"[(（][^)）]*[)）]|\b(19|20)\d\d\b|\b(?:issue|edition|revision)\s*\d\w*|\brev\.?\s*\w+\b|\bv\d+\b|第\s*\d+\s*版",
    re.IGNORECASE,
)


def prefer_current(held: Sequence[Hit], context: Sequence[Hit], question: str) -> tuple[Hit, ...]:
    """Put the current issue in the place of a superseded one, where both were found.

    Two passages are issues of one document if type and title agree but for year, version and edition. An issue is
    superseded if its metadata (`status`) or its first lines say so, or if the first lines of the other name its number
    as the one they replace. A question about the past, one that names a year before the new issue, or the version or
    number of the old one, keeps the old one.
    """
    chosen: dict[str, Hit] = {}
    for hit in held:
        successors = () if _PAST.search(question) else _successors(hit, context)
        for one in (hit,) if not successors or _names_old(question, hit, successors) else successors:
            chosen.setdefault(one.passage.passage_id, one)
    return tuple(chosen.values())


def disagree(quotes: Sequence[str], held: Sequence[Hit]) -> bool:
    """Tell whether sources can be in conflict: words of two at least were quoted, and their numbers or ids differ.

    Where the words hold no number, date or id, they are taken to differ.
    """
    claims = [_claim(words) for hit in held if (words := quotes_of(hit, quotes))]
    return len(claims) > 1 and (len(set(claims)) > 1 or not claims[0])


def settle(held: Sequence[Hit], quotes: Sequence[str]) -> tuple[tuple[Hit, ...], bool]:
    """Put the source that holds first, and tell whether it stays open which one does.

    A source holds over one that it says it replaces, and over an older one. What is quoted from others decides nothing:
    two sources may have copied one error.
    """
    ranked = sorted(held, key=lambda hit: (sum(_holds_over(hit, one) for one in held), _date(hit)), reverse=True)
    claimed = _claim(quotes_of(ranked[0], quotes)) if ranked else frozenset()
    rivals = [hit for hit in ranked[1:] if not claimed or _claim(quotes_of(hit, quotes)) != claimed]
    return tuple(ranked), not all(_holds_over(ranked[0], hit) for hit in rivals)


def find_points(quotes: Sequence[str], held: Sequence[Hit]) -> tuple[str, ...]:
    """Name what sources disagree on: the values, as they are written, that not all of them state; else their words."""
    spoken = [words for hit in held if (words := quotes_of(hit, quotes))]
    claims = [_claim(words) for words in spoken]
    shared = frozenset.intersection(*claims) if claims else frozenset()
    values = [value for words in spoken for quote in words for value in _VALUE.findall(quote) if facts(value) - shared]
    points = values or [words[0][:_POINT_CHARS].strip() for words in spoken]
    return tuple(dict.fromkeys(points))[:_MAX_POINTS]


def _claim(words: Sequence[str]) -> frozenset[str]:
    return frozenset().union(*map(facts, words))


def _date(hit: Hit) -> str:
    return str(hit.passage.metadata.get("date") or "")


def _holds_over(one: Hit, other: Hit) -> bool:
    replaces, is_replaced = _replaces(one, other), _replaces(other, one)
    return replaces if replaces != is_replaced else bool(_date(other)) and _date(one) > _date(other)


def _replaces(one: Hit, other: Hit) -> bool:
    """Tell whether a passage says that its document replaces another: an issue of the same, or one named by title."""
    said = [part for part in _SENTENCE.findall(one.passage.text) if _REPLACES.search(part)]
    is_issue = one.passage.doc_id != other.passage.doc_id and _work(one) == _work(other) and _work(one)[1] != ""
    title = rules.bare(other.passage.title)
    return any(is_issue or (bool(title) and title in rules.bare(part)) for part in said)


def _successors(hit: Hit, context: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the issues at the end of the line that begins with a superseded one; none for one that holds."""
    others = [one for one in context if one.passage.doc_id != hit.passage.doc_id and _work(one) == _work(hit)]
    following = [
        one
        for one in others
        if not _is_superseded(one) and (_is_superseded(hit) or _issues(hit) & _issues(one, _REPLACES))
    ]
    return tuple(last for one in following for last in _successors(one, others) or (one,))


def _is_superseded(hit: Hit) -> bool:
    status = rules.fold(str(hit.passage.metadata.get("status") or ""))
    return status in _SUPERSEDED or bool(_issues(hit, _IS_REPLACED))


def _issues(hit: Hit, where: re.Pattern[str] | None = None) -> frozenset[str]:
    """Return the issue numbers in the first lines of a document: those in sentences with `where`, or else its own."""
    if not hit.passage.passage_id.endswith("#0"):
        return frozenset()
    said = _SENTENCE.findall(hit.passage.text[:_HEAD_CHARS])
    if where is None:
        own = [_numbers_of(part) for part in said if not (_REPLACES.search(part) or _IS_REPLACED.search(part))]
        return next((numbers for numbers in own if numbers), frozenset())
    return frozenset().union(*(_numbers_of(part) for part in said if where.search(part)))


def _numbers_of(text: str) -> frozenset[str]:
    return frozenset(next(filter(None, groups)).rstrip(".") for groups in _ISSUE.findall(text))


def _work(hit: Hit) -> tuple[str, str]:
    title = _EDITION.sub(" ", rules.fold(hit.passage.title))
    return str(hit.passage.metadata.get("type") or ""), rules.bare(title)


def _names_old(question: str, hit: Hit, successors: Sequence[Hit]) -> bool:
    """Tell whether the question names a year before the successors, or the version or number of the old issue."""
    first = min(str(one.passage.metadata.get("date") or "9999") for one in successors)[:4]
    version = rules.fold(str(hit.passage.metadata.get("version") or ""))
    years = re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", question)
    if any(year < first for year in years) or _numbers_of(question) & _issues(hit):
        return True
    return len(version) > 1 and rules.holds_id(version, question)
