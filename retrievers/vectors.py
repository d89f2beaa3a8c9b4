"""The passages' vectors in one flat, memory-mapped file: row i is passage i."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrievers.embedders import Vectors
from retrievers.store import Store

_BLOCK = 20_000


class VectorWriter:
    """Appends rows to a vectors file, or goes on with one."""

    def __init__(self, path: Path, dimension: int, n_rows: int = 0) -> None:
        """Open the file and drop what lies beyond its first `n_rows`."""
        self._file = path.open("ab")
        self._file.truncate(4 * dimension * n_rows)

    def append(self, vectors: Vectors) -> None:
        """Append rows and hand them to the system."""
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        self._file.flush()

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class VectorFile:
    """Exact cosine similarities against any rows; maps the file, so opening costs nothing."""

    def __init__(self, path: Path, dimension: int) -> None:
        """Map a file of vectors of this dimension; an incomplete last row is left out."""
        n_rows = path.stat().st_size // (4 * dimension)
        self._rows: NDArray[np.float32] = (
            np.memmap(path, dtype="<f4", mode="r", shape=(n_rows, dimension))
            if n_rows
            else np.empty((0, dimension), np.float32)
        )

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._rows)

    def read(self, rows: Sequence[int] | NDArray[np.int64]) -> Vectors:
        """Read these rows, in this order."""
        return np.asarray(self._rows[np.asarray(rows, dtype=np.int64)])

    def score(self, query: Vectors, rows: NDArray[np.int64] | None = None) -> Vectors:
        """Compute the similarity of these rows, or of all, to one query vector, in this order."""
        n = len(self) if rows is None else len(rows)
        scores = np.empty(n, np.float32)
        for start in range(0, n, _BLOCK):  # a block at a time: picked rows are copied
            block = slice(start, start + _BLOCK)
            scores[block] = (self._rows[block] if rows is None else self._rows[rows[block]]) @ query
        return scores


class KnownVectors:
    """Vectors of earlier generations, found by what was embedded: the hash of the text."""

    def __init__(self) -> None:
        """Start with none."""
        self._files: list[VectorFile] = []
        self._places: dict[bytes, tuple[int, int]] = {}

    def add(self, store: Store, vectors: VectorFile) -> None:
        """Take in a generation, finished or not; its store says which of its rows are whole."""
        number, n_rows = len(self._files), len(vectors)
        self._files.append(vectors)
        self._places.update((key, (number, row)) for row, key in store.hashes() if row < n_rows)

    def find(self, keys: Sequence[bytes], dimension: int) -> tuple[Vectors, list[int]]:
        """Gather known vectors, one row a key; the rows of unknown keys, and broken ones, are listed."""
        rows = np.empty((len(keys), dimension), np.float32)
        missing: list[int] = []
        for i, key in enumerate(keys):
            place = self._places.get(key)
            if place is not None:
                rows[i] = self._files[place[0]].read([place[1]])[0]
            if place is None or not 0.99 < float(rows[i] @ rows[i]) < 1.01:  # NaN is not either
                missing.append(i)
        return rows, missing
