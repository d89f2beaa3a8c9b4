"""Draft gold cases from documents with an LM, keep those that pass the rules, and mark them for human review."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, log
from typing import TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError

from signatures.draft import DraftQuestion, DraftTwoHop, DraftUnanswerable, FindAnswer
from trainsets.answers import answer_score, contains_answer
from trainsets.cases import Case
from trainsets.checks import copied_run, near_duplicates
from trainsets.normalize import facts, fold, tokens

T = TypeVar("T")

SHARES = {"single_hop": 0.6, "multi_hop": 0.25, "unanswerable": 0.15}
"""How a draft set is made up; what cannot be drafted (no documents share a name) goes to `single_hop`."""

TRIES_PER_CASE = 4
MAX_CHARS = 1500
_LINK_DOCUMENTS = (2, 4)
_NEIGHBOURS = 3
_MAX_ANSWER_TOKENS = 12
_DEICTIC = re.compile(
    r"\b(this|the|that|above|following|given) (passage|document|text|article|excerpt|table)s?\b"
    r"|(上文|本文|文中|该文|这段|上述|以上|此文档|该段)",
    re.IGNORECASE,
)
_CALENDAR = (
    "January February March April June July August September October November December "
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
).split()
_CJK = re.compile(r"[\u3400-\u9fff]")


class RejectedDraft(Exception):  # noqa: N818
    """A draft that a rule or the second reading turned down; the message is the reason, for the count."""


@dataclass(slots=True)
class DraftLog:
    """What became of the tries: reasons with counts. Filled while `draft_cases` is iterated."""

    rejected: Counter[str] = field(default_factory=Counter)
    n_tries: int = 0


def draft_cases(documents: Mapping[str, str], n: int, seed: int = 0, log_to: DraftLog | None = None) -> Iterator[Case]:
    """Draft up to `n` cases with the LM and adapter bound around the call.

    Every draft has to pass rules (the answer and the evidence stand in the passage word for word, the question does
    not hold the answer, does not copy, does not speak of "the passage", asks nothing that another draft asks) and a
    second reading: the LM, shown the passages anew, has to find the same answer, or none for an unanswerable one.

    Args:
        documents: document id to its text, title first.
        n: how many cases; fewer come out when `TRIES_PER_CASE` tries a case do not suffice.
        seed: decides the order of documents.
        log_to: is filled with what was rejected, and why.

    Yields:
        Cases with evidence, each marked `meta.review = "draft"`.

    Source: round-trip consistency as a filter, Alberti et al. 2019, arXiv:1906.05416.
    """
    notes = log_to if log_to is not None else DraftLog()
    drafter = _Drafter(documents, random.Random(seed))
    kept: list[Case] = []
    for kind, wanted in _quotas(n, can_link=bool(drafter.links)).items():
        for _ in range(wanted * TRIES_PER_CASE):
            if sum(case.kind == kind for case in kept) == wanted:
                break
            notes.n_tries += 1
            try:
                case = drafter.draft(kind, f"draft-{len(kept) + 1:03d}")
                _reject_if(any(True for pair in near_duplicates([*kept, case]) if case in pair), "asked before")
            except RejectedDraft as reason:
                notes.rejected[f"{kind}: {reason}"] += 1
            except AdapterParseError:
                notes.rejected[f"{kind}: unreadable LM output"] += 1
            else:
                kept.append(case)
                yield case


def find_links(documents: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Find pairs of documents that share a rare name or id: (first, second, link).

    A link is an id, or a capitalised name of one word, that stands in two to four documents.
    """
    holders: dict[str, list[str]] = defaultdict(list)
    for doc_id, text in documents.items():
        for name in _names(text):
            holders[name].append(doc_id)
    low, high = _LINK_DOCUMENTS
    rare = {name: ids for name, ids in holders.items() if low <= len(ids) <= high}
    return [(one, other, name) for name, ids in sorted(rare.items()) for one in ids for other in ids if one != other]


