"""Speed, memory and disk on synthetic corpora, next to rank-bm25 and Chroma used bare."""

import json
import os
import resource
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.embedders import Vectors, normalise

N_WORDS = 80
N_QUERIES = 100
DIMENSION = 512
# Above this rank-bm25 needs many GB and seconds a query.
MAX_BARE_BM25 = 200_000

_VOCABULARY = 200_000
_TOPICS = 1_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the result. Memory is resident: the peak when building, at the end when querying."""

    what: str
    n_passages: int
    build_s: float | None
    open_s: float | None
    p50_ms: float | None
    p95_ms: float | None
    memory_mib: float
    disk_mib: float | None


class SyntheticEmbedder:
    """Vectors around a thousand topics, from a hash of the text: costs nothing, so that only the index is measured."""

    name = "synthetic"

    def __init__(self, dimension: int = DIMENSION) -> None:
        """Draw the topics."""
        self.fingerprint = f"synthetic-{dimension}"
        self._topics = np.random.default_rng(0).standard_normal((_TOPICS, dimension), dtype=np.float32)

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Make one vector a text."""
        rows = np.empty((len(texts), self._topics.shape[1]), np.float32)
        for i, text in enumerate(texts):
            seed = zlib.crc32(text.encode())
            noise = np.random.default_rng(seed).standard_normal(self._topics.shape[1], dtype=np.float32)
            rows[i] = self._topics[seed % _TOPICS] + noise
        return normalise(rows)

    def embed_queries(self, texts: list[str]) -> Vectors:
        """Make one vector a query."""
        return self.embed_documents(texts)


