"""The dense side: a Chroma collection of passage vectors, cosine; on disk or on a server."""

import errno
import os
import re
import shutil
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import chromadb
import httpx
import numpy as np
from chromadb.api.shared_system_client import SharedSystemClient
from chromadb.config import Settings
from chromadb.errors import ChromaError, InternalError, NotFoundError

from retrievers.embedders import Vectors
from retrievers.records import Passage, Scalar

if TYPE_CHECKING:
    from retrievers.manifest import Manifest
    from retrievers.store import StoredDocument

COLLECTION = "passages"
ChromaFailure = InternalError
# What Chroma and SQLite raise where a disk is full, or can't be written for another reason; see `is_disk_error`.
DISK_ERRORS = (ChromaFailure, sqlite3.DatabaseError)
_DISK_CODES = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOTADB,
}
_READING = ("query", "count", "get")
# How many neighbours approximate search looks at: twice the candidates that hybrid search asks for.
_EF_SEARCH = 200
# Chroma keeps what it was sent since it last wrote its graph in a log, and inserts that again whenever it is opened:
# with its default of 1,000 that is a second for 100,000 passages. So each write ends with the graph on disk; but where
# so many are to come that writing some GB again and again would take longer than all else, only a few writes do, and
# `settle` ends that.
_SYNC_ALWAYS = 1
_MANY = 100_000
_N_SYNCS = 16
# Edges of a passage in the graph, twice Chroma's default: with 16, one graph of 500 near-alike passages in two has a
# passage that search does not reach, with 32 one in forty. Chroma builds a small graph anew whenever it opens it.
_MAX_NEIGHBORS = 32


class ServerError(ConnectionError):
    """A Chroma server that cannot be reached, or that refuses."""


class CollectionGone(ServerError):  # noqa: N818
    """A collection that is not on its server any more."""


class CollectionDamaged(InternalError):  # noqa: N818
    """A collection whose files Chroma cannot read."""