class _Drafter:
    """The four predictors and where the next passages come from."""

    def __init__(self, documents: Mapping[str, str], rng: random.Random) -> None:
        self.documents = documents
        self.words = {doc_id: frozenset(tokens(text)) for doc_id, text in documents.items()}
        counts = Counter(word for words in self.words.values() for word in words)
        self.rarity = {word: log(1 + len(documents) / count) for word, count in counts.items()}
        self.links = find_links(documents)
        rng.shuffle(self.links)
        self._ids = _cycle_shuffled(sorted(documents), rng)
        self._pairs = _cycle_shuffled(self.links, rng)
        self._question, self._two_hop, self._absent, self._find = map(
            dspy.Predict, (DraftQuestion, DraftTwoHop, DraftUnanswerable, FindAnswer)
        )

    def draft(self, kind: str, case_id: str) -> Case:
        makers: dict[str, Callable[[str], Case]] = {
            "single_hop": self._draft_single,
            "multi_hop": self._draft_two_hop,
            "unanswerable": self._draft_unanswerable,
        }
        case = makers[kind](case_id)
        _reject_if(bool(_DEICTIC.search(case.question)), "speaks of the passage")
        return case

    def _draft_single(self, case_id: str) -> Case:
        doc_id = next(self._ids)
        passage = self.documents[doc_id][:MAX_CHARS]
        out = self._question(passage=passage, language=_language(passage))
        _check_language(out.question, passage)
        _check_answer(out.question, out.answer, passage)
        _check_span(out.evidence, passage, out.answer)
        self._read_again(out.question, out.answer, [passage])
        return _case(case_id, "single_hop", out.question, [doc_id], out.answer, [out.evidence])

    def _draft_two_hop(self, case_id: str) -> Case:
        one, other, link = next(self._pairs)
        first, second = self.documents[one][:MAX_CHARS], self.documents[other][:MAX_CHARS]
        _reject_if(not (contains_answer(first, [link]) and contains_answer(second, [link])), "link not in the passages")
        out = self._two_hop(first=first, second=second, link=link, language=_language(second))
        _check_language(out.question, second)
        _reject_if(contains_answer(out.question, [link]), "names the link")
        _check_answer(out.question, out.answer, second)
        _reject_if(contains_answer(first, [out.answer]), "the first passage is enough")
        _check_span(out.evidence, second, out.answer)
        _check_span(out.first_evidence, first, link)
        self._read_again(out.question, out.answer, [first, second])
        return _case(case_id, "multi_hop", out.question, [one, other], out.answer, [out.first_evidence, out.evidence])

    def _draft_unanswerable(self, case_id: str) -> Case:
        doc_id = next(self._ids)
        passage = self.documents[doc_id][:MAX_CHARS]
        out = self._absent(passage=passage, language=_language(passage))
        _check_language(out.question, passage)
        near = [doc_id, *self._nearest(out.question, but=doc_id)]
        held = tokens(out.absent) and any(contains_answer(self.documents[id_], [out.absent]) for id_ in near)
        _reject_if(bool(held), "what should be absent is there")
        self._read_again(out.question, "", [self.documents[id_][:MAX_CHARS] for id_ in near])
        case = _case(case_id, "unanswerable", out.question, [], "", [])
        return case.model_copy(update={"answerable": False, "meta": {**case.meta, "near": near, "absent": out.absent}})

    def _read_again(self, question: str, answer: str, passages: Sequence[str]) -> None:
        text = "\n\n".join(f"<passage {i}>\n{passage}\n</passage>" for i, passage in enumerate(passages, start=1))
        found = self._find(question=question, passages=text)
        if not answer:
            _reject_if(found.stated, "the second reading found an answer")
            return
        _reject_if(not found.stated, "the second reading found no answer")
        same = answer_score(Case(id="draft", question=question, answer=(answer,)), found.answer) > 0.5
        _reject_if(not same, "the second reading found another answer")

    def _nearest(self, question: str, but: str) -> list[str]:
        words = frozenset(tokens(question))
        fit = {id_: fsum(self.rarity[w] for w in words & held) for id_, held in self.words.items() if id_ != but}
        return sorted(fit, key=lambda id_: -fit[id_])[:_NEIGHBOURS]


def _quotas(n: int, can_link: bool) -> dict[str, int]:
    multi = round(n * SHARES["multi_hop"]) if can_link else 0
    absent = round(n * SHARES["unanswerable"])
    return {"single_hop": n - multi - absent, "multi_hop": multi, "unanswerable": absent}


def _language(text: str) -> str:
    """Name the language of a text: Chinese as soon as it has more Chinese characters than Latin words."""
    return "Chinese" if len(_CJK.findall(text)) > len(re.findall(r"[A-Za-z]{2,}", text)) else "English"


def _check_language(question: str, passage: str) -> None:
    _reject_if(_language(question) != _language(passage), "another language than the passage")


def _check_answer(question: str, answer: str, passage: str) -> None:
    _reject_if(not question.strip() or not tokens(answer), "empty")
    _reject_if(len(tokens(answer)) > _MAX_ANSWER_TOKENS, "the answer is long")
    _reject_if(not contains_answer(passage, [answer]), "the answer is not in the passage")
    _reject_if(contains_answer(question, [answer]), "the question holds the answer")
    _reject_if(bool(copied_run(question, passage)), "the question copies the passage")


def _check_span(span: str, passage: str, fact: str) -> None:
    _reject_if(not span.strip() or fold(span) not in fold(passage), "the evidence is not word for word")
    _reject_if(not contains_answer(span, [fact]), "the evidence does not hold the answer or the link")


def _reject_if(wrong: bool, reason: str) -> None:
    if wrong:
        raise RejectedDraft(reason)


def _case(case_id: str, kind: str, question: str, gold: Sequence[str], answer: str, spans: Sequence[str]) -> Case:
    return Case(
        id=case_id,
        question=question.strip(),
        answer=(answer.strip(),) if answer else (),
        gold_ids=tuple(gold),
        gold_spans=tuple(span.strip() for span in spans),
        kind=kind,
        lang="zh" if _language(question) == "Chinese" else "en",
        meta={"review": "draft"},
    )


def _names(text: str) -> set[str]:
    ids = {token for token in facts(text) if any(c.isalpha() for c in token)}
    return ids | (set(re.findall(r"(?<=[a-z,;] )[A-Z][a-z]{3,}\b", text)) - set(_CALENDAR))


def _cycle_shuffled(items: Sequence[T], rng: random.Random) -> Iterator[T]:
    while items:
        round_ = list(items)
        rng.shuffle(round_)
        yield from round_
