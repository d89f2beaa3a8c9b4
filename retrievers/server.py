"""An index whose vectors and records live on a Chroma server; the rest is mirrored in a local cache."""

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import numpy as np

from retrievers.dense import DenseIndex, ServerError, connect, describe_error, find_collection, is_server_error
from retrievers.filling import batch_by_passages
from retrievers.generation import hash_text, rebuild_passages
from retrievers.lexical import LexicalWriter, finish_lexical
from retrievers.locks import drop_others, hold_lock, make_leasable
from retrievers.manifest import (
    IndexMismatch,
    IndexNotFound,
    Manifest,
    find_generation,
    format_manifest,
    parse_manifest,
    read_manifest,
    switch_generation,
    write_manifest,
)
from retrievers.passages import embedding_text, lexical_text
from retrievers.records import Passage, Scalar
from retrievers.store import Store, StoredDocument
from retrievers.tokenizer import load_tokenizer
from retrievers.vectors import VectorWriter

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

TOKEN_VARIABLE = "CHROMA_TOKEN"
_COLLECTION = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,400}[a-zA-Z0-9]")
_COLLECTION_FILE = "COLLECTION"
_DOCUMENT, _OWN = "_document", "_own"
_GENERATION, _MANIFEST = "generation", "manifest"


class AddressError(ValueError):
    """An address that names no collection."""


class CollectionTaken(IndexNotFound):
    """A collection that somebody else made for something else than an index."""


@dataclass(frozen=True, slots=True)
class Address:
    """`http(s)://HOST[:PORT]/COLLECTION[?tenant=NAME&database=NAME]`; the token comes from CHROMA_TOKEN."""

    text: str
    ssl: bool
    host: str
    port: int
    collection: str
    tenant: str
    database: str


def parse_address(text: str) -> Address:
    """Parse the address of a collection.

    Raises:
        AddressError: It names no collection, or has unknown parameters.
    """
    parts = urlsplit(text)
    collection = parts.path.strip("/")
    query = parse_qs(parts.query)
    if not parts.hostname or not _COLLECTION.fullmatch(collection):
        raise AddressError(f"{text}: expected http://HOST:PORT/COLLECTION, a name of 3 or more of a-z A-Z 0-9 . _ -")
    if unknown := sorted(set(query) - {"tenant", "database"}):
        raise AddressError(f"{text}: unknown parameter {unknown[0]!r}; known are tenant, database")
    ssl = parts.scheme == "https"
    tenant, database = (query.get(key, [f"default_{key}"])[0] for key in ("tenant", "database"))
    return Address(text, ssl, parts.hostname, parts.port or (443 if ssl else 8000), collection, tenant, database)


