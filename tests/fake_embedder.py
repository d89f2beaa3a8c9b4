"""A fast embedder for tests: words hashed to a vector, so texts that share words are near."""

import hashlib

import numpy as np

from retrievers.embedders import Vectors, normalise
from retrievers.tokenizer import tokenize


class HashEmbedder:
    """Counts its calls, so that a test can tell what was embedded again."""

    def __init__(self, name: str = "hash", dimension: int = 64) -> None:
        self.name = name
        self.dimension = dimension
        self.fingerprint = f"hash-{name}-{dimension}"
        self.embedded: list[str] = []

    def embed_documents(self, texts: list[str]) -> Vectors:
        self.embedded.extend(texts)
        return self.embed_queries(texts)

    def embed_queries(self, texts: list[str]) -> Vectors:
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in enumerate(texts):
            for token in tokenize(text):
                digest = hashlib.md5(token.encode(), usedforsecurity=False).digest()
                vectors[row, int.from_bytes(digest[:4], "little") % self.dimension] += 1 if digest[4] % 2 else -1
        return normalise(vectors)
