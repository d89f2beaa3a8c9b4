"""Is an index whole, and does it fit its corpus: checks that name what is wrong and how to mend it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrievers.build import Progress, read_file_stamps, write_index
from retrievers.dense import CollectionDamaged
from retrievers.embedders import Embedder, EmbedderError, load_embedder
from retrievers.generation import Entry, Generation, Recipe, count_tolerated, find_unreachable, name_outdated
from retrievers.index import locate
from retrievers.lexical import TokenFile
from retrievers.locks import hold_lock
from retrievers.manifest import find_generation, read_stamps
from retrievers.metadata import classify
from retrievers.passages import parse_chunker
from retrievers.tokenizer import load_tokenizer

_N_PROBES = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    ok: bool
    message: str


def examine(path: Path | str, embedder: Embedder | None = None) -> list[Finding]:
    """Run every check on the current generation of an index; nothing is written.

    Raises:
        IndexNotFound: There is no index.
        IndexMismatch: Another version of this project wrote it.
    """
    folder, home = locate(path)
    with Generation(find_generation(folder), home) as generation:
        return [
            *_check_parity(generation),
            _check_vectors(generation),
            _check_embedder(generation, embedder),
            _check_version(generation),
            *_check_types(generation),
            *_check_languages(generation),
            *_check_stale(folder, generation),
            *_check_leftovers(folder, generation),
        ]


def repair(path: Path | str, progress: Progress, embedder: Embedder | None = None) -> None:
    """Write the index anew from its own documents: Chroma filled again, tokens cut again, broken vectors made again.

    Raises:
        IndexNotFound: There is no index.
        IndexBusy: Another process is writing it.
        EmbedderError: Its embedder cannot be loaded.
    """
    folder, home = locate(path)
    find_generation(folder)  # where there is no index, no lock file is made
    with hold_lock(folder), Generation(find_generation(folder), home) as generation:
        manifest = generation.manifest
        model = embedder or load_embedder(manifest.embedder)
        recipe = Recipe(model, parse_chunker(manifest.chunker), load_tokenizer(manifest.words))
        entries = [Entry(stored) for stored in generation.store.documents()]
        stamps = read_stamps(folder, manifest.corpus_version)
        write_index(folder, entries, recipe, generation, progress, stamps=stamps, home=home, anew=True)


def measure_sizes(path: Path) -> dict[str, int]:
    """Measure the bytes on disk of each part of the current generation, and of the rest of the folder."""
    generation = find_generation(path)
    sizes: Counter[str] = Counter()
    for file in path.rglob("*"):
        if file.is_file():
            inside = file.is_relative_to(generation)
            part = file.relative_to(generation).parts[0] if inside else "outside the current generation"
            sizes[part] += file.stat().st_size
    return dict(sorted(sizes.items()))


def _check_parity(generation: Generation) -> Iterator[Finding]:
    store, n = generation.store, generation.manifest.n_passages
    n_tokens = len(TokenFile(generation.folder / "lexical"))
    counts = {"store": store.n_passages, "vectors": len(generation.vectors), "BM25": n_tokens}
    wrong = [f"{name} has {count}" for name, count in counts.items() if count != n]
    yield Finding("rows", not wrong, "; ".join(wrong) + f" of {n} passages" if wrong else f"{n} passages on every side")
    try:
        yield from _check_collection(generation)
    except CollectionDamaged as error:
        yield Finding("ids", False, str(error))


def _check_collection(generation: Generation) -> Iterator[Finding]:
    store, n = generation.store, generation.manifest.n_passages
    with closing(generation.open_dense()) as dense:
        expected = {passage.passage_id for passage in store.iterate_passages()}
        found = set(dense.ids())
        missing, extra = expected - found, found - expected
        message = f"{len(missing)} passages missing from Chroma, {len(extra)} there that should not be"
        yield Finding("ids", not missing and not extra, message if missing or extra else "Chroma holds the same ids")
        lost = find_unreachable(dense, store, generation.vectors, _N_PROBES)
        sampled = min(_N_PROBES, n)
        message = f"{len(lost)} of {sampled} sampled passages are not found by their own vectors, such as {lost[:1]}"
        yield Finding(
            "reachability",
            len(lost) <= count_tolerated(n, sampled),
            message if lost else f"{sampled} sampled passages are found",
        )


def _check_vectors(generation: Generation) -> Finding:
    bad = 0
    for start in range(0, len(generation.vectors), 10_000):
        rows = generation.vectors.read(np.arange(start, min(start + 10_000, len(generation.vectors))))
        lengths = np.linalg.norm(rows, axis=1)
        bad += int(np.count_nonzero(~np.isfinite(lengths) | (np.abs(lengths - 1) > 1e-3)))
    return Finding("vectors", not bad, f"{bad} vectors are not of length 1" if bad else "every vector has length 1")


def _check_embedder(generation: Generation, embedder: Embedder | None) -> Finding:
    manifest = generation.manifest
    try:
        model = embedder or load_embedder(manifest.embedder)
    except EmbedderError as error:
        return Finding("embedder", False, str(error))
    if model.fingerprint != manifest.embedder_fingerprint:
        message = f"{manifest.embedder!r} is another model now ({model.fingerprint}); build the index again"
        return Finding("embedder", False, message)
    return Finding("embedder", True, f"{manifest.embedder!r} is the one that built the index")


def _check_version(generation: Generation) -> Finding:
    outdated = name_outdated(generation.manifest)
    return Finding("version", not outdated, outdated or "passages and words are cut as they are now")


def _check_types(generation: Generation) -> Iterator[Finding]:
    seen: dict[str, Counter[str]] = {}
    for stored in generation.store.documents():
        for key, value in stored.raw.items():
            seen.setdefault(key, Counter())[classify(value)] += 1
    mixed = 0
    for key, kind in generation.manifest.schema.items():
        counted = seen.get(key, Counter())
        typed = sum(counted[name] for name in ("number", "date", "boolean"))
        if kind == "string" and typed * 2 >= counted.total():  # a few strings among typed values
            mixed += 1
            counts = ", ".join(f"{n} {name}" for name, n in counted.most_common())
            yield Finding("metadata", False, f"{key} holds {counts}, so it is a string: ranges over it do not work")
    if not mixed:
        yield Finding("metadata", True, f"{len(generation.manifest.schema)} keys, one type each")


def _check_languages(generation: Generation) -> Iterator[Finding]:
    manifest = generation.manifest
    for language, weight in manifest.dense_weights.items():
        n = manifest.languages.get(language, 0)
        if weight == 0:
            message = f"embedder {manifest.embedder!r} is blind for {language} ({n} documents): searched by BM25 alone"
            yield Finding("language", False, message)
        else:
            yield Finding("language", True, f"{language}: dense weight {weight} of 0.5")


def _check_stale(path: Path, generation: Generation) -> Iterator[Finding]:
    stamps = read_stamps(path, generation.manifest.corpus_version)
    for corpus in generation.manifest.corpora:
        before = stamps.get(corpus, {})
        if not Path(corpus).exists():
            yield Finding("stale", False, f"corpus {corpus} is gone")
            continue
        now = read_file_stamps(Path(corpus))
        changed = sum(before.get(name, "").split()[1:] != stamp.split()[1:] for name, stamp in now.items())
        gone = sum(name not in now for name in before)
        message = f"{corpus}: {changed} files changed or new, {gone} gone since the index was built"
        yield Finding("stale", not changed and not gone, message if changed or gone else f"{corpus}: no file changed")


def _check_leftovers(path: Path, generation: Generation) -> Iterator[Finding]:
    others = [folder for folder in path.glob("g[0-9]*") if folder != generation.folder]
    if others:
        unfinished = [folder.name for folder in others if not (folder / "manifest.json").exists()]
        if unfinished:
            yield Finding(
                "leftovers", False, f"unfinished builds: {', '.join(unfinished)}; the next build goes on with them"
            )