def _in_one_line(
    call: Callable[Concatenate["ChromaServer", P], R],
) -> Callable[Concatenate["ChromaServer", P], R]:
    """Say in one line what the server, or the way to it, says."""

    @wraps(call)
    def guard(server: "ChromaServer", *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(server, *args, **kwargs)
        except Exception as error:
            if isinstance(error, IndexMismatch) or not is_server_error(error):
                raise
            raise ServerError(f"{server.address.text}: {describe_error(error)}; repeat the command") from None

    return guard


class ChromaServer:
    """Where an index's Chroma collections are: one a generation, and one that names the current one.

    A reader sees the generation that the naming collection pointed to when it opened the index. The collection before
    stays until the next build, for readers that still have it open. Writers on one machine exclude each other.
    """

    can_copy = False
    batch_size = 256  # a request holds the vectors as JSON

    def __init__(self, address: Address) -> None:
        """Connect.

        Raises:
            ServerError: The server cannot be reached, or refuses the token, tenant or database.
        """
        self.address = address
        self._fetched = ""  # the collection that was current when this process looked
        key = sha256(f"{address.host} {address.port} {address.tenant} {address.database} {address.collection}".encode())
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.mirror = base / "compiled-rag" / "servers" / key.hexdigest()[:16]
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"x-chroma-token": token, "Authorization": f"Bearer {token}"} if token else {}
        try:
            self._client = connect(address.host, address.port, address.ssl, headers, address.tenant, address.database)
        except Exception as error:
            if not is_server_error(error):
                raise
            raise ServerError(f"{address.text}: {describe_error(error)}") from None

    @_in_one_line
    def open(self, generation: Path, n_expected: int = 0) -> DenseIndex:
        """Open a generation's collection, or create it; when its graph is written is the server's to say."""
        return DenseIndex(self._client, self._name(generation))

    @_in_one_line
    def find(self, generation: Path) -> DenseIndex | None:
        """Open a generation's collection to search it; None when later builds have dropped it."""
        name = self._name(generation)
        return DenseIndex(self._client, name) if find_collection(self._client, name) is not None else None

    def settle(self, generation: Path, dense: DenseIndex) -> DenseIndex:
        """Nothing: the server has the graph in memory."""
        return dense

    def copy(self, old: Path, new: Path) -> None:
        """Start a generation from another one's collection: servers cannot."""
        raise NotImplementedError

    @_in_one_line
    def clear(self, generation: Path) -> None:
        """Delete a generation's collection."""
        if find_collection(self._client, self._name(generation)) is not None:
            self._client.delete_collection(self._name(generation))

    def read_graph(self, generation: Path) -> str:
        """Nothing: a server outlives its writers."""
        return ""

    def describe(self, document: StoredDocument, passages: Sequence[Passage]) -> list[tuple[dict[str, Scalar], str]]:
        """Give what a record needs besides its filter fields, so that the index can be read back: metadata and text."""
        whole = {**asdict(document), "first_row": 0, "n_passages": 0}
        described: list[tuple[dict[str, Scalar], str]] = []
        for n, passage in enumerate(passages):
            own = {key: value for key, value in passage.metadata.items() if key not in document.metadata}
            extra: dict[str, Scalar] = {_OWN: json.dumps(own, ensure_ascii=False)}
            if n == 0:
                extra[_DOCUMENT] = json.dumps(whole, ensure_ascii=False)
            described.append((extra, passage.text))
        return described

    @_in_one_line
    def publish(self, generation: Path, manifest: Manifest) -> None:
        """Point the naming collection at a generation, and drop those before the last.

        Raises:
            ServerError: Another machine has published a generation since `fetch`.
        """
        name = self._name(generation)
        metadata = {_GENERATION: name, _MANIFEST: format_manifest(manifest)}
        pointer = find_collection(self._client, self.address.collection)
        before = str((pointer.metadata or {}).get(_GENERATION, "")) if pointer is not None else ""
        if before != self._fetched:
            raise ServerError(
                f"{self.address.text}: another machine has built this index meanwhile; repeat the command"
            )
        if pointer is None:
            self._client.create_collection(self.address.collection, metadata=metadata, embedding_function=None)
        else:
            pointer.modify(metadata=metadata)
        ours = re.compile(rf"{re.escape(self.address.collection)}\.g\d+\.[0-9a-f]{{8}}")
        for collection in self._client.list_collections():
            if ours.fullmatch(collection.name) and collection.name not in (name, before):
                self._client.delete_collection(collection.name)
        self._fetched = name

    @_in_one_line
    def fetch(self) -> Path:
        """Bring the local mirror to what the server has now; return its folder.

        Raises:
            IndexNotFound: The server has no such index.
            CollectionTaken: It has such a collection, but that is no index.
            IndexMismatch: Another version of this project wrote it.
        """
        pointer = find_collection(self._client, self.address.collection)
        metadata: dict[str, Any] = dict(pointer.metadata or {}) if pointer is not None else {}
        if pointer is None:
            raise IndexNotFound(
                f"{self.address.text}: no such collection; build one with: python -m retrievers build CORPUS --index …"
            )
        if _MANIFEST not in metadata:
            raise CollectionTaken(f"{self.address.text}: the collection is no index of this project; name another one")
        self._fetched = str(metadata[_GENERATION])
        manifest = parse_manifest(metadata[_MANIFEST], self.address.text)
        if not self._has_mirror(manifest):
            self._download(self._fetched, manifest)
        return self.mirror

    def _has_mirror(self, manifest: Manifest) -> bool:
        try:
            current = find_generation(self.mirror)
            return self._name(current) == self._fetched and read_manifest(current) == manifest
        except (IndexNotFound, FileNotFoundError, ValueError):
            return False

    def _download(self, collection: str, manifest: Manifest) -> None:
        """Write the mirror's generation from the server's records, unless another process has done so meanwhile."""
        with hold_lock(self.mirror, wait=_log.warning):
            if self._has_mirror(manifest):
                return
            generation = self.mirror / collection.split(".")[-2]
            shutil.rmtree(generation, ignore_errors=True)
            generation.mkdir()
            (generation / _COLLECTION_FILE).write_text(collection, encoding="utf-8")
            tokenizer = load_tokenizer(manifest.words)
            with ExitStack() as opened:
                store = opened.enter_context(closing(Store(generation / "store.sqlite", writable=True)))
                vectors = opened.enter_context(closing(VectorWriter(generation / "vectors.f32", manifest.dimension)))
                lexical = opened.enter_context(closing(LexicalWriter(generation / "lexical")))
                for batch in batch_by_passages(self._read_documents(generation), lambda found: len(found[1])):
                    store.add(
                        [(document, passages, list(map(_hash_passage, passages))) for document, passages, _ in batch],
                        manifest.schema,
                    )
                    vectors.append(np.concatenate([rows for *_, rows in batch]))
                    for passage in (passage for _, passages, _ in batch for passage in passages):
                        lexical.append(tokenizer(lexical_text(passage)))
                if store.n_passages != manifest.n_passages:
                    raise ServerError(
                        f"{self.address.text}: {store.n_passages} of {manifest.n_passages} passages are there; repeat "
                        "the command, and if they stay missing, build the index again"
                    )
            finish_lexical(generation / "lexical")
            write_manifest(generation, manifest)
            make_leasable(generation)
            switch_generation(self.mirror, generation)
            drop_others(self.mirror, generation)

    def _read_documents(self, generation: Path) -> Iterator[tuple[StoredDocument, list[Passage], np.ndarray]]:
        """Read the collection back, document by document."""
        whole: dict[str, StoredDocument] = {}
        parts: dict[str, list[tuple[int, str, str, np.ndarray]]] = {}
        dense = self.find(generation)
        for passage_id, metadata, text, vector in dense.records() if dense is not None else ():
            doc_id, _, n = passage_id.rpartition("#")
            if _DOCUMENT in metadata:
                whole[doc_id] = StoredDocument(**json.loads(metadata[_DOCUMENT]))
            parts.setdefault(doc_id, []).append((int(n), text, metadata[_OWN], vector))
        for doc_id in sorted(whole):
            pieces = sorted(parts[doc_id], key=lambda piece: piece[0])
            texts = [(text, json.loads(own)) for _, text, own, _ in pieces]
            yield whole[doc_id], rebuild_passages(whole[doc_id], texts), np.stack([vector for *_, vector in pieces])

    def _name(self, generation: Path) -> str:
        """Read which collection a generation has; a new one gets a name that no other machine chooses."""
        file = generation / _COLLECTION_FILE
        if not file.exists():
            file.write_text(f"{self.address.collection}.{generation.name}.{uuid4().hex[:8]}", encoding="utf-8")
        return file.read_text(encoding="utf-8")


def _hash_passage(passage: Passage) -> bytes:
    return hash_text(embedding_text(passage))
