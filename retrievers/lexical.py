"""The lexical side: BM25 over the bilingual tokenizer's tokens."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

K1 = 1.5
B = 0.75

Scores = NDArray[np.float32]


class _FlooredBM25(BM25Okapi):
    """rank-bm25 with Lucene's idf, `ln(1 + (N - df + 0.5) / (df + 0.5))`, which is never zero or negative.

    With the library's own idf a term in half of the passages counts nothing, and small corpora score all zeros.
    """

    def _calc_idf(self, nd: dict[int, int]) -> None:
        for token, n in nd.items():
            self.idf[token] = math.log(1 + (self.corpus_size - n + 0.5) / (n + 0.5))


class LexicalWriter:
    """Collects the tokens of passages in row order and writes the lexical folder."""

    def __init__(self, folder: Path) -> None:
        """Create the folder's files."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ids: dict[str, int] = {}
        self._lengths: list[int] = []
        self._file = (folder / "tokens.u32").open("wb")

    def append(self, tokens: Iterable[str]) -> None:
        """Add the next passage."""
        ids = np.fromiter((self._ids.setdefault(token, len(self._ids)) for token in tokens), dtype="<u4")
        self._file.write(ids.tobytes())
        self._lengths.append(len(ids))

    def close(self) -> None:
        """Write the vocabulary and the passages' lengths beside their tokens."""
        self._file.close()
        np.save(self._folder / "lengths.npy", np.asarray(self._lengths, dtype=np.int64))
        (self._folder / "vocabulary.json").write_text(json.dumps(list(self._ids), ensure_ascii=False), encoding="utf-8")


class LexicalIndex:
    """BM25 scores of every passage for the tokens of a query."""

    def __init__(self, folder: Path) -> None:
        """Read the folder."""
        tokens = np.fromfile(folder / "tokens.u32", dtype="<u4")
        lengths = np.load(folder / "lengths.npy")
        vocabulary = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._ids = {token: i for i, token in enumerate(vocabulary)}
        self._n = len(lengths)
        ends = np.cumsum(lengths)
        corpus = [tokens[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]
        # rank-bm25 divides by the number of passages and by their mean length.
        self._bm25 = _FlooredBM25(corpus, k1=K1, b=B) if len(tokens) else None

    def score(self, tokens: Sequence[str]) -> Scores:
        """Score every row; 0 where no token matches."""
        ids = [self._ids[token] for token in tokens if token in self._ids]
        if self._bm25 is None or not ids:
            return np.zeros(self._n, np.float32)
        return np.asarray(self._bm25.get_scores(ids), dtype=np.float32)


def top_rows(scores: Scores, n: int) -> NDArray[np.int64]:
    """Pick the rows of the `n` best scores above 0, best first, ties by row."""
    n_best = min(n, len(scores))
    if n_best == 0:
        return np.empty(0, np.int64)
    best = np.argpartition(-scores, n_best - 1)[:n_best]
    best = best[scores[best] > 0]
    return best[np.lexsort((best, -scores[best]))].astype(np.int64)
