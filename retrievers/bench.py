"""Speed, memory and disk on synthetic corpora, next to rank-bm25 and Chroma used bare."""

import json
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from retrievers.bench_synthetic import DIMENSION, SyntheticEmbedder, prepare_corpus

# Our BM25 alone, the modes of our whole index, and the two libraries used bare.
Side = Literal["bm25", "keyword", "dense", "hybrid", "chroma", "rank-bm25"]
SIDES: tuple[Side, ...] = get_args(Side)
# Above this rank-bm25 needs many GB and seconds a query; it is measured only when asked for.
MAX_BARE_BM25 = 200_000

_MODES: tuple[Side, ...] = ("keyword", "dense", "hybrid")
_MEASURED = "measured.json"
_Result = TypeVar("_Result")
_TELL_EVERY_S = 20.0


class BenchError(RuntimeError):
    """A measurement that did not come to its end."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the result.

    Memory is resident: the peak when building, at the end when querying, in a process of its own. Opening is all from
    a process that has its libraries to the answer to the first query; importing them is `import_s`.
    """

    what: str
    n_passages: int
    build_s: float | None = None
    cpu_s: float | None = None
    import_s: float | None = None
    open_s: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    memory_mib: float = 0.0
    disk_mib: float | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """What one process does. `keeps` is what it leaves; while that is there the step is not done again."""

    name: str
    run: Callable[..., Measurement]
    arguments: tuple[Any, ...]
    keeps: Path | None = None


class Clock:
    """Tells on stderr how far a step is, how long it took, how long it will take, and the resident memory."""

    def __init__(self, what: str) -> None:
        """Start."""
        self._what = what
        self._stage, self._told = "", 0.0
        self._started, self._first = time.monotonic(), 0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Print a line, but not more often than every twenty seconds."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._started, self._first = stage, now, done
        if now - self._told < _TELL_EVERY_S:
            return
        self._told = now
        gone, n = now - self._started, done - self._first
        left = f", {_clock_time(gone * (total - done) / n)} left" if total and n > 0 else ""
        amount = f"{done:,} of {total:,}" if total else f"{done:,}"
        memory = f"{_resident_mib():,.0f} MiB"
        sys.stderr.write(f"  {self._what}: {stage}: {amount}, {_clock_time(gone)} gone{left}, {memory}\n")
        sys.stderr.flush()


