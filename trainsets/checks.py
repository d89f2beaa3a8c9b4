"""What is wrong or doubtful in a gold set: evidence that does not hold the answer, leaks between splits, weak gold."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Literal

from trainsets.answers import LONG_ANSWER_WORDS, contains_answer, exact_match, is_yes_or_no
from trainsets.cases import Case
from trainsets.evidence import is_multi_hop, needs_all
from trainsets.normalize import facts, fold, length_in_words, tokens
from trainsets.prediction import doc_of
from trainsets.ranking import gold_of

NEAR_DUPLICATE = 0.7
"""Two questions with more shared tokens than this (Jaccard), and the same ids and numbers, ask the same."""

COPIED_WORDS = 8
"""A question that repeats a run of so many words of its evidence is found by its wording, not by its meaning."""

_COMPUTED = ("comparison", "aggregate")
_ANSWERABLE_KINDS = ("lookup", "single_hop", "multi_hop", "comparison", "temporal", "aggregate", "conflict", "chitchat")
_FIELD = re.compile(r"[^:：]{1,60}[:：] ?\S{1,40}$")  # of a row of a CSV or XLSX file
_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. An `error` makes a number wrong; a `doubt` is for a person to look at."""

    level: Literal["error", "doubt"]
    case_id: str
    what: str


def check_cases(cases: Sequence[Case], documents: Mapping[str, str] | None = None) -> list[Finding]:
    """Check the cases of one split, against the corpus if it is given.

    Args:
        cases: one split.
        documents: document id to its whole text, title first. Passage gold ids are looked up by their document.
    """
    findings = [finding for case in cases for finding in _check_form(case)]
    findings += _repeated_questions([("", case) for case in cases])
    if documents is not None:
        rarity = _rarity(documents)
        for case in cases:
            findings += _check_evidence(case, documents)
            findings += _check_doubts(case, documents, rarity)
    return findings


def check_leaks(splits: Mapping[str, Sequence[Case]]) -> list[Finding]:
    """Check that splits share no question, near-duplicate, fact, or set of several evidence documents."""
    labelled = [(split, case) for split, cases in splits.items() for case in cases]
    findings = _repeated_questions(labelled, across=True)
    by_key: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for split, case in labelled:
        for key in evidence_keys(case):
            other = next((id_ for name, id_ in by_key[key].items() if name != split), None)
            if other:
                findings.append(
                    Finding("error", case.id, f"{key[0]} of {other} in another split: {', '.join(key[1:])}")
                )
            by_key[key].setdefault(split, case.id)
    return findings


def evidence_keys(case: Case) -> list[tuple[str, ...]]:
    """Name what two cases must not share across splits: a set of several documents, or one answer from one document."""
    gold = sorted({doc_of(id_) for id_ in case.gold_ids})
    keys = [("the evidence", *gold)] if len(gold) > 1 else []
    accepted = case.answer or tuple(group[0] for group in (*case.answer_groups, *case.key_points) if group)
    if gold and accepted and not needs_all(case):
        keys.append(("the fact", *gold, " ".join(tokens(accepted[0]))))
    return keys


def near_duplicates(cases: Sequence[Case]) -> Iterator[tuple[Case, Case]]:
    """Yield pairs that ask the same: the same ids and numbers, and most other tokens too.

    Where one word differs, as the part of a manual that is asked about, and the answers and the documents that hold
    them do too, other things are asked.

    A follow-up is compared with its history, because "and by quarter?" may follow anything. Two sets with a Jaccard
    above t share one of their rarest (1 - t) * n + 1 tokens, so only such pairs are compared.

    Source: the prefix filter of Chaudhuri et al. 2006, A Primitive Operator for Similarity Joins.
    """
    asked = [(case, frozenset(tokens(_whole_question(case))), facts(_whole_question(case))) for case in cases]
    counts = Counter(word for _, words, _ in asked for word in words)
    seen: dict[str, list[int]] = defaultdict(list)
    for place, (case, words, ids) in enumerate(asked):
        rarest = sorted(words, key=lambda word: (counts[word], word))
        prefix = rarest[: len(words) - ceil(NEAR_DUPLICATE * len(words)) + 1]
        for other in sorted({i for word in prefix for i in seen[word]}):
            before, known, known_ids = asked[other]
            if ids == known_ids and _jaccard(words, known) > NEAR_DUPLICATE:
                if words == known or not rest_on_other_facts(before, case):
                    yield before, case
        for word in prefix:
            seen[word].append(place)


def rest_on_other_facts(one: Case, other: Case) -> bool:
    """Tell whether two cases name evidence and answers, and share none of either."""
    documents = [{doc_of(id_) for id_ in case.gold_ids} for case in (one, other)]
    answers = [{" ".join(tokens(text)) for text in _accepted(case)} for case in (one, other)]
    return all(all(pair) and pair[0].isdisjoint(pair[1]) for pair in (documents, answers))


def _check_form(case: Case) -> Iterator[Finding]:
    accepted = _accepted(case)
    for what, holds in (
        ("not answerable, but it has an answer or gold ids", not case.answerable and bool(accepted or case.gold_ids)),
        ("answerable, but it has neither an answer nor evidence", _says_nothing(case)),
        ("multi-hop, but it has fewer than two gold ids", _lacks_hops(case)),
        ("a follow-up without history", case.kind == "follow_up" and not case.history),
        ("a wrong answer is also accepted", any(exact_match(wrong, accepted) for wrong in case.wrong_answers)),
        ("a gold id is also a bad id", bool({*case.gold_ids} & {*case.bad_ids})),
    ):
        if holds:
            yield Finding("error", case.id, what)
    if case.kind not in _COMPUTED and contains_answer(case.question, case.answer):
        yield Finding("doubt", case.id, "the question holds its answer")
    if not case.answerable and case.kind in _ANSWERABLE_KINDS:
        yield Finding("doubt", case.id, f"not answerable, but of kind {case.kind}")


