"""The lexical side: BM25 over the bilingual tokenizer's tokens; rank-bm25 for small indexes."""

import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

K1 = 1.5
B = 0.75
# rank-bm25 looks into every passage for every query token: about 40 ms a query at this size.
SMALL = 10_000

Scores = NDArray[np.float32]


class Engine(Protocol):
    """Scores every passage for the ids of a query's tokens."""

    def score(self, ids: Sequence[int]) -> Scores:
        """Score every row; 0 where no token matches."""
        ...


class _FlooredBM25(BM25Okapi):
    """rank-bm25 with Lucene's idf, `ln(1 + (N - df + 0.5) / (df + 0.5))`, which is never zero or negative.

    With the library's own idf a term in half of the passages counts nothing, and small corpora score all zeros.
    """

    def _calc_idf(self, nd: dict[int, int]) -> None:
        for token, n in nd.items():
            self.idf[token] = math.log(1 + (self.corpus_size - n + 0.5) / (n + 0.5))


class RankBM25Engine:
    """rank-bm25, made from the tokens when the index is opened."""

    def __init__(self, passages: "TokenFile") -> None:
        """Count the tokens of every passage."""
        self._n = len(passages)
        # rank-bm25 divides by the number of passages and by their mean length.
        self._bm25 = _FlooredBM25(passages, k1=K1, b=B) if passages.n_tokens else None

    def score(self, ids: Sequence[int]) -> Scores:
        """Score every row; 0 where no token matches."""
        if self._bm25 is None or not ids:
            return np.zeros(self._n, np.float32)
        return np.asarray(self._bm25.get_scores(ids), dtype=np.float32)


class TokenFile:
    """The token ids of every passage, in row order, read as they are iterated."""

    def __init__(self, folder: Path) -> None:
        """Map a folder that a `LexicalWriter` wrote."""
        self._lengths = np.fromfile(folder / "lengths.u32", dtype="<u4").astype(np.int64)
        self._ends = np.cumsum(self._lengths)
        self.n_tokens = int(self._lengths.sum())
        self._tokens: NDArray[np.uint32] = (
            np.memmap(folder / "tokens.u32", dtype="<u4", mode="r") if self.n_tokens else np.empty(0, np.uint32)
        )

    def __len__(self) -> int:
        """Count the passages."""
        return len(self._lengths)

    def __getitem__(self, row: int) -> NDArray[np.uint32]:
        """Read the token ids of one passage."""
        end = self._ends[row]
        return np.asarray(self._tokens[end - self._lengths[row] : end])

    def __iter__(self) -> Iterator[list[int]]:
        """Read every passage's token ids."""
        start = 0
        for end in self._ends.tolist():
            yield self._tokens[start:end].tolist()
            start = end


class LexicalWriter:
    """Appends the tokens of passages in row order to a lexical folder, or goes on with one."""

    def __init__(self, folder: Path, n_rows: int = 0, vocabulary: Path | None = None) -> None:
        """Open the folder and drop what lies beyond its first `n_rows`.

        Args:
            folder: Made when missing.
            n_rows: How many passages of an earlier, interrupted writer to keep.
            vocabulary: Another folder, whose token ids are to be the same here.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        if vocabulary is None:
            _drop_torn_line(folder / "vocabulary.txt")
        else:  # a killed writer may have left a part of it, where the other ids of the rest would be taken again
            (folder / "vocabulary.txt").unlink(missing_ok=True)
        self._ids = {token: i for i, token in enumerate(_read_vocabulary(vocabulary or folder))}
        self._n_saved = 0 if vocabulary else len(self._ids)
        self._tokens, self._lengths = (folder / "tokens.u32").open("ab"), (folder / "lengths.u32").open("ab")
        self._lengths.truncate(4 * n_rows)
        self._tokens.truncate(4 * int(np.fromfile(folder / "lengths.u32", dtype="<u4").sum()) if n_rows else 0)

    def append(self, tokens: Iterable[str]) -> None:
        """Add the next passage."""
        self.append_ids([self._ids.setdefault(token, len(self._ids)) for token in tokens])

    def append_ids(self, ids: Sequence[int] | NDArray[np.uint32]) -> None:
        """Add the next passage by the ids of its tokens."""
        row = np.asarray(ids, dtype="<u4")
        self._tokens.write(row.tobytes())
        self._lengths.write(np.uint32(len(row)).tobytes())

    def flush(self) -> None:
        """Put what was appended on disk, the words first: a token id on disk always has its word."""
        with (self._folder / "vocabulary.txt").open("a", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{token}\n" for token in islice(self._ids, self._n_saved, None))
        self._n_saved = len(self._ids)
        self._tokens.flush()
        self._lengths.flush()

    def close(self) -> None:
        """Flush and close; again does nothing."""
        if not self._tokens.closed:
            self.flush()
        self._tokens.close()
        self._lengths.close()


def finish_lexical(folder: Path, small: int = SMALL) -> str:
    """Build what a large index needs beyond its tokens; return the engine's name: `rank-bm25` or `bm25s`."""
    tokens = TokenFile(folder)
    shutil.rmtree(folder / "mapped", ignore_errors=True)  # of a killed writer
    if len(tokens) <= small or not tokens.n_tokens:
        return "rank-bm25"
    from retrievers.lexical_mapped import write_mapped

    write_mapped(tokens, _read_vocabulary(folder), folder / "mapped", k1=K1, b=B)
    return "bm25s"


class _Vocabulary:
    def __init__(self, tokens: Sequence[str]) -> None:
        self._ids = {token: i for i, token in enumerate(tokens)}

    def find_ids(self, tokens: Sequence[str]) -> list[int]:
        return [self._ids[token] for token in tokens if token in self._ids]


class LexicalIndex:
    """BM25 scores of every passage for the tokens of a query."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, whose engine `finish_lexical` chose."""
        if (folder / "mapped").exists():
            from retrievers.lexical_mapped import MappedEngine, MappedVocabulary

            self._engine: Engine = MappedEngine(folder / "mapped")
            self._find_ids = MappedVocabulary(folder / "mapped").find_ids
        else:
            self._engine = RankBM25Engine(TokenFile(folder))
            self._find_ids = _Vocabulary(_read_vocabulary(folder)).find_ids

    def score(self, tokens: Sequence[str]) -> Scores:
        """Score every row; 0 where no token matches."""
        return self._engine.score(self._find_ids(tokens))


def top_rows(scores: Scores, n: int) -> NDArray[np.int64]:
    """Pick the rows of the `n` best scores above 0, best first, ties by row."""
    n_best = min(n, len(scores))
    if n_best == 0:
        return np.empty(0, np.int64)
    # Ties at the edge: take all that reach the n-th best score, so that the lowest rows of a tie win.
    edge = np.partition(scores, len(scores) - n_best)[len(scores) - n_best]
    best = np.flatnonzero((scores >= edge) & (scores > 0))
    return best[np.lexsort((best, -scores[best]))][:n].astype(np.int64)


def _read_vocabulary(folder: Path) -> list[str]:
    path = folder / "vocabulary.txt"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line that a killed writer did not finish."""
    if path.exists():
        raw = path.read_bytes()
        if not raw.endswith(b"\n"):
            with path.open("r+b") as file:
                file.truncate(raw.rfind(b"\n") + 1)