class DenseIndex:
    """Passage ids and vectors in a Chroma collection.

    Chroma's own defaults are all overridden: the space is cosine (its default is l2), there is no embedding function
    (its default downloads a model), writes are upserts in batches it accepts (its `add` ignores an existing id), and
    telemetry is off.
    """

    def __init__(
        self, client: Any, name: str = COLLECTION, *, owns_client: bool = False, sync_threshold: int | None = None
    ) -> None:
        """Open the collection, or create it.

        Args:
            client: Of a folder or a server.
            name: The collection's.
            owns_client: Whether closing the collection closes the client.
            sync_threshold: After how many records a new collection writes its graph; None leaves it to the server.
        """
        self._client = client
        self._name = name
        self._owns_client = owns_client
        hnsw: dict[str, Any] = {"space": "cosine", "ef_search": _EF_SEARCH, "max_neighbors": _MAX_NEIGHBORS}
        if sync_threshold is not None:
            hnsw["sync_threshold"] = sync_threshold
        self._collection = client.get_or_create_collection(name, embedding_function=None, configuration={"hnsw": hnsw})
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
            self._call(
                "upsert",
                list(ids[start:stop]),
                embeddings=vectors[start:stop],
                metadatas=[dict(metadata) or None for metadata in metadatas[start:stop]],
                documents=None if texts is None else list(texts[start:stop]),
            )

    def delete(self, ids: Sequence[str]) -> None:
        """Delete passages."""
        for start in range(0, len(ids), self._batch_size):
            self._call("delete", list(ids[start : start + self._batch_size]))

    def query(self, vector: Vectors, n: int, where: Mapping[str, Any] | None = None) -> list[str]:
        """Find about the `n` nearest passages that meet `where`: ids, best first.

        Raises:
            CollectionGone: The server has dropped the collection: two newer ones have been built.
        """
        result = self._call(
            "query", query_embeddings=vector[None, :], n_results=n, where=dict(where) if where else None, include=[]
        )
        return list(result["ids"][0])

    def count(self) -> int:
        """Count the passages."""
        return int(self._call("count"))

    def ids(self) -> Iterator[str]:
        """Read the ids of all passages."""
        for page in self._pages([]):
            yield from page["ids"]

    def records(self) -> Iterator[tuple[str, Mapping[str, Any], str, Vectors]]:
        """Read every passage: id, metadata, text, vector."""
        for page in self._pages(["metadatas", "documents", "embeddings"]):
            columns = (page["ids"], page["metadatas"], page["documents"], page["embeddings"])
            for passage_id, metadata, text, vector in zip(*columns, strict=True):
                yield passage_id, metadata or {}, text or "", np.asarray(vector, dtype=np.float32)

    def sync_each_write(self) -> None:
        """Write the graph at every write from the next opening on; the opening itself writes what is only logged."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there is no embedding function, which is wanted
            self._collection.modify(configuration={"hnsw": {"sync_threshold": _SYNC_ALWAYS}})

    @property
    def syncs_each_write(self) -> bool:
        """Whether what is written is in the graph on disk."""
        return bool(self._collection.configuration_json["hnsw"]["sync_threshold"] == _SYNC_ALWAYS)

    def close(self) -> None:
        """Let go of the folder's files; a shared connection stays."""
        if self._owns_client:
            self._client.close()

    def _pages(self, include: list[str]) -> Iterator[Any]:
        size = min(self._batch_size, 1_000)
        for start in range(0, self.count(), size):
            yield self._call("get", limit=size, offset=start, include=include)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the collection; what a server or the way to it says becomes one line.

        Raises:
            CollectionGone: The server does not have the collection any more.
            CollectionDamaged: Its files cannot be read.
            ServerError: The server cannot be reached, or refuses.
        """
        try:
            return getattr(self._collection, method)(*args, **kwargs)
        except Exception as error:
            if self._owns_client and isinstance(error, InternalError) and method in _READING:
                raise _tell_damage(error) from error
            if self._owns_client or not is_server_error(error):
                raise
            if isinstance(error, NotFoundError):
                raise CollectionGone(f"{self._name}: another build has replaced it on the server; repeat") from None
            raise ServerError(f"{self._name}: {describe_error(error)}; repeating the command goes on") from None


def _tell_damage(error: Exception) -> CollectionDamaged:
    reason = f"Chroma can't read its part of the index ({describe_error(error)})"
    return CollectionDamaged(f"{reason}; mend it with: python -m retrievers doctor --fix --index …")


class DenseHome(Protocol):
    """Where the collections of an index's generations are."""

    @property
    def can_copy(self) -> bool:
        """Whether a generation can start from a copy of another one's collection."""
        ...

    @property
    def batch_size(self) -> int:
        """How many records are best sent together."""
        ...

    def open(self, generation: Path, n_expected: int = 0) -> DenseIndex:
        """Open a generation's collection, or create it for about so many records."""
        ...

    def find(self, generation: Path) -> DenseIndex | None:
        """Open a generation's collection to search it; None when it is gone, or may not be opened here."""
        ...

    def settle(self, generation: Path, dense: DenseIndex) -> DenseIndex:
        """End the writing of a collection: open it again so that nothing is left for readers to do."""
        ...

    def copy(self, old: Path, new: Path) -> None:
        """Start a generation from a copy of another one's collection."""
        ...

    def clear(self, generation: Path) -> None:
        """Delete a generation's collection."""
        ...

    def read_graph(self, generation: Path) -> str:
        """Tell the files of a generation's graph and their state; nothing where another process keeps them whole."""
        ...

    def describe(
        self, document: "StoredDocument", passages: Sequence[Passage]
    ) -> list[tuple[dict[str, Scalar], str]] | None:
        """Give further metadata and the text of each passage's record; None when the filter fields are enough."""
        ...

    def publish(self, generation: Path, manifest: "Manifest") -> None:
        """Make a finished generation the one that readers use."""
        ...


