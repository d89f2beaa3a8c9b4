"""A corpus to an index: read what changed, write a new generation beside the old one, switch."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Concatenate, ParamSpec, TypeVar

from retrievers.balance import measure_dense_weights
from retrievers.dense import DISK_ERRORS, ChromaFailure, ChromaFolder, DenseHome, is_disk_error
from retrievers.documents import (
    READER_VERSION,
    CorpusError,
    Reading,
    Skip,
    hash_document,
    list_files,
    name_corpus,
    name_source,
    read_file,
)
from retrievers.embedders import MULTILINGUAL, Embedder, load_embedder, read_max_tokens
from retrievers.filling import Progress
from retrievers.generation import (
    Entry,
    Generation,
    GenerationWriter,
    Recipe,
    describe,
    identify_plan,
    prepare_folder,
    read_plan,
)
from retrievers.index import locate, locate_target
from retrievers.languages import detect_language
from retrievers.locks import LOCK, drop_others, hold_lock, make_leasable
from retrievers.manifest import (
    IndexMismatch,
    IndexNotFound,
    Manifest,
    find_generation,
    hash_corpus,
    read_stamps,
    switch_generation,
    write_manifest,
    write_stamps,
)
from retrievers.metadata import FieldType, infer_schema
from retrievers.passages import Chunker, parse_chunker
from retrievers.records import Document
from retrievers.store import NotInIndex, Store, StoredDocument
from retrievers.tables import TABLES, copy_tables, list_tables, write_tables
from retrievers.tokenizer import load_tokenizer
from retrievers.vectors import KnownVectors, VectorFile

# A file that changed within this time before it was read may change again without a new time stamp.
_STAMP_RESOLUTION_S = 2.0
_FRESH = "fresh"
# Chroma's collection is edited in place of being filled anew while few of its records change.
_EDIT_SHARE = 0.3
_TOTAL_EDIT_SHARE = 0.5

P = ParamSpec("P")
R = TypeVar("R")


class BuildError(ValueError):
    """A build that cannot do what it was asked to."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did. `kept` counts documents of other corpora that stay in the index."""

    path: Path | str
    manifest: Manifest
    unchanged: bool
    n_embedded: int
    skipped: tuple[Skip, ...]
    kept: int
    seconds: float


def build_index(
    corpus: Path,
    path: Path | str,
    embedder: str | Embedder = MULTILINGUAL,
    *,
    chunker: Chunker | None = None,
    words: Iterable[str] = (),
    prune: bool = False,
    progress: Progress | None = None,
) -> BuildReport:
    """Build the index of a corpus at `path`, or bring the one that is there up to date.

    Only documents that changed are read, split and embedded again; what vanished from the corpus leaves the index.
    Documents that were indexed from other corpora stay, unless `prune` drops them. A build that was killed goes on
    where it was.

    Args:
        corpus: A JSONL corpus, a file, or a folder of them.
        path: The index folder, made when missing; or the address of a Chroma server, `http://HOST:PORT/COLLECTION`.
        embedder: A name for `load_embedder`, or an embedder.
        chunker: How documents are split; its size is cut to what the embedder sees.
        words: Terms that the Chinese segmenter must keep whole.
        prune: Drop the documents of other corpora.
        progress: Told how far the build is.

    Raises:
        CorpusError: The corpus is missing, empty or broken; nothing was written.
        EmbedderError: The embedder cannot be loaded; nothing was written.
        BuildError: Documents of other corpora cannot be taken over, because they would be split differently; or the
            index can't be written.
        IndexBusy: Another process is writing this index.
        FileExistsError: `path` is a folder of something else.
        CollectionTaken: `path` is the address of a collection of something else.
    """
    started = time.monotonic()
    progress = progress or (lambda stage, done, total: None)
    corpus, target = Path(corpus), path
    path, home, is_there = locate_target(path)
    _check_target(path)
    model = load_embedder(embedder) if isinstance(embedder, str) else embedder
    recipe = Recipe(model, _fit(chunker or Chunker(), model), load_tokenizer(tuple(words)))
    reading = Reading()
    with ExitStack() as opened:
        before = _read_current(path)
        old = _open_generation(path, home) if is_there else None
        if old is not None:
            opened.enter_context(old)
        stamps = read_stamps(path, old.manifest.corpus_version) if old is not None else {}
        entries, files = _read_corpus(corpus, recipe, old, stamps.get(name_corpus(corpus), {}), reading, progress)
        kept = _keep_others(corpus, entries, recipe, old) if old is not None and not prune else []
        opened.enter_context(hold_lock(path))
        if _read_current(path) != before:
            raise BuildError(f"{path}: another build finished while the corpus was read; repeat the command")
        stamps = {**stamps, name_corpus(corpus): files}
        manifest, n_embedded = write_index(
            path, entries + kept, recipe, old, progress, stamps=stamps, read={name_corpus(corpus): reading}, home=home
        )
    unchanged = old is not None and manifest == old.manifest
    seconds = time.monotonic() - started
    return BuildReport(target, manifest, unchanged, n_embedded, tuple(reading.skipped), len(kept), seconds)


