"""What notices a blind side: passages searched by words of their own when the index is built."""

import random
from collections.abc import Mapping, Sequence

import numpy as np

from retrievers.embedders import Embedder
from retrievers.languages import detect_language
from retrievers.passages import split_sentences
from retrievers.records import Passage
from retrievers.store import Store
from retrievers.tokenizer import Tokenizer, query_tokens
from retrievers.vectors import VectorFile

EVEN = 0.5

_N_BACKGROUND = 1_000
_N_PROBES = 60
_N_WORDS = 6
_N_FOUND = 5  # in a small corpus; in a larger one the best hundredth
_MIN_PROBES = 8
# The share of passages that the dense side finds again in the best hundredth. On public sets a multilingual embedder
# finds 72 to 98 of 100, an English one 20 to 28 of 100 Chinese passages.
_BLIND, _SEEING = 0.35, 0.65


def measure_dense_weights(
    store: Store, vectors: VectorFile, embedder: Embedder, tokenizer: Tokenizer
) -> dict[str, float]:
    """Measure how far fusion may trust the dense side, for each language of the corpus: 0 (blind) to 0.5 (as BM25).

    Sampled passages are searched by words of one sentence of theirs among up to a thousand others. An embedder that
    was not trained on a language puts its passages anywhere.
    """
    found: dict[str, list[bool]] = {}
    rng = random.Random(0)
    n = len(vectors)
    rows = sorted(rng.sample(range(n), min(n, _N_BACKGROUND)))
    background = vectors.read(rows)
    probes = _choose_probes(store.passages_at(rows), tokenizer, rng)
    if not probes:
        return {}
    queries = embedder.embed_queries([words for _, _, words in probes])
    for (place, language, _), similarities in zip(probes, queries @ background.T, strict=True):
        better = np.count_nonzero(similarities > similarities[place] + 1e-6)
        ties = np.count_nonzero(np.abs(similarities - similarities[place]) <= 1e-6) - 1
        found.setdefault(language, []).append(bool(better + ties / 2 < max(_N_FOUND, len(rows) // 100)))
    return {language: _weigh(hits) for language, hits in sorted(found.items())}


def choose_weight(weights: Mapping[str, float], query: str) -> float:
    """Choose the dense side's weight for a query by its language; even where that was not measured."""
    return weights.get(detect_language(query), EVEN)


def _choose_probes(passages: Sequence[Passage], tokenizer: Tokenizer, rng: random.Random) -> list[tuple[int, str, str]]:
    """Pick passages of every language and words of a sentence of each: (place among the passages, language, words)."""
    probes: list[tuple[int, str, str]] = []
    n_chosen: dict[str, int] = {}
    for place in rng.sample(range(len(passages)), len(passages)):
        text = passages[place].text[:2_000]
        language = detect_language(text)
        if n_chosen.get(language, 0) >= _N_PROBES or not (sentences := split_sentences(text)):
            continue
        tokens = list(dict.fromkeys(query_tokens(rng.choice(sentences), tokenizer)))
        if len(tokens) < _N_WORDS:
            continue
        n_chosen[language] = n_chosen.get(language, 0) + 1
        words = [tokens[i] for i in sorted(rng.sample(range(len(tokens)), min(_N_WORDS, len(tokens))))]
        probes.append((place, language, ("" if language in ("zh", "ja") else " ").join(words)))
    return [probe for probe in probes if n_chosen[probe[1]] >= _MIN_PROBES]


def _weigh(hits: Sequence[bool]) -> float:
    share = sum(hits) / len(hits)
    return round(EVEN * min(1.0, max(0.0, (share - _BLIND) / (_SEEING - _BLIND))), 3)
