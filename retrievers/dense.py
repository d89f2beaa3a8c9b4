"""The dense side: a Chroma collection of passage vectors, cosine, approximate search."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import chromadb
from chromadb.config import Settings

from retrievers.embedders import Vectors
from retrievers.records import Scalar

COLLECTION = "passages"


class DenseIndex:
    """Passage ids and vectors in a Chroma folder.

    Chroma's own defaults are all overridden: the space is cosine (its default is l2), there is no embedding function
    (its default downloads a model), writes are upserts in batches it accepts (its `add` ignores an existing id), and
    telemetry is off.
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder, or create it."""
        self._client = chromadb.PersistentClient(
            str(folder), settings=Settings(anonymized_telemetry=False, allow_reset=False)
        )
        self._collection = self._client.get_or_create_collection(
            COLLECTION, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )

    def upsert(
        self, ids: Sequence[str], vectors: Vectors, metadatas: Sequence[Mapping[str, Scalar]] | None = None
    ) -> None:
        """Write passages, in batches of the size that Chroma takes."""
        size = self._client.get_max_batch_size()
        for start in range(0, len(ids), size):
            stop = start + size
            self._collection.upsert(
                list(ids[start:stop]),
                embeddings=vectors[start:stop],
                metadatas=None if metadatas is None else [dict(metadata) or None for metadata in metadatas[start:stop]],  # type: ignore[misc]
            )

    def query(self, vector: Vectors, n: int) -> list[tuple[str, float]]:
        """Find about the `n` nearest passages: ids with cosine similarities, best first."""
        n = min(n, self.count())
        if n == 0:
            return []
        result = self._collection.query(query_embeddings=vector[None, :], n_results=n, include=["distances"])
        distances = result["distances"] or [[]]
        return [(id_, 1.0 - distance) for id_, distance in zip(result["ids"][0], distances[0], strict=True)]

    def count(self) -> int:
        """Count the passages."""
        return int(self._collection.count())

    def close(self) -> None:
        """Let go of the folder's files."""
        self._client.close()  # type: ignore[attr-defined]
