"""The dense side: a Chroma collection of passage vectors, cosine; on disk or on a server."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import chromadb
from chromadb.config import Settings
from chromadb.errors import NotFoundError

from retrievers.embedders import Vectors
from retrievers.records import Scalar

COLLECTION = "passages"
_SETTINGS = Settings(anonymized_telemetry=False, allow_reset=False)


class DenseIndex:
    """Passage ids and vectors in a Chroma collection.

    Chroma's own defaults are all overridden: the space is cosine (its default is l2), there is no embedding function
    (its default downloads a model), writes are upserts in batches it accepts (its `add` ignores an existing id), and
    telemetry is off.
    """

    def __init__(self, client: Any, name: str = COLLECTION) -> None:
        """Open the collection, or create it."""
        self._client = client
        self._collection = client.get_or_create_collection(
            name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )
        self._batch_size = int(client.get_max_batch_size())

    def upsert(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadatas: Sequence[Mapping[str, Scalar]],
        texts: Sequence[str] | None = None,
    ) -> None:
        """Write passages, in batches of the size that Chroma takes."""
        for start in range(0, len(ids), self._batch_size):
            stop = start + self._batch_size
            self._collection.upsert(
                list(ids[start:stop]),
                embeddings=vectors[start:stop],
                metadatas=[dict(metadata) or None for metadata in metadatas[start:stop]],
                documents=None if texts is None else list(texts[start:stop]),
            )

    def delete(self, ids: Sequence[str]) -> None:
        """Delete passages."""
        for start in range(0, len(ids), self._batch_size):
            self._collection.delete(list(ids[start : start + self._batch_size]))

    def query(self, vector: Vectors, n: int, where: Mapping[str, Any] | None = None) -> list[str]:
        """Find about the `n` nearest passages that meet `where`: ids, best first."""
        n = min(n, self.count())
        if n == 0:
            return []
        result = self._collection.query(
            query_embeddings=vector[None, :], n_results=n, where=dict(where) if where else None, include=[]
        )
        return list(result["ids"][0])

    def count(self) -> int:
        """Count the passages."""
        return int(self._collection.count())

    def ids(self) -> Iterator[str]:
        """Read the ids of all passages."""
        for start in range(0, self.count(), self._batch_size):
            yield from self._collection.get(limit=self._batch_size, offset=start, include=[])["ids"]

    def close(self) -> None:
        """Let go of the folder's files or the connection."""
        self._client.close()


def open_dense(folder: Path) -> DenseIndex:
    """Open the collection in a folder, or create both."""
    return DenseIndex(chromadb.PersistentClient(str(folder), settings=_SETTINGS))


__all__ = ["DenseIndex", "NotFoundError", "open_dense"]