def delete_documents(
    path: Path | str, doc_ids: Iterable[str], embedder: Embedder | None = None, progress: Progress | None = None
) -> Manifest:
    """Delete documents from an index; a later build brings back those that its corpus still holds.

    Raises:
        IndexNotFound: There is no index.
        IndexMismatch: Another version of this project wrote it.
        NotInIndex: The index has no such document; nothing was deleted.
        BuildError: No document would be left.
        IndexBusy: Another process is writing the index.
    """
    gone = set(doc_ids)
    folder, home = locate(path)
    find_generation(folder)  # where there is no index, no lock file is made
    with hold_lock(folder), Generation(find_generation(folder), home) as old:
        if unknown := sorted(doc_id for doc_id in gone if old.store.find_document(doc_id) is None):
            raise NotInIndex(f"no document {unknown[0]!r} in the index")
        manifest = old.manifest
        recipe = Recipe(
            embedder or load_embedder(manifest.embedder),
            parse_chunker(manifest.chunker),
            load_tokenizer(manifest.words),
        )
        entries = [Entry(stored) for stored in old.store.documents() if stored.doc_id not in gone]
        if not entries:
            raise BuildError(f"{path}: no document would be left; remove the folder instead")
        # The files that held them must be read again by the next build, so no stamps are kept.
        return write_index(folder, entries, recipe, old, progress or (lambda *_: None), stamps={}, home=home)[0]


