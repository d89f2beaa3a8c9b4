"""Files and folders to documents: JSONL corpora with file:line errors, other formats by their readers."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from retrievers.locks import LOCK
from retrievers.readers.markdown import find_tables
from retrievers.readers.parsed import Parsed, Table, UnreadableFile
from retrievers.readers.text import read_text
from retrievers.records import Document, Scalar
from retrievers.tables import SourceTable

READER_VERSION = "3"

_CORPUS_KEYS = ("id", "title", "text", "metadata")
_READERS = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".text": "text",
    ".html": "html",
    ".htm": "html",
    ".pdf": "pdf",
    ".docx": "docx",
    ".csv": "csv",
    ".tsv": "csv",
    ".xlsx": "xlsx",
}
_MAX_LINE_BYTES = 64_000_000
_MAX_TEXT = 20_000_000
_MAX_TITLE = 5_000  # it is repeated before every passage
# What Chroma does not take as a metadata key, and numbers that filters cannot compare.
_RESERVED = "chroma:document"
_MAX_NUMBER = 10**300
_MAX_FILE_BYTES = 500_000_000


class CorpusError(ValueError):
    """A corpus that cannot be indexed: `file:line: field: what is wrong`."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A file that was left out, and why."""

    path: str
    reason: str


@dataclass(slots=True)
class Reading:
    """What a pass over a corpus met besides documents; filled while `read_documents` is iterated.

    `sources` are the files of the corpus that were read, by the name that their tables have too.
    """

    skipped: list[Skip] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    tables: list[SourceTable] = field(default_factory=list)


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
        for document, place in read_file(path, corpus, reading):
            if first := seen.get(document.doc_id):
                raise CorpusError(f"{place}: id: {document.doc_id!r} is already used at {first}")
            seen[document.doc_id] = place
            yield document
    if not seen:
        raise CorpusError(f"{corpus}: no documents found")


def list_files(corpus: Path) -> list[Path]:
    """List the files of a corpus: itself, or everything below a folder but hidden files and indexes, sorted.

    Raises:
        CorpusError: The path does not exist.
    """
    if corpus.is_file():
        return [corpus]
    if not corpus.is_dir():
        raise CorpusError(f"{corpus}: no such file or folder")
    files: list[Path] = []
    for folder, subfolders, names in os.walk(corpus):
        if (Path(folder) / LOCK).exists():  # an index that lies inside its corpus
            subfolders.clear()
            continue
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        files.extend(Path(folder) / name for name in names if not name.startswith((".", "~$")))
    return sorted(path for path in files if path.is_file())


def hash_document(document: Document) -> str:
    """Hash all that indexing a document depends on: id, title, text, metadata."""
    content = [document.doc_id, document.title, document.text, sorted(document.metadata.items())]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode("utf-8")).hexdigest()


def read_file(path: Path, corpus: Path, reading: Reading) -> Iterator[tuple[Document, str]]:
    """Read the documents of one file of a corpus, each with its place; what cannot be read is noted in `reading`.

    Raises:
        CorpusError: A line of a JSONL corpus is broken.
    """
    source = name_source(path, corpus)
    reading.sources.add(source)
    is_jsonl = path.suffix.lower() == ".jsonl"
    for document, place in _read_jsonl(path) if is_jsonl else _read_parsed(path, corpus, reading):
        for table in find_tables(document.text, document.title):
            reading.tables.append(SourceTable(name_corpus(corpus), source, document.doc_id, table))
        yield document, place


def name_source(path: Path, corpus: Path) -> str:
    """Name a file within its corpus; a corpus of one file has no name for it."""
    return "" if path == corpus else clean(path.relative_to(corpus).as_posix())


def name_corpus(corpus: Path) -> str:
    """Name a corpus in an index."""
    return clean(str(corpus.resolve()))


