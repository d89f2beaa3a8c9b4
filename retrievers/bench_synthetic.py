"""Synthetic corpora of any size: words by Zipf's law, vectors around topics; the same every time."""

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from retrievers.embedders import Vectors, normalise

N_WORDS = 80
N_QUERIES = 100
DIMENSION = 512

_VOCABULARY = 200_000
_TOPICS = 1_000
_NOISES = 2_048
_BLOCK = 10_000
_SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe ri so tu va we zi".split()
# Real embeddings vary far more in some directions than in others. Of the packaged embedder's 512, over seven public
# corpora, the first 10, 50, 100 and 200 hold .18, .45, .65 and .86 of the variance; with this decay .09, .39, .62, .86.
_DECAY = 2.5


class SyntheticEmbedder:
    """Vectors around a thousand topics, from a hash of the text: costs little, so that the index is measured."""

    name = "synthetic"

    def __init__(self, dimension: int = DIMENSION) -> None:
        """Draw the topics."""
        self.fingerprint = f"synthetic-2-{dimension}"
        scale = np.exp(-_DECAY * np.arange(dimension) / dimension)
        drawn = np.random.default_rng(0).standard_normal((_TOPICS + _NOISES, dimension)) * scale
        self._topics, self._noises = drawn[:_TOPICS].astype(np.float32), drawn[_TOPICS:].astype(np.float32)

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Make one vector a text: its topic, and as much noise, which is the sum of two of many."""
        seeds = np.asarray([zlib.crc32(text.encode()) for text in texts], dtype=np.int64)
        noise = self._noises[seeds // _TOPICS % _NOISES] + self._noises[seeds // _TOPICS // _NOISES % _NOISES]
        return normalise(self._topics[seeds % _TOPICS] + noise / np.float32(np.sqrt(2)))

    def embed_queries(self, texts: list[str]) -> Vectors:
        """Make one vector a query."""
        return self.embed_documents(texts)


def prepare_corpus(
    path: Path, n_passages: int, progress: Callable[[str, int, int | None], None] = lambda *_: None
) -> list[str]:
    """Write a corpus unless a whole one is there; return its queries: three to six words of random passages."""
    queries_path = path.with_suffix(".queries.json")
    if path.exists() and queries_path.exists():
        return list(json.loads(queries_path.read_text(encoding="utf-8")))
    unfinished = path.with_suffix(".unfinished")
    queries = _write(unfinished, n_passages, progress)
    os.replace(unfinished, path)
    queries_path.write_text(json.dumps(queries), encoding="utf-8")
    return queries


def _write(path: Path, n_passages: int, progress: Callable[[str, int, int | None], None]) -> list[str]:
    rng = np.random.default_rng(n_passages)
    words = np.asarray([_make_word(rank) for rank in range(_VOCABULARY)])
    weights = 1 / (np.arange(_VOCABULARY) + 2.7) ** 1.07
    cumulative = np.cumsum(weights / weights.sum())
    queries: list[str] = []
    every = max(1, n_passages // N_QUERIES)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, n_passages, _BLOCK):
            n = min(_BLOCK, n_passages - start)
            drawn = words[np.searchsorted(cumulative, rng.random((n, N_WORDS))).clip(max=_VOCABULARY - 1)]
            for i, row in enumerate(drawn.tolist(), start=start):
                file.write(json.dumps({"id": f"d{i}", "text": f"{' '.join(row)} ID-{i}."}) + "\n")
                if i % every == 0 and len(queries) < N_QUERIES:
                    queries.append(" ".join(row[: 3 + i // every % 4]))
            progress("writing the corpus", start + n, n_passages)
    return queries


def _make_word(rank: int) -> str:
    word = ""
    number = rank + len(_SYLLABLES)
    while number:
        number, digit = divmod(number, len(_SYLLABLES))
        word += _SYLLABLES[digit]
    return word