def _in_one_error(write: Callable[Concatenate[Path, P], R]) -> Callable[Concatenate[Path, P], R]:
    """Say in one way what the parts of an index raise where it can't be written, as on a full disk; a bug goes up."""

    @wraps(write)
    def guard(path: Path, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return write(path, *args, **kwargs)
        except (*DISK_ERRORS, OSError) as error:
            if isinstance(error, OSError) and (error.errno is None or error.filename is not None):
                raise  # one of ours, or it says which file
            if not isinstance(error, OSError) and not is_disk_error(error):
                raise  # a wrong call
            reason = error.strerror if isinstance(error, OSError) else error
            remedy = "repeat the command to go on"
            if isinstance(error, ChromaFailure):
                remedy += "; if that fails too: python -m retrievers doctor --fix --index …"
            raise BuildError(f"{path}: the index can't be written: {reason}; {remedy}") from error

    return guard


@_in_one_error
def write_index(
    path: Path,
    entries: Sequence[Entry],
    recipe: Recipe,
    old: Generation | None,
    progress: Progress,
    *,
    stamps: Mapping[str, Mapping[str, str]],
    read: Mapping[str, Reading] = MappingProxyType({}),
    home: DenseHome | None = None,
    anew: bool = False,
) -> tuple[Manifest, int]:
    """Write the generation that holds these documents and make it current; the lock is held by the caller.

    `old` is closed when a new generation replaces it.

    Args:
        path: The index folder.
        entries: All documents that the index is to hold.
        recipe: What turns documents into an index.
        old: The current generation.
        progress: Told how far it is.
        stamps: When the files of each corpus were read.
        read: What was just read, by corpus.
        home: Where the Chroma collections are, when not in the index folder.
        anew: Write even when nothing changed, fill Chroma anew and cut all tokens again.

    Returns:
        The manifest, the old one when nothing changed; and how many passages were embedded.

    Raises:
        BuildError: The disk is full, or can't be written for another reason.
    """
    schema = infer_schema(entry.stored.raw for entry in entries)
    version = hash_corpus((entry.stored.doc_id, entry.stored.hash) for entry in entries)
    corpora = tuple(dict.fromkeys(entry.stored.corpus for entry in entries))
    stamps = {corpus: files for corpus, files in stamps.items() if corpus in corpora}
    if old is not None and not anew and _is_built(old.manifest, recipe, version, corpora):
        write_stamps(path, version, stamps)
        return old.manifest, 0
    plan = identify_plan(entries, recipe, schema, old)
    generation = _find_folder(path, plan)
    dimension = _measure_dimension(recipe.embedder, old)
    home = home or ChromaFolder()
    edit_chroma = home.can_copy and not anew and old is not None and _may_edit(entries, old, recipe, schema)
    prepare_folder(generation, home, plan, recipe.embedder, dimension, old, edit_chroma)
    with ExitStack() as opened:
        known = _collect_vectors(path, generation, recipe, old, opened)
        writer = opened.enter_context(
            closing(GenerationWriter(generation, home, recipe, schema, dimension, old, known, len(entries), anew))
        )
        writer.write(entries, progress)
        engine, n_passages = writer.finish(progress)
    manifest = describe(entries, recipe, schema, version, dimension, n_passages)
    edits = writer.n_edits + (old.manifest.n_edits if old is not None and writer.n_edits else 0)
    manifest = replace(manifest, lexical_engine=engine, n_edits=edits)
    with closing(Store(generation / "store.sqlite")) as store:
        vectors = VectorFile(generation / "vectors.f32", dimension)
        weights = measure_dense_weights(store, vectors, recipe.embedder, recipe.tokenizer)
    manifest = replace(manifest, dense_weights=weights)
    _write_tables(generation, entries, read, old)
    write_manifest(generation, manifest)
    make_leasable(generation)
    home.publish(generation, manifest)
    switch_generation(path, generation)
    write_stamps(path, version, stamps)
    if old is not None:
        old.close()  # gives its lease back, so that it can go
    drop_others(path, generation)
    return manifest, writer.n_embedded


def _write_tables(
    generation: Path, entries: Sequence[Entry], read: Mapping[str, Reading], old: Generation | None
) -> None:
    """Write the tables that were read, and take over those of files that were not read again."""
    path = generation / TABLES
    path.unlink(missing_ok=True)
    files = {(entry.stored.corpus, entry.stored.source) for entry in entries}
    files -= {(corpus, source) for corpus, reading in read.items() for source in reading.sources}
    doc_ids = {"", *(entry.stored.doc_id for entry in entries)}
    before = list_tables(old.folder / TABLES) if old is not None else []
    kept = [info for info in before if (info.corpus, info.source) in files and info.doc_id in doc_ids]
    if old is not None and kept:
        copy_tables(old.folder / TABLES, path, kept)
    if tables := [table for reading in read.values() for table in reading.tables]:
        write_tables(path, tables)


def _read_corpus(
    corpus: Path,
    recipe: Recipe,
    old: Generation | None,
    known: Mapping[str, str],
    reading: Reading,
    progress: Progress,
) -> tuple[list[Entry], dict[str, str]]:
    """Read the files whose stamp is not the known one; take the others' documents over from `old`."""
    name = name_corpus(corpus)
    reusable = old if old is not None and _splits_alike(old.manifest, recipe) else None
    entries: list[Entry] = []
    stamps: dict[str, str] = {}
    seen: dict[str, str] = {}
    files = list_files(corpus)
    for number, path in enumerate(files, start=1):
        source = name_source(path, corpus)
        stamp = _stamp(path)
        if reusable is not None and not stamp.startswith(_FRESH) and known.get(source) == stamp:
            taken = reusable.store.documents_from(name, source)
            found: Iterator[tuple[Entry, str]] = ((Entry(stored), str(path)) for stored in taken)
        else:
            found = _read_entries(path, corpus, source, reusable, reading)
        for n, (entry, place) in enumerate(found, start=1):
            if n % 1_000 == 0:
                progress(f"reading {path.name}", n, None)
            if first := seen.get(entry.stored.doc_id):
                raise CorpusError(f"{place}: id: {entry.stored.doc_id!r} is already used at {first}")
            seen[entry.stored.doc_id] = place
            entries.append(entry)
        stamps[source] = stamp
        progress("reading files", number, len(files))
    if not entries:
        raise CorpusError(f"{corpus}: no documents found{_name_skips(reading)}")
    return entries, stamps


def _read_entries(
    path: Path, corpus: Path, source: str, reusable: Generation | None, reading: Reading
) -> Iterator[tuple[Entry, str]]:
    name = name_corpus(corpus)
    for document, place in read_file(path, corpus, reading):
        yield _make_entry(document, name, source, reusable), place


def _splits_alike(manifest: Manifest, recipe: Recipe) -> bool:
    """Tell whether an index's documents would be split the same now; the embedder counts the tokens."""
    same_embedder = manifest.embedder_fingerprint == recipe.embedder.fingerprint
    return same_embedder and manifest.chunker == recipe.chunker.fingerprint


def _make_entry(document: Document, corpus: str, source: str, reusable: Generation | None) -> Entry:
    content_hash = hash_document(document)
    raw = {"lang": detect_language(f"{document.title}\n{document.text}"), **document.metadata}
    stored = StoredDocument(document.doc_id, document.title, content_hash, raw, {}, corpus, source)
    before = reusable.store.find_document(document.doc_id) if reusable is not None else None
    return Entry(stored, None if before is not None and before.hash == content_hash else document)


def _keep_others(corpus: Path, entries: Sequence[Entry], recipe: Recipe, old: Generation) -> list[Entry]:
    """Take over the documents that other corpora brought in; an id that the new corpus has too is the new one's."""
    taken = {entry.stored.doc_id for entry in entries}
    others = [stored for stored in old.store.documents_beside(name_corpus(corpus)) if stored.doc_id not in taken]
    if others and old.manifest.chunker != recipe.chunker.fingerprint:
        what = f"the index also holds {len(others)} documents of {others[0].corpus}, which can't be split anew here"
        if replace(parse_chunker(old.manifest.chunker), version=recipe.chunker.version) != recipe.chunker:
            raise BuildError(f"{what}; keep the passage size ({old.manifest.chunker}), or drop them with --prune")
        raise BuildError(f"{what}, and were split by an earlier version; drop them with --prune, then build them again")
    return [Entry(stored) for stored in others]


def _name_skips(reading: Reading) -> str:
    if not reading.skipped:
        return ""
    first = reading.skipped[0]
    return f" ({len(reading.skipped)} files skipped, the first: {first.path}: {first.reason})"


def read_file_stamps(corpus: Path) -> dict[str, str]:
    """Read the present stamps of a corpus's files."""
    return {name_source(path, corpus): _stamp(path) for path in list_files(corpus)}


def _stamp(path: Path) -> str:
    """Identify a state of a file, and the reader; `fresh` when the file may change again without a new time."""
    status = path.stat()
    fresh = time.time() - status.st_mtime < _STAMP_RESOLUTION_S
    return f"{_FRESH if fresh else READER_VERSION} {status.st_size} {status.st_mtime_ns} {status.st_ino}"


def _fit(chunker: Chunker, embedder: Embedder) -> Chunker:
    """Cut the passage size to what the embedder sees, less a tenth for the title before the text.

    Raises:
        BuildError: It sees too little.
    """
    limit = read_max_tokens(embedder)
    if limit is None or chunker.size <= 0.9 * limit:
        return chunker
    size = int(0.9 * limit)
    try:
        return Chunker(size, min(chunker.overlap, size // 5))
    except ValueError as error:
        reason = f"embedder {embedder.name!r} sees {limit} tokens of a text, a tenth of them for the title"
        raise BuildError(f"{reason}: {error}; choose another embedder") from None


def _check_target(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path}: is a file; name a folder for the index")
    if path.is_dir() and any(path.iterdir()) and not (path / LOCK).exists():
        raise FileExistsError(f"{path}: the folder holds something else than an index; name an empty or new one")


def _read_current(path: Path) -> str | None:
    try:
        return find_generation(path).name
    except IndexNotFound:
        return None


def _open_generation(path: Path, home: DenseHome | None) -> Generation | None:
    """Open the current generation; None when there is none, or one that this version cannot read."""
    try:
        return Generation(find_generation(path), home)
    except (IndexNotFound, IndexMismatch, FileNotFoundError):
        return None


def _is_built(manifest: Manifest, recipe: Recipe, version: str, corpora: Sequence[str]) -> bool:
    """Tell whether building anew would give the index that this manifest describes."""
    return (
        manifest.corpus_version == version
        and manifest.corpora == tuple(corpora)
        and manifest.embedder == recipe.embedder.name
        and manifest.embedder_fingerprint == recipe.embedder.fingerprint
        and manifest.chunker == recipe.chunker.fingerprint
        and manifest.tokenizer == recipe.tokenizer.fingerprint
    )


def _has_same_vectors(old: Generation | None, recipe: Recipe) -> bool:
    return old is not None and old.manifest.embedder_fingerprint == recipe.embedder.fingerprint


def _may_edit(entries: Sequence[Entry], old: Generation, recipe: Recipe, schema: dict[str, FieldType]) -> bool:
    """Tell whether so little changed that Chroma's collection is better edited than filled anew."""
    manifest = old.manifest
    if not _has_same_vectors(old, recipe) or manifest.schema != schema:
        return False
    now = {entry.stored.doc_id for entry in entries}
    n_changed = sum(entry.document is not None for entry in entries)
    n_changed += sum(stored.doc_id not in now for stored in old.store.documents())
    edits = n_changed * manifest.n_passages / max(1, manifest.n_documents)
    return edits <= _EDIT_SHARE * manifest.n_passages and (
        manifest.n_edits + edits <= _TOTAL_EDIT_SHARE * manifest.n_passages
    )


def _find_folder(path: Path, plan: str) -> Path:
    """Go on with the folder that a killed build of the same plan left; else take the next number."""
    folders = sorted(path.glob("g[0-9]*"))
    for folder in reversed(folders):
        if read_plan(folder) == plan:
            return folder
    number = max((int(folder.name.removeprefix("g")) for folder in folders), default=0)
    return path / f"g{number + 1:06d}"


def _collect_vectors(
    path: Path, generation: Path, recipe: Recipe, old: Generation | None, opened: ExitStack
) -> KnownVectors:
    """Gather the vectors of the old generation and of killed builds, where the embedder is the same."""
    known = KnownVectors()
    if old is not None and _has_same_vectors(old, recipe):
        known.add(old.store, old.vectors)
    for folder in sorted(path.glob("g[0-9]*")):
        current = old is not None and folder == old.folder
        parts = (folder / "store.sqlite", folder / "vectors.f32")  # a killed writer may have made the first alone
        if folder == generation or current or not all(part.exists() for part in parts):
            continue
        # A killed writer may have left a transaction that only a writable connection rolls back.
        finished = (folder / "manifest.json").exists()
        store = opened.enter_context(closing(Store(folder / "store.sqlite", writable=not finished)))
        dimension = store.read_note("dimension")
        if dimension and store.read_note("embedder") == recipe.embedder.fingerprint:
            known.add(store, VectorFile(folder / "vectors.f32", int(dimension)))
    return known


def _measure_dimension(embedder: Embedder, old: Generation | None) -> int:
    if old is not None and old.manifest.embedder_fingerprint == embedder.fingerprint:
        return old.manifest.dimension
    return int(embedder.embed_queries(["dimension"]).shape[1])


__all__ = ["BuildError", "BuildReport", "CorpusError", "Progress", "build_index", "write_index"]