def _read_parsed(path: Path, corpus: Path, reading: Reading) -> Iterator[tuple[Document, str]]:
    """Read a file by its format."""
    source = name_source(path, corpus)
    name = source or clean(path.name)
    try:
        parsed, tables = _parse_file(path, _READERS.get(path.suffix.lower()))
    except (UnreadableFile, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reading.skipped.append(Skip(str(path), reason))
        return
    reading.tables.extend(SourceTable(name_corpus(corpus), source, "", table) for table in tables)
    for part in parsed:
        if part.text.strip():
            doc_id = f"{name}/{part.key}" if part.key else name
            title = (part.title or clean(path.stem))[:_MAX_TITLE]
            metadata = {key: value for key, value in part.metadata.items() if not _find_fault(key, value)}
            yield Document(doc_id, title, part.text, {"source": name, **metadata}), str(path)
        else:
            reading.skipped.append(Skip(str(path), "has no text"))


def _parse_file(path: Path, kind: str | None) -> tuple[list[Parsed], list[Table]]:
    """Read a file by its format; the readers' libraries are imported when the first such file is met."""
    if kind is None:
        raise UnreadableFile(f"files of type {path.suffix or 'none'} are not read ({' '.join(_READERS)} .jsonl are)")
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise UnreadableFile(f"has {path.stat().st_size:,} bytes (the limit is {_MAX_FILE_BYTES:,})")
    raw = path.read_bytes()
    if not raw.strip():
        raise UnreadableFile("the file is empty")
    if kind == "csv":
        return import_module("retrievers.readers.tables").read_csv(raw, clean(path.stem))
    if kind == "xlsx":
        return import_module("retrievers.readers.tables").read_xlsx(raw, clean(path.stem))
    if kind == "pdf":
        return [import_module("retrievers.readers.pdf").read_pdf(raw)], []
    if kind == "docx":
        return [import_module("retrievers.readers.word").read_docx(raw)], []
    if kind == "html":
        return [import_module("retrievers.readers.html").read_html(raw)], []
    return [read_text(raw, markdown=kind == "markdown")], []


def _read_jsonl(path: Path) -> Iterator[tuple[Document, str]]:
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(_MAX_LINE_BYTES):
            number += 1
            place = f"{path}:{number}"
            if len(raw) == _MAX_LINE_BYTES:
                raise CorpusError(f"{place}: the line has more than {_MAX_LINE_BYTES:,} bytes; split the document")
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
    except (RecursionError, ValueError) as error:
        raise CorpusError(f"{place}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise CorpusError(f"{place}: expected an object with {', '.join(_CORPUS_KEYS)}")
    if unknown := sorted(set(record) - set(_CORPUS_KEYS)):
        raise CorpusError(f"{place}: {unknown[0]}: unknown key; known are {', '.join(_CORPUS_KEYS)}")
    doc_id, title, text = (_take_string(record, key, place) for key in _CORPUS_KEYS[:3])
    if not doc_id.strip():
        raise CorpusError(f"{place}: id: is missing or empty")
    if not text.strip() and not title.strip():
        raise CorpusError(f"{place}: text: is missing or empty")
    bounds = (("text", text, _MAX_TEXT, "split the document"), ("title", title, _MAX_TITLE, "shorten it"))
    for key, value, limit, remedy in bounds:
        if len(value) > limit:
            raise CorpusError(f"{place}: {key}: has {len(value):,} characters (the limit is {limit:,}); {remedy}")
    return Document(doc_id, title.strip(), text, _take_metadata(record.get("metadata"), place))


def _take_string(record: Mapping[str, Any], key: str, place: str) -> str:
    value = record.get(key, "")
    if not isinstance(value, str):
        raise CorpusError(f"{place}: {key}: expected a string, got {_name_type(value)}")
    return clean(value)


def _take_metadata(metadata: object, place: str) -> dict[str, Scalar]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise CorpusError(f"{place}: metadata: expected an object, got {_name_type(metadata)}")
    for key, value in metadata.items():
        if not isinstance(value, str | int | float | bool | None):
            raise CorpusError(f"{place}: metadata.{key}: expected a string, number or boolean, got {_name_type(value)}")
        if fault := _find_fault(key, value):
            raise CorpusError(f"{place}: metadata{fault}")
    scalars = {clean(key): value for key, value in metadata.items() if value is not None}
    return {key: clean(value) if isinstance(value, str) else value for key, value in scalars.items()}


def _find_fault(key: str, value: Scalar | None) -> str:
    """Say what keeps a value of metadata from being filtered by; nothing if nothing does."""
    if not key.strip() or key.startswith(("$", "#")) or key == _RESERVED:
        return f": {key!r} can't be a key: empty, reserved, or begins with $ or #"
    if isinstance(value, float) and not math.isfinite(value):
        return f".{key}: expected a finite number, got {value}"
    if isinstance(value, int | float) and abs(value) > _MAX_NUMBER:
        return f".{key}: expected a number below 1e300; quote it if it is an id"
    return ""


def clean(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON and names of files can hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _name_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
