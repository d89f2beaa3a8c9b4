"""BM25 for large indexes: bm25s over memory-mapped files, the vocabulary in SQLite."""

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import bm25s
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from retrievers.lexical import TokenFile


def write_mapped(passages: "TokenFile", vocabulary: Sequence[str], folder: Path, *, k1: float, b: float) -> None:
    """Score every token of every passage and write the sparse matrix and the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    model = bm25s.BM25(k1=k1, b=b, method="lucene", csc_backend="scipy")
    model.scores = model.build_index_from_ids(list(range(len(vocabulary))), passages, show_progress=False)
    model.vocab_dict = {}
    model.unique_token_ids_set = set()
    model.save(str(folder), show_progress=False)
    with sqlite3.connect(folder / "vocabulary.sqlite") as connection:
        connection.execute("CREATE TABLE words (word TEXT PRIMARY KEY, id INTEGER NOT NULL) WITHOUT ROWID")
        connection.executemany("INSERT INTO words VALUES (?,?)", ((word, i) for i, word in enumerate(vocabulary)))
    connection.close()


class MappedEngine:
    """bm25s scores; only the columns of a query's tokens are read from disk."""

    def __init__(self, folder: Path) -> None:
        """Map the matrix."""
        self._model = bm25s.BM25.load(str(folder), mmap=True, load_corpus=False, load_vocab=False)

    def score(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Score every row; 0 where no token matches."""
        if not ids:
            return np.zeros(self._model.scores["num_docs"], np.float32)
        return np.asarray(self._model.get_scores_from_ids(list(ids)), dtype=np.float32)


class MappedVocabulary:
    """Words to token ids, looked up on disk: a large vocabulary takes a second to read."""

    def __init__(self, folder: Path) -> None:
        """Name the file; each thread opens its own connection."""
        self._path = folder / "vocabulary.sqlite"
        self._local = threading.local()

    def find_ids(self, tokens: Sequence[str]) -> list[int]:
        """Look the tokens up, in order, repeats kept, unknown ones left out."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            uri = f"{self._path.resolve().as_uri()}?mode=ro&immutable=1"
            connection = self._local.connection = sqlite3.connect(uri, uri=True)
        found = (connection.execute("SELECT id FROM words WHERE word = ?", (word,)).fetchone() for word in tokens)
        return [int(record[0]) for record in found if record is not None]
