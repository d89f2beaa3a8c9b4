"""Which of several sources holds: the re-issue over what it superseded, the newer over the older, else both."""

import re
from collections.abc import Sequence

from programs import rules
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
_EDITION = re.compile(r"[(（][^)）]*[)）]|\b(19|20)\d\d\b|\brev\.?\s*\w+\b|\bv\d+\b|第\s*\d+\s*版", re.IGNORECASE)


def prefer_current(held: Sequence[Hit], context: Sequence[Hit], question: str) -> tuple[Hit, ...]:
    """Put the current issue in the place of a superseded one, where both were found.

    Two passages are issues of one document if type and title agree but for year, version and edition. A question about
    the past, one that names a year before the new issue, or the version of the old one, keeps the old one.
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
    quoted = [[quote for quote in quotes if _holds(hit, quote)] for hit in held]
    claims = [frozenset().union(*map(facts, words)) for words in quoted if words]
    return len(claims) > 1 and (len(set(claims)) > 1 or not claims[0])


def settle(held: Sequence[Hit]) -> tuple[tuple[Hit, ...], bool]:
    """Put the newest of sources that disagree first, and tell whether their dates leave it open which one holds."""
    dates = [str(hit.passage.metadata.get("date") or "") for hit in held]
    newest_first = sorted(held, key=lambda hit: str(hit.passage.metadata.get("date") or ""), reverse=True)
    return tuple(newest_first), "" in dates or dates.count(max(dates, default="")) > 1


def _successors(hit: Hit, context: Sequence[Hit]) -> tuple[Hit, ...]:
    if not _is_superseded(hit):
        return ()
    return tuple(one for one in context if not _is_superseded(one) and _work(one) == _work(hit))


def _is_superseded(hit: Hit) -> bool:
    return rules.fold(str(hit.passage.metadata.get("status") or "")) in _SUPERSEDED


def _work(hit: Hit) -> tuple[str, str]:
    title = _EDITION.sub(" ", rules.fold(hit.passage.title))
    return str(hit.passage.metadata.get("type") or ""), rules.bare(title)


def _names_old(question: str, hit: Hit, successors: Sequence[Hit]) -> bool:
    """Tell whether the question names a year before the successors, or the version of the old issue."""
    first = min(str(one.passage.metadata.get("date") or "9999") for one in successors)[:4]
    version = rules.fold(str(hit.passage.metadata.get("version") or ""))
    years = re.findall(r"(?<!\d)(?:19|20)\d\d(?!\d)", question)
    return any(year < first for year in years) or (len(version) > 1 and rules.holds_id(version, question))


def _holds(hit: Hit, quote: str) -> bool:
    return bool(rules.bare(quote)) and rules.bare(quote) in rules.bare(f"{hit.passage.title}\n{hit.passage.text}")