def run_bench(
    n_passages: int,
    folder: Path,
    tell: Callable[[str], None],
    dimension: int = DIMENSION,
    sides: Sequence[Side] | None = None,
) -> list[Measurement]:
    """Index synthetic passages, query them, then do so with the bare libraries; each step in its own process.

    What was built in `folder` before is not built again, and a build that was interrupted goes on.

    Args:
        n_passages: How many.
        folder: Where the corpus and the indexes go.
        tell: Told what is done.
        dimension: Of the vectors.
        sides: What is measured; all, but rank-bm25 only up to `MAX_BARE_BM25` passages, when it is not said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    queries = prepare_corpus(folder / "corpus.jsonl", n_passages, Clock("corpus"))
    sides = sides or [side for side in SIDES if side != "rank-bm25" or n_passages <= MAX_BARE_BM25]
    known = _read_measured(folder)
    results: list[Measurement] = []
    for step in _plan(n_passages, folder, queries, dimension, sides):
        key = f"{step.name}, {dimension} dimensions"
        if step.keeps is not None and key in known and step.keeps.exists():
            results.append(known[key])
            tell(f"{step.name}: measured before; to measure it again, remove {step.keeps}")
            continue
        started = time.monotonic()
        results.append(run_apart(step.run, step.arguments))
        tell(f"{step.name}: done in {_clock_time(time.monotonic() - started)}")
        if step.keeps is not None:
            known[key] = results[-1]
            _write_measured(folder, known)
    return results


def name_left_out(n_passages: int, sides: Sequence[Side] | None) -> str:
    """Say which sides `run_bench` does not measure, and why; empty when it measures all."""
    if sides is not None:
        left = [side for side in SIDES if side not in sides]
        return f"not measured (--sides): {', '.join(left)}" if left else ""
    if n_passages > MAX_BARE_BM25:
        return f"not measured: rank-bm25 (above {MAX_BARE_BM25:,} passages only with --sides rank-bm25)"
    return ""


def _plan(n_passages: int, folder: Path, queries: list[str], dimension: int, sides: Sequence[Side]) -> Iterator[_Step]:
    corpus, alone, index = folder / "corpus.jsonl", folder / "bm25", folder / "index"
    if "bm25" in sides:
        yield _Step("build of BM25 alone", _build_alone, (corpus, alone, n_passages), alone / "mapped")
        yield _Step("BM25 alone", _query_alone, (alone, queries, n_passages))
    if modes := [mode for mode in _MODES if mode in sides]:
        yield _Step("build of the index", _build, (corpus, index, n_passages, dimension), index)
        for mode in modes:
            yield _Step(mode, _query, (index, mode, queries, n_passages, dimension))
    if "chroma" in sides:
        yield _Step("Chroma bare", _bare_chroma, (folder, queries, n_passages, dimension), folder / "chroma")
    if "rank-bm25" in sides:
        yield _Step("rank-bm25 bare", _bare_bm25, (corpus, queries[:10], n_passages))


def format_measurements(results: Sequence[Measurement]) -> str:
    """Lay out the results as a table."""
    columns = (
        ("build s", "build_s", 9, 1),
        ("CPU s", "cpu_s", 9, 1),
        ("import s", "import_s", 8, 2),
        ("open s", "open_s", 7, 2),
        ("P50 ms", "p50_ms", 8, 2),
        ("P95 ms", "p95_ms", 8, 2),
        ("memory MiB", "memory_mib", 11, 0),
        ("disk MiB", "disk_mib", 9, 0),
    )
    lines = [f"{'':22} {'passages':>9} " + " ".join(f"{head:>{width}}" for head, _, width, _ in columns)]
    for result in results:
        numbers = [(getattr(result, name), width, n) for _, name, width, n in columns]
        cells = " ".join(f"{'–' if number is None else f'{number:,.{n}f}':>{width}}" for number, width, n in numbers)
        lines.append(f"{result.what:22} {result.n_passages:>9,} {cells}")
    return "\n".join(lines)


def to_record(result: Measurement) -> dict[str, Any]:
    """Turn a measurement into JSON's types."""
    return asdict(result)


def _build(corpus: Path, index: Path, n_passages: int, dimension: int) -> Measurement:
    from retrievers.build import build_index

    resumed = any(index.glob("g[0-9]*"))
    started, cpu = time.monotonic(), time.process_time()
    build_index(corpus, index, SyntheticEmbedder(dimension), progress=Clock("index"))
    return Measurement(
        "build, rest of it" if resumed else "build",
        n_passages,
        build_s=time.monotonic() - started,
        cpu_s=time.process_time() - cpu,
        memory_mib=_peak_mib(),
        disk_mib=_disk_mib(index),
    )


def _query(index_folder: Path, mode: Any, queries: Sequence[str], n_passages: int, dimension: int) -> Measurement:
    def open_() -> Callable[[str], object]:
        index = import_module("retrievers.index").open_index(index_folder, SyntheticEmbedder(dimension))
        return lambda query: index.search(query, mode=mode)

    return _measure_querying(mode, n_passages, queries, ("retrievers.lexical_mapped", "retrievers.index"), open_)


def _measure_querying(
    what: str,
    n_passages: int,
    queries: Sequence[str],
    modules: Sequence[str],
    open_: Callable[[], Callable[[str], Any]],
) -> Measurement:
    """Import, open and search; `open_` returns the search."""
    started = time.monotonic()
    for module in modules:
        import_module(module)
    imported = time.monotonic()
    search = open_()
    search(queries[0])
    opened = time.monotonic()
    p50, p95 = _time_queries(queries[1:], search)
    return Measurement(
        what,
        n_passages,
        import_s=imported - started,
        open_s=opened - imported,
        p50_ms=p50,
        p95_ms=p95,
        memory_mib=_resident_mib(),
    )


