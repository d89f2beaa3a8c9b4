"""What an index was built from and with; where its current generation stands."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from shlex import quote

from pydantic import TypeAdapter

from retrievers.metadata import FieldType

FORMAT = 2
_CURRENT = "CURRENT"
_MANIFEST = "manifest.json"
_STAMPS = "stamps.json"
_GENERATION = re.compile(r"g\d+")


class IndexNotFound(FileNotFoundError):  # noqa: N818
    """There is no index at the path."""


class IndexMismatch(ValueError):  # noqa: N818
    """An index that was built with something else than it is opened with."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an index holds and what built it. `corpus_version` changes exactly when the content does."""

    embedder: str
    embedder_fingerprint: str
    dimension: int
    tokenizer: str
    words: tuple[str, ...]
    chunker: str
    corpora: tuple[str, ...]
    corpus_version: str
    n_documents: int
    n_passages: int
    schema: Mapping[str, FieldType] = field(default_factory=dict)
    languages: Mapping[str, int] = field(default_factory=dict)
    # How much the dense side counts in fusion, by the language of the query; measured when the index is built.
    dense_weights: Mapping[str, float] = field(default_factory=dict)
    lexical_engine: str = "rank-bm25"
    n_edits: int = 0  # records deleted or written over in the Chroma folder since it was last filled anew
    format: int = FORMAT

    @property
    def corpus_hash(self) -> str:
        """Another name for the corpus version."""
        return self.corpus_version


def is_address(path: Path | str) -> bool:
    """Tell a Chroma server's address from a folder."""
    return str(path).startswith(("http://", "https://"))


def hash_corpus(documents: Iterable[tuple[str, str]]) -> str:
    """Hash pairs of document id and content hash; their order does not matter."""
    digest = sha256()
    for doc_id, content_hash in sorted(documents):
        digest.update(f"{content_hash} {doc_id}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def find_generation(path: Path) -> Path:
    """Find the folder that readers of the index use now.

    Raises:
        IndexNotFound: There is no index, its build never finished, or the file that names the folder is damaged.
    """
    try:
        name = (path / _CURRENT).read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        raise IndexNotFound(
            f"{path}: no index here; build one with: python -m retrievers build CORPUS --index {quote(str(path))}"
        ) from None
    if not _GENERATION.fullmatch(name):
        raise IndexNotFound(f"{path / _CURRENT}: names no folder of the index: it is damaged; build the index again")
    return path / name


def switch_generation(path: Path, generation: Path) -> None:
    """Make `generation` the one that readers use, atomically."""
    temporary = path / f"{_CURRENT}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(generation.name + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path / _CURRENT)


def read_stamps(path: Path, corpus_version: str) -> dict[str, dict[str, str]]:
    """Read when the files of each corpus were read; nothing when that was for another version of the corpus."""
    try:
        record = json.loads((path / _STAMPS).read_text(encoding="utf-8"))
        return dict(record["files"]) if record["corpus_version"] == corpus_version else {}
    except (FileNotFoundError, KeyError, TypeError, ValueError):  # then every file is read again
        return {}


def write_stamps(path: Path, corpus_version: str, files: Mapping[str, Mapping[str, str]]) -> None:
    """Write when the files of each corpus were read: corpus to file to stamp."""
    temporary = path / f"{_STAMPS}.{os.getpid()}"
    temporary.write_text(json.dumps({"corpus_version": corpus_version, "files": files}, ensure_ascii=False), "utf-8")
    os.replace(temporary, path / _STAMPS)


def read_manifest(generation: Path) -> Manifest:
    """Read a generation's manifest.

    Raises:
        IndexMismatch: Another version of this project wrote it.
    """
    text = (generation / _MANIFEST).read_text(encoding="utf-8", errors="replace")
    return parse_manifest(text, str(generation.parent))


def parse_manifest(text: str, place: str) -> Manifest:
    """Parse a manifest that was written at `place`.

    Raises:
        IndexMismatch: Another version of this project wrote it, or it was edited.
    """
    try:
        record = json.loads(text)
        if record["format"] == FORMAT and set(record) == {item.name for item in fields(Manifest)}:
            return TypeAdapter(Manifest).validate_json(text, strict=True)
    except (KeyError, RecursionError, TypeError, ValueError):
        raise IndexMismatch(f"{place}: the manifest of the index is damaged; build the index again") from None
    raise IndexMismatch(f"{place}: the index has another format; build it again")


def write_manifest(generation: Path, manifest: Manifest) -> None:
    """Write a generation's manifest."""
    (generation / _MANIFEST).write_text(format_manifest(manifest), encoding="utf-8")


def format_manifest(manifest: Manifest) -> str:
    """Format a manifest as JSON."""
    return json.dumps(asdict(manifest), ensure_ascii=False, indent=2) + "\n"
