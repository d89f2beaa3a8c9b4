"""What a gold case tells about passages and answers: which evidence they lack, and which of their words answer."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainsets.answers import contains_answer, falls_for_trap
from trainsets.cases import Case
from trainsets.evidence import holds_answer, missing_evidence, needs_all
from trainsets.normalize import fold
from trainsets.prediction import HitLike, gold_found
from trainsets.ranking import gold_of

_BARE_NUMBER = re.compile(r"[\d.,]+")


@dataclass(frozen=True, slots=True)
class Gold:
    """The gold side of one case, in the words that demos of single steps are made of."""

    case: Case

    @property
    def is_answerable(self) -> bool:
        """Whether the corpus holds an answer."""
        return self.case.answerable

    @property
    def needs_all(self) -> bool:
        """Whether every gold id is needed for the answer."""
        return needs_all(self.case)

    @property
    def gold_ids(self) -> tuple[str, ...]:
        """The documents or passages that hold the evidence."""
        return gold_of(self.case)

    @property
    def answer(self) -> str:
        """The shortest complete answer: an accepted one, with its unit, or one phrasing of every part; else empty."""
        if not self.case.answer:
            return "; ".join(group[0] for group in (*self.case.answer_groups, *self.case.key_points))
        first = self.case.answer[0]
        if not _BARE_NUMBER.fullmatch(first):
            return first
        return next((other for other in self.case.answer if first in other and other != first), first)

    @property
    def spans(self) -> tuple[str, ...]:
        """The evidence word for word, as far as the case names it."""
        return self.case.gold_spans

    def missing(self, hits: Iterable[HitLike]) -> list[str]:
        """List the gold ids that these passages lack for an answer."""
        return missing_evidence(self.case, hits)

    def is_gold(self, hit: HitLike) -> bool:
        """Tell whether a passage is evidence."""
        return bool(gold_found(self.gold_ids, [hit.passage.passage_id]))

    def states_answer(self, text: str) -> bool:
        """Tell whether a text holds an accepted answer."""
        return holds_answer(self.case, text)

    def states_part(self, text: str) -> bool:
        """Tell whether a text holds an accepted answer or one of the parts of one."""
        parts = (*self.case.answer_groups, *self.case.key_points)
        return self.states_answer(text) or any(contains_answer(text, part) for part in parts)

    def misleads(self, text: str) -> bool:
        """Tell whether a text holds a wrong answer that a case on conflicting documents names."""
        return self.case.kind == "conflict" and falls_for_trap(self.case, text)


def held_out_texts(cases: Iterable[Case]) -> frozenset[str]:
    """Collect what must not be seen in a demo: questions, and evidence word for word, of cases kept for measuring."""
    return frozenset(fold(text) for case in cases for text in (case.question, *case.gold_spans) if len(text) >= 8)


def holds_held_out(texts: Sequence[str], held_out: Iterable[str]) -> bool:
    """Tell whether one of the texts holds something that is kept for measuring."""
    folded = [fold(text) for text in texts]
    return any(kept in text for kept in held_out for text in folded)