def _build_alone(corpus: Path, folder: Path, n_passages: int) -> Measurement:
    """Build nothing but BM25: no passages to show, no metadata, no vectors."""
    from retrievers.documents import read_documents
    from retrievers.lexical import LexicalWriter, finish_lexical
    from retrievers.tokenizer import tokenize

    shutil.rmtree(folder, ignore_errors=True)
    started, cpu, clock = time.monotonic(), time.process_time(), Clock("BM25 alone")
    writer = LexicalWriter(folder)
    for n, document in enumerate(read_documents(corpus), start=1):
        writer.append(tokenize(document.text))
        if n % 1_000 == 0:
            clock("cutting words", n, n_passages)
    writer.close()
    clock("building BM25", 0, None)
    finish_lexical(folder, small=0)
    return Measurement(
        "build of BM25 alone",
        n_passages,
        build_s=time.monotonic() - started,
        cpu_s=time.process_time() - cpu,
        memory_mib=_peak_mib(),
        disk_mib=_disk_mib(folder),
    )


def _query_alone(folder: Path, queries: Sequence[str], n_passages: int) -> Measurement:
    def open_() -> Callable[[str], object]:
        from retrievers.lexical import LexicalIndex, top_rows
        from retrievers.tokenizer import load_tokenizer, query_tokens

        index, tokenizer = LexicalIndex(folder), load_tokenizer()
        return lambda query: top_rows(index.score(query_tokens(query, tokenizer)), 10)

    modules = ("retrievers.lexical_mapped", "retrievers.lexical", "retrievers.tokenizer")
    return _measure_querying("BM25 alone", n_passages, queries, modules, open_)


def _bare_bm25(corpus: Path, queries: Sequence[str], n_passages: int) -> Measurement:
    from rank_bm25 import BM25Okapi

    from retrievers.tokenizer import tokenize

    with corpus.open(encoding="utf-8") as file:
        tokens = [tokenize(json.loads(line)["text"]) for line in file]
    started, cpu = time.monotonic(), time.process_time()
    bm25 = BM25Okapi(tokens)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    p50, p95 = _time_queries(queries, lambda query: np.argsort(bm25.get_scores(tokenize(query)))[::-1][:10])
    return Measurement("rank-bm25 bare", n_passages, seconds, cpu, p50_ms=p50, p95_ms=p95, memory_mib=_resident_mib())


def _bare_chroma(folder: Path, queries: Sequence[str], n_passages: int, dimension: int) -> Measurement:
    from retrievers.dense import ChromaFolder

    embedder, clock = SyntheticEmbedder(dimension), Clock("Chroma bare")
    home = ChromaFolder()
    home.clear(folder)
    dense = home.open(folder, n_passages)
    started, cpu = time.monotonic(), time.process_time()
    for batch in _batches(range(n_passages), home.batch_size):
        dense.upsert([f"d{i}" for i in batch], embedder.embed_documents([f"d{i}" for i in batch]), [{}] * len(batch))
        clock("writing vectors", batch.stop, n_passages)
    dense = home.settle(folder, dense)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    vectors = embedder.embed_queries(list(queries))
    p50, p95 = _time_queries(range(len(queries)), lambda i: dense.query(vectors[i], 10))
    dense.close()
    disk = _disk_mib(folder / "chroma")
    return Measurement(
        "Chroma bare", n_passages, seconds, cpu, p50_ms=p50, p95_ms=p95, memory_mib=_resident_mib(), disk_mib=disk
    )


def _batches(items: range, size: int) -> Iterator[range]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _time_queries(queries: Sequence[Any], search: Callable[[Any], object]) -> tuple[float, float]:
    times = []
    for query in queries:
        started = time.perf_counter()
        search(query)
        times.append(1000 * (time.perf_counter() - started))
    return float(np.percentile(times, 50)), float(np.percentile(times, 95))


def run_apart(step: Callable[..., _Result], arguments: tuple[Any, ...]) -> _Result:
    """Run a step in a process of its own, so that memory is that step's alone.

    Raises:
        BenchError: The process was killed.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        try:
            return pool.submit(step, *arguments).result()
        except BrokenProcessPool:
            raise BenchError("the measured process was killed, most likely for want of memory") from None


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, killed too, instead of building on for nobody."""
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _read_measured(folder: Path) -> dict[str, Measurement]:
    path = folder / _MEASURED
    if not path.exists():
        return {}
    return {key: Measurement(**record) for key, record in json.loads(path.read_text(encoding="utf-8")).items()}


def _write_measured(folder: Path, measured: dict[str, Measurement]) -> None:
    temporary = folder / f"{_MEASURED}.{os.getpid()}"
    records = {key: asdict(measurement) for key, measurement in measured.items()}
    temporary.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, folder / _MEASURED)


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


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
