"""How relevant a passage is to what was asked: a number from 0 to 1 for each hit, by rule."""

import math
from collections.abc import Sequence

from programs import rules
from programs.quotes import text_of
from retrievers.records import Hit


def rate(hits: Sequence[Hit], question: str, query: str) -> tuple[float, ...]:
    """Rate the hits of one search: the mean of the score and of the words shared, each as a share of the best hit's.

    Words that few of the hits hold weigh more. Of question and query the one that a passage shares more with counts: a
    passage that a later search found has little in common with the question itself. Where no hit shares a word, as
    across languages, the score alone tells.
    """
    scores = _share_of_best([hit.score for hit in hits])
    held = [rules.words(text_of([hit])) for hit in hits]
    wanted = [rules.words(question), rules.words(query)]
    overlaps = [_weigh_shared(words, held) for words in (wanted if wanted[0] != wanted[1] else wanted[:1])]
    told = [_share_of_best(overlap) for overlap in overlaps if any(overlap)]
    if not told:
        return tuple(round(score, 3) for score in scores)
    return tuple(
        round((score + max(shared)) / 2, 3) for score, shared in zip(scores, zip(*told, strict=True), strict=True)
    )


def _weigh_shared(wanted: set[str], held: Sequence[set[str]]) -> list[float]:
    n_holding = {word: sum(word in words for words in held) for word in wanted}
    weights = {word: math.log(1 + len(held) / (n + 0.5)) for word, n in n_holding.items()}
    return [sum(weights[word] for word in sorted(wanted & words)) for words in held]


def _share_of_best(values: Sequence[float]) -> list[float]:
    """Bring values to 0..1, the best to 1; below zero, as the scores of some rerankers are, the lowest is 0."""
    floor = min(0.0, *values) if values else 0.0
    spread = max(values, default=0.0) - floor
    return [(value - floor) / spread if spread > 0 else 1.0 for value in values]