def _repeated_questions(labelled: Sequence[tuple[str, Case]], across: bool = False) -> list[Finding]:
    split_of = {case.id: split for split, case in labelled}
    findings = []
    for one, other in near_duplicates([case for _, case in labelled]):
        if across == (split_of[one.id] != split_of[other.id]):
            findings.append(Finding("error", other.id, f"asks the same as {one.id}: {other.question}"))
    return findings


def _check_evidence(case: Case, documents: Mapping[str, str]) -> Iterator[Finding]:
    unknown = [id_ for id_ in (*case.gold_ids, *case.bad_ids) if doc_of(id_) not in documents and id_ not in documents]
    for id_ in unknown:
        yield Finding("error", case.id, f"{id_} is not in the corpus")
    if unknown or not case.gold_ids:
        return
    evidence = _evidence(case, documents)
    for span in case.gold_spans:
        if fold(span) not in fold(evidence):
            yield Finding("error", case.id, f"the span stands in no gold document: {_shown(span)}")
    if case.kind in _COMPUTED or _says_yes_or_no(case):
        return
    parts = [case.answer] * bool(case.answer) + [*case.answer_groups, *case.key_points]
    for part in parts:
        if contains_answer(evidence, part) or all(_is_prose(text) for text in part):
            continue
        if not _stands_in_table(evidence, part):
            yield Finding("error", case.id, f"no gold document holds {_shown(' / '.join(part))}")


def _check_doubts(case: Case, documents: Mapping[str, str], rarity: Mapping[str, float]) -> Iterator[Finding]:
    if not case.gold_ids or any(doc_of(id_) not in documents for id_ in case.gold_ids):
        return
    run = copied_run(case.question, _evidence(case, documents))
    if run:
        yield Finding("doubt", case.id, f"the question copies its evidence: {run}")
    if needs_all(case) or _says_yes_or_no(case):
        return
    others = _other_sources(case, documents, rarity)
    if others:
        yield Finding("doubt", case.id, f"may also be answered from {', '.join(others[:3])}, not among the gold ids")


def _other_sources(case: Case, documents: Mapping[str, str], rarity: Mapping[str, float]) -> list[str]:
    """List documents outside the gold that hold the answer in its fullest form and fit the question as well."""
    if not case.answer:
        return []
    words = set(tokens(case.question))
    fullest = [max(case.answer, key=lambda answer: len(tokens(answer)))]

    def fit(id_: str) -> float:
        return sum(rarity[word] for word in words & set(tokens(documents[id_])))

    gold = {doc_of(id_) for id_ in case.gold_ids}
    bar = max(fit(id_) for id_ in gold)
    named = facts(case.question) & frozenset().union(*(facts(documents[id_]) for id_ in gold))
    others = documents.keys() - gold - {doc_of(id_) for id_ in case.bad_ids}
    holders = sorted(id_ for id_ in others if fit(id_) >= bar and contains_answer(documents[id_], fullest))
    return [id_ for id_ in holders if named <= facts(documents[id_])]


def _rarity(documents: Mapping[str, str]) -> dict[str, float]:
    counts = Counter(word for text in documents.values() for word in set(tokens(text)))
    return {word: log(1 + len(documents) / count) for word, count in counts.items()}


def copied_run(question: str, evidence: str) -> str:
    """Find a run of `COPIED_WORDS` words (in Chinese about 13 characters) that a question copies; empty if none."""
    words, source = tokens(question), f" {' '.join(tokens(evidence))} "
    if not words:
        return ""
    n = ceil(COPIED_WORDS * len(words) / length_in_words(words))
    runs = (" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
    return next((run for run in runs if f" {run} " in source), "")


def _evidence(case: Case, documents: Mapping[str, str]) -> str:
    return "\n".join(documents.get(doc_of(id_), documents.get(id_, "")) for id_ in case.gold_ids)


def _accepted(case: Case) -> tuple[str, ...]:
    return (*case.answer, *(text for part in (*case.answer_groups, *case.key_points) for text in part))


def _says_nothing(case: Case) -> bool:
    return case.answerable and case.kind != "chitchat" and not (_accepted(case) or gold_of(case))


def _lacks_hops(case: Case) -> bool:
    return case.answerable and is_multi_hop(case) and len(case.gold_ids) < 2


def _says_yes_or_no(case: Case) -> bool:
    return any(is_yes_or_no(answer) for answer in case.answer)


def _is_prose(text: str) -> bool:
    """Say whether an accepted answer is a written one, which need not stand in the evidence word for word."""
    return length_in_words(tokens(text)) >= LONG_ANSWER_WORDS


def _stands_in_table(text: str, accepted: Sequence[str]) -> bool:
    """Say whether a value stands in a cell, its unit in the header: `25` under `Torque (Nm)`, or `Price EUR: 61.5`."""
    values = [set(tokens(one)) for one in accepted if facts(one)]
    return any(value <= set(tokens(row)) for row in _rows_of(text) for value in values)


def _rows_of(text: str) -> Iterator[str]:
    header = ""
    for line in text.splitlines():
        if "|" in line:
            header = header or line
            yield f"{header} {line}"
        else:
            header = ""
            if _FIELD.match(line):
                yield line


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _whole_question(case: Case) -> str:
    return " ".join([*(turn.text for turn in case.history), case.question])


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 1.0