def run_bench(
    n_passages: int, folder: Path, report: Callable[[Measurement], None], dimension: int = DIMENSION
) -> list[Measurement]:
    """Index synthetic passages, query them, then do so with the bare libraries; each step in its own process."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus, queries = folder / "corpus.jsonl", write_corpus(folder / "corpus.jsonl", n_passages)
    steps: list[tuple[Callable[..., Measurement], tuple[Any, ...]]] = [
        (_build, (corpus, folder / "index", n_passages, dimension)),
        *(
            (_query, (folder / "index", mode, queries, n_passages, dimension))
            for mode in ("lexical", "dense", "hybrid")
        ),
        (_bare_chroma, (folder, queries, n_passages, dimension)),
    ]
    if n_passages <= MAX_BARE_BM25:
        steps.append((_bare_bm25, (corpus, queries[:10], n_passages)))
    results: list[Measurement] = []
    for step, arguments in steps:
        results.append(_run_apart(step, arguments))
        report(results[-1])
    return results


def write_corpus(path: Path, n_passages: int) -> list[str]:
    """Write passages whose words follow Zipf's law; return queries of three to six words of random passages."""
    rng = np.random.default_rng(n_passages)
    words = np.asarray([_make_word(rank) for rank in range(_VOCABULARY)])
    weights = 1 / (np.arange(_VOCABULARY) + 2.7) ** 1.07
    cumulative = np.cumsum(weights / weights.sum())
    queries: list[str] = []
    every = max(1, n_passages // N_QUERIES)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, n_passages, 10_000):
            n = min(10_000, n_passages - start)
            drawn = words[np.searchsorted(cumulative, rng.random((n, N_WORDS))).clip(max=_VOCABULARY - 1)]
            for i, row in enumerate(drawn.tolist(), start=start):
                file.write(json.dumps({"id": f"d{i}", "text": f"{' '.join(row)} ID-{i}."}) + "\n")
                if i % every == 0 and len(queries) < N_QUERIES:
                    queries.append(" ".join(row[: 3 + i // every % 4]))
    return queries


def format_measurements(results: Sequence[Measurement]) -> str:
    """Lay out the results as a table."""
    heads = f"{'build s':>9} {'open s':>7} {'P50 ms':>8} {'P95 ms':>8} {'memory MiB':>11} {'disk MiB':>9}"
    lines = [f"{'':22} {'passages':>9} {heads}"]
    for result in results:
        numbers = [(result.build_s, 9, 1), (result.open_s, 7, 2), (result.p50_ms, 8, 2), (result.p95_ms, 8, 2)]
        numbers += [(result.memory_mib, 11, 0), (result.disk_mib, 9, 0)]
        cells = " ".join(f"{'–' if number is None else f'{number:,.{n}f}':>{width}}" for number, width, n in numbers)
        lines.append(f"{result.what:22} {result.n_passages:>9,} {cells}")
    return "\n".join(lines)


def _make_word(rank: int) -> str:
    syllables = (
        "ba",
        "ce",
        "di",
        "fo",
        "gu",
        "ha",
        "je",
        "ki",
        "lo",
        "mu",
        "na",
        "pe",
        "ri",
        "so",
        "tu",
        "va",
        "we",
        "zi",
    )
    word = ""
    number = rank + len(syllables)
    while number:
        number, digit = divmod(number, len(syllables))
        word += syllables[digit]
    return word


def _build(corpus: Path, index: Path, n_passages: int, dimension: int) -> Measurement:
    from retrievers.build import build_index

    shutil.rmtree(index, ignore_errors=True)
    started = time.monotonic()
    build_index(corpus, index, SyntheticEmbedder(dimension))
    seconds = time.monotonic() - started
    return Measurement("build", n_passages, seconds, None, None, None, _peak_mib(), _disk_mib(index))


def _query(index_folder: Path, mode: Any, queries: Sequence[str], n_passages: int, dimension: int) -> Measurement:
    from retrievers.index import open_index

    started = time.monotonic()
    index = open_index(index_folder, SyntheticEmbedder(dimension))
    index.search(queries[0], mode=mode)
    opened = time.monotonic() - started
    p50, p95 = _time_queries(queries[1:], lambda query: index.search(query, mode=mode))
    return Measurement(mode, n_passages, None, opened, p50, p95, _resident_mib(), None)


def _bare_bm25(corpus: Path, queries: Sequence[str], n_passages: int) -> Measurement:
    from rank_bm25 import BM25Okapi

    from retrievers.tokenizer import tokenize

    with corpus.open(encoding="utf-8") as file:
        tokens = [tokenize(json.loads(line)["text"]) for line in file]
    started = time.monotonic()
    bm25 = BM25Okapi(tokens)
    seconds = time.monotonic() - started
    p50, p95 = _time_queries(queries, lambda query: np.argsort(bm25.get_scores(tokenize(query)))[::-1][:10])
    return Measurement("rank-bm25 bare", n_passages, seconds, None, p50, p95, _resident_mib(), None)


def _bare_chroma(folder: Path, queries: Sequence[str], n_passages: int, dimension: int) -> Measurement:
    from retrievers.dense import ChromaFolder

    embedder = SyntheticEmbedder(dimension)
    home = ChromaFolder()
    home.clear(folder)
    dense = home.open(folder)
    started = time.monotonic()
    for batch in _batches(range(n_passages), 5_000):
        dense.upsert([f"d{i}" for i in batch], embedder.embed_documents([f"d{i}" for i in batch]), [{}] * len(batch))
    seconds = time.monotonic() - started
    vectors = embedder.embed_queries(list(queries))
    p50, p95 = _time_queries(range(len(queries)), lambda i: dense.query(vectors[i], 10))
    dense.close()
    disk = _disk_mib(folder / "chroma")
    return Measurement("Chroma bare", n_passages, seconds, None, p50, p95, _resident_mib(), disk)


def _batches(items: range, size: int) -> Iterator[range]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _time_queries(queries: Sequence[Any], search: Callable[[Any], object]) -> tuple[float, float]:
    times = []
    for query in queries:
        started = time.perf_counter()
        search(query)
        times.append(1000 * (time.perf_counter() - started))
    return float(np.percentile(times, 50)), float(np.percentile(times, 95))


def _run_apart(step: Callable[..., Measurement], arguments: tuple[Any, ...]) -> Measurement:
    """Run a step in a process of its own, so that memory is that step's alone."""
    context = get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(step, arguments)


def _resident_mib() -> float:
    if not os.path.exists("/proc/self/statm"):
        return _peak_mib()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _disk_mib(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def to_record(result: Measurement) -> dict[str, Any]:
    """Turn a measurement into JSON's types."""
    return asdict(result)