class ChromaFolder:
    """Collections on disk, each in its generation's folder."""

    can_copy = True
    batch_size = 4_096

    def open(self, generation: Path, n_expected: int = 0) -> DenseIndex:
        """Open a generation's collection, or create it for about so many records.

        Raises:
            PermissionError: The folder may only be read; Chroma writes even when it only searches.
            OSError: The disk is full.
            CollectionDamaged: Its files cannot be read.
        """
        folder = generation / "chroma"
        if folder.exists() and not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "Chroma needs to write here", str(folder))
        threshold = _SYNC_ALWAYS if n_expected <= _MANY else n_expected // _N_SYNCS
        try:
            return _open_folder(str(folder), threshold)
        except InternalError as error:
            code = _read_code(error)
            if code == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise _tell_damage(error) from error
            raise

    def find(self, generation: Path) -> DenseIndex | None:
        """Open a generation's collection to search it; None where the folder may only be read or the disk is full."""
        try:
            return self.open(generation)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOSPC):
                raise
            return None

    def settle(self, generation: Path, dense: DenseIndex) -> DenseIndex:
        """Have the whole graph on disk, so that opening it replays nothing."""
        if dense.syncs_each_write:
            return dense
        dense.sync_each_write()
        dense.close()
        settled = self.open(generation)
        settled.count()  # Chroma replays its log when a collection is first read
        return settled

    def copy(self, old: Path, new: Path) -> None:
        """Start a generation from a copy of another one's collection."""
        shutil.copytree(old / "chroma", new / "chroma")

    def clear(self, generation: Path) -> None:
        """Delete a generation's collection."""
        shutil.rmtree(generation / "chroma", ignore_errors=True)

    def read_graph(self, generation: Path) -> str:
        """Tell the files of a generation's graph, with their sizes and times; its database is whole at any moment."""
        files = ((path, path.stat()) for path in sorted((generation / "chroma").glob("*/*")))
        return " ".join(f"{path.name} {status.st_size} {status.st_mtime_ns}" for path, status in files)

    def describe(self, document: "StoredDocument", passages: Sequence[Passage]) -> None:
        """Nothing further: text and metadata are in the store beside it."""

    def publish(self, generation: Path, manifest: "Manifest") -> None:
        """Nothing: the folder names its current generation."""


def _open_folder(folder: str, sync_threshold: int) -> DenseIndex:
    try:
        client: Any = chromadb.PersistentClient(folder, settings=_make_settings())
    except InternalError:
        # Chroma would hand out what is left of it to whoever opens the folder next, and has no call to forget it alone.
        SharedSystemClient._identifier_to_system.pop(folder, None)
        raise
    try:
        return DenseIndex(client, owns_client=True, sync_threshold=sync_threshold)
    except InternalError:
        client.close()
        raise


def connect(host: str, port: int, ssl: bool, headers: Mapping[str, str], tenant: str, database: str) -> Any:
    """Connect to a Chroma server."""
    return chromadb.HttpClient(
        host, port, ssl, headers=dict(headers), settings=_make_settings(), tenant=tenant, database=database
    )


def _make_settings() -> Settings:
    """Make settings for one client: Chroma writes into those it is given, so two clients must not share them."""
    return Settings(anonymized_telemetry=False, allow_reset=False)


def find_collection(client: Any, name: str) -> Any:
    """Find a collection by name; None when there is none."""
    try:
        return client.get_collection(name, embedding_function=None)
    except NotFoundError:
        return None


def is_server_error(error: Exception) -> bool:
    """Tell what a server or the way to it says from a bug: Chroma reports an unreachable server as a ValueError."""
    return isinstance(error, ChromaError | httpx.HTTPError) or (
        isinstance(error, ValueError) and "connect" in str(error)
    )


def is_disk_error(error: Exception) -> bool:
    """Tell what the disk or the state of a database refuses from a wrong call of ours.

    Chroma says both as an `InternalError`: with SQLite's code where it has one, and naming its compactor or the graph
    (an "hnsw segment") where it can't read or write the files beside the database.
    """
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _DISK_CODES
    if not isinstance(error, InternalError):
        return False
    code = _read_code(error)
    return bool(re.search("compact|hnsw segment|os error", str(error))) if code is None else code in _DISK_CODES


def _read_code(error: InternalError) -> int | None:
    """Read SQLite's code in what Chroma says; what stands above its first byte says more of the same."""
    match = re.search(r"\(code: (\d+)\)", str(error))
    return int(match[1]) & 0xFF if match else None


def describe_error(error: Exception) -> str:
    """Give the first line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
