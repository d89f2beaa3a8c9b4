"""What an index was built from and with; where its current generation stands."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path

FORMAT = 1
_CURRENT = "CURRENT"
_MANIFEST = "manifest.json"


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
    corpus: str
    corpus_version: str
    n_documents: int
    n_passages: int
    format: int = FORMAT


def hash_corpus(documents: Iterable[tuple[str, str]]) -> str:
    """Hash pairs of document id and content hash; their order does not matter."""
    digest = sha256()
    for doc_id, content_hash in sorted(documents):
        digest.update(f"{content_hash} {doc_id}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def find_generation(path: Path) -> Path:
    """Find the folder that readers of the index use now.

    Raises:
        IndexNotFound: There is no index, or its build never finished.
    """
    try:
        name = (path / _CURRENT).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        raise IndexNotFound(
            f"{path}: no index here; build one with: python -m retrievers build CORPUS --index {path}"
        ) from None
    return path / name


def switch_generation(path: Path, generation: Path) -> None:
    """Make `generation` the one that readers use, atomically."""
    temporary = path / f"{_CURRENT}.{os.getpid()}"
    temporary.write_text(generation.name + "\n", encoding="utf-8")
    os.replace(temporary, path / _CURRENT)


def read_manifest(generation: Path) -> Manifest:
    """Read a generation's manifest.

    Raises:
        IndexMismatch: Another version of this project wrote it.
    """
    record = json.loads((generation / _MANIFEST).read_text(encoding="utf-8"))
    if record.get("format") != FORMAT or set(record) != {field.name for field in fields(Manifest)}:
        raise IndexMismatch(f"{generation.parent}: the index has another format; build it again")
    return Manifest(**{**record, "words": tuple(record["words"])})


def write_manifest(generation: Path, manifest: Manifest) -> None:
    """Write a generation's manifest."""
    text = json.dumps(asdict(manifest), ensure_ascii=False, indent=2)
    (generation / _MANIFEST).write_text(text + "\n", encoding="utf-8")
