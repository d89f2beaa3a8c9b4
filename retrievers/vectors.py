"""The passages' vectors in one flat, memory-mapped file: row i is passage i."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrievers.embedders import Vectors


class VectorWriter:
    """Appends rows to a new vectors file."""

    def __init__(self, path: Path) -> None:
        """Create the file, or empty it."""
        self._file = path.open("wb")

    def append(self, vectors: Vectors) -> None:
        """Append rows."""
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class VectorFile:
    """Exact cosine similarities against any rows; maps the file, so opening costs nothing."""

    def __init__(self, path: Path, dimension: int) -> None:
        """Map a finished file of vectors of this dimension."""
        self._rows: NDArray[np.float32] = (
            np.memmap(path, dtype="<f4", mode="r").reshape(-1, dimension)
            if path.stat().st_size
            else np.empty((0, dimension), np.float32)
        )

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._rows)

    def score(self, query: Vectors, rows: NDArray[np.int64]) -> Vectors:
        """Compute the similarity of each of these rows to one query vector, in this order."""
        return np.asarray(self._rows[rows] @ query, dtype=np.float32)
