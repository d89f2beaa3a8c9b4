"""Files and folders to documents: JSONL corpora, Markdown and text."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrievers.records import Document, Scalar

_CORPUS_KEYS = ("id", "title", "text", "metadata")
_TEXT_SUFFIXES = {".md": "markdown", ".markdown": "markdown", ".txt": "text", ".text": "text"}


class CorpusError(ValueError):
    """A corpus that cannot be indexed: `file:line: field: what is wrong`."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A file that was left out, and why."""

    path: str
    reason: str


@dataclass(slots=True)
class Reading:
    """What a pass over a corpus met besides documents; filled while `read_documents` is iterated."""

    skipped: list[Skip] = field(default_factory=list)


def read_documents(corpus: Path, reading: Reading | None = None) -> Iterator[Document]:
    """Read every document of a JSONL corpus, a file, or a folder of them, in a stable order.

    A broken JSONL corpus raises, because its lines are promised to be documents; a file of a folder that cannot be
    read is skipped and reported in `reading`.

    Raises:
        CorpusError: Nothing is there, a line or a field is broken, or two documents share an id.
    """
    reading = reading if reading is not None else Reading()
    seen: dict[str, str] = {}
    for path in list_files(corpus):
        for document, place in _read_file(path, corpus, reading):
            if first := seen.get(document.doc_id):
                raise CorpusError(f"{place}: id: {document.doc_id!r} is already used at {first}")
            seen[document.doc_id] = place
            yield document
    if not seen:
        raise CorpusError(f"{corpus}: no documents found")


def list_files(corpus: Path) -> list[Path]:
    """List the files of a corpus: itself, or everything below a folder but hidden files, sorted.

    Raises:
        CorpusError: The path does not exist.
    """
    if corpus.is_file():
        return [corpus]
    if not corpus.is_dir():
        raise CorpusError(f"{corpus}: no such file or folder")
    below = (path for path in corpus.rglob("*") if path.is_file())
    return sorted(path for path in below if not any(part.startswith(".") for part in path.relative_to(corpus).parts))


def hash_document(document: Document) -> str:
    """Hash all that indexing a document depends on: id, title, text, metadata."""
    content = [document.doc_id, document.title, document.text, sorted(document.metadata.items())]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def _read_file(path: Path, corpus: Path, reading: Reading) -> Iterator[tuple[Document, str]]:
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        yield from _read_jsonl(path)
    elif suffix in _TEXT_SUFFIXES:
        document = _read_text(path, corpus, reading)
        if document is not None:
            yield document, str(path)
    else:
        reading.skipped.append(Skip(str(path), f"files of type {suffix or 'none'} are not read"))


def _read_jsonl(path: Path) -> Iterator[tuple[Document, str]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            place = f"{path}:{number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise CorpusError(f"{place}: not UTF-8 (byte {error.start} of the line)") from None
            if line.strip():
                yield parse_line(line, place), place


def parse_line(line: str, place: str) -> Document:
    """Parse one line of a JSONL corpus.

    Raises:
        CorpusError: The line is not JSON, or a key is missing, unknown or of the wrong type.
    """
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{place}: not JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(record, dict):
        raise CorpusError(f"{place}: expected an object with {', '.join(_CORPUS_KEYS)}")
    if unknown := sorted(set(record) - set(_CORPUS_KEYS)):
        raise CorpusError(f"{place}: {unknown[0]}: unknown key; known are {', '.join(_CORPUS_KEYS)}")
    doc_id, title, text = (_take_string(record, key, place) for key in _CORPUS_KEYS[:3])
    if not doc_id.strip():
        raise CorpusError(f"{place}: id: is missing or empty")
    if not text.strip() and not title.strip():
        raise CorpusError(f"{place}: text: is missing or empty")
    return Document(doc_id, title.strip(), text, _take_metadata(record.get("metadata"), place))


def _take_string(record: Mapping[str, Any], key: str, place: str) -> str:
    value = record.get(key, "")
    if not isinstance(value, str):
        raise CorpusError(f"{place}: {key}: expected a string, got {_name_type(value)}")
    return value


def _take_metadata(metadata: object, place: str) -> dict[str, Scalar]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise CorpusError(f"{place}: metadata: expected an object, got {_name_type(metadata)}")
    for key, value in metadata.items():
        if not isinstance(value, str | int | float | bool | None):
            raise CorpusError(f"{place}: metadata.{key}: expected a string, number or boolean, got {_name_type(value)}")
    return {key: value for key, value in metadata.items() if value is not None}


def _name_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _read_text(path: Path, corpus: Path, reading: Reading) -> Document | None:
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        reading.skipped.append(Skip(str(path), "not UTF-8 text"))
        return None
    if not text.strip():
        reading.skipped.append(Skip(str(path), "the file is empty"))
        return None
    name = path.name if path == corpus else path.relative_to(corpus).as_posix()
    kind = _TEXT_SUFFIXES[path.suffix.lower()]
    return Document(name, _find_title(text, kind) or path.stem, text, {"source": name, "type": kind})


def _find_title(text: str, kind: str) -> str | None:
    if kind != "markdown":
        return None
    headings = (line.removeprefix("# ").strip() for line in text.splitlines() if line.startswith("# "))
    return next(headings, None)
