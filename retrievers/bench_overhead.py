"""What building an index costs beyond embedding its passages, measured on the same passages."""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from retrievers.bench import Clock, run_apart
from retrievers.documents import read_documents
from retrievers.embedders import Embedder, load_embedder
from retrievers.filling import BATCH_PASSAGES


@dataclass(frozen=True, slots=True)
class Overhead:
    """One corpus: seconds and CPU seconds of the embedder alone, and of building.

    What a process spends once, loading the embedder and starting Chroma, is in neither. A build writes beside the
    embedder, in other threads, so on a machine with a free core its CPU seconds are more than the time it takes.
    """

    corpus: str
    n_passages: int
    bare_s: float
    bare_cpu_s: float
    build_s: float
    build_cpu_s: float

    @property
    def ratio(self) -> float:
        """What building takes beyond the embedder's time, as a share of that."""
        return self.build_s / self.bare_s - 1

    @property
    def cpu_ratio(self) -> float:
        """The same in CPU seconds."""
        return self.build_cpu_s / self.bare_cpu_s - 1


def measure_overhead(corpus: Path, work: Path, embedder: str, n_documents: int | None = None) -> Overhead:
    """Build an index of a corpus, then embed its passages alone, each in its own process.

    Raises:
        CorpusError: The corpus is missing or broken.
        EmbedderError: The embedder cannot be loaded.
    """
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        part = _copy_head(corpus, Path(folder), n_documents) if n_documents is not None else corpus
        n_passages, build_s, build_cpu_s = run_apart(_build, (part, Path(folder) / "index", embedder))
        bare_s, bare_cpu_s = run_apart(_embed, (Path(folder) / "index", embedder))
    return Overhead(str(corpus), n_passages, bare_s, bare_cpu_s, build_s, build_cpu_s)


def format_overheads(rows: Sequence[Overhead]) -> str:
    """Lay out the rows as a table."""
    heads = f"{'embed s':>9} {'build s':>9} {'overhead':>9} {'embed CPU s':>12} {'build CPU s':>12} {'overhead':>9}"
    lines = [f"{'':32} {'passages':>9} {heads}"]
    for row in rows:
        lines.append(
            f"{row.corpus[-32:]:32} {row.n_passages:>9,} {row.bare_s:>9.1f} {row.build_s:>9.1f} {row.ratio:>9.1%} "
            f"{row.bare_cpu_s:>12.1f} {row.build_cpu_s:>12.1f} {row.cpu_ratio:>9.1%}"
        )
    return "\n".join(lines)


def to_record(row: Overhead) -> dict[str, Any]:
    """Turn a row into JSON's types."""
    return {**asdict(row), "overhead": row.ratio, "cpu_overhead": row.cpu_ratio}


def _copy_head(corpus: Path, folder: Path, n_documents: int) -> Path:
    """Write the first documents of a corpus as one of their own."""
    part = folder / "corpus.jsonl"
    with part.open("w", encoding="utf-8") as file:
        for document in islice(read_documents(corpus), n_documents):
            record = {"id": document.doc_id, "title": document.title, "text": document.text}
            file.write(json.dumps({**record, "metadata": dict(document.metadata)}, ensure_ascii=False) + "\n")
    return part


def _load(name: str) -> Embedder:
    """Load an embedder whole: the weights of one may be read with the first text only."""
    model = load_embedder(name)
    model.embed_documents(["a text"])
    return model


def _build(corpus: Path, index: Path, embedder: str) -> tuple[int, float, float]:
    from retrievers.build import build_index
    from retrievers.dense import ChromaFolder

    model = _load(embedder)
    with tempfile.TemporaryDirectory(dir=index.parent) as folder:
        ChromaFolder().open(Path(folder)).close()
    started, cpu = time.monotonic(), time.process_time()
    report = build_index(corpus, index, model, progress=Clock("build"))
    return report.manifest.n_passages, time.monotonic() - started, time.process_time() - cpu


def _embed(index: Path, embedder: str) -> tuple[float, float]:
    from retrievers.generation import Generation
    from retrievers.manifest import find_generation
    from retrievers.passages import embedding_text

    model = _load(embedder)
    with Generation(find_generation(index)) as generation:
        texts = [embedding_text(passage) for passage in generation.store.iterate_passages()]
    clock = Clock("embedder alone")
    started, cpu = time.monotonic(), time.process_time()
    for start in range(0, len(texts), BATCH_PASSAGES):
        model.embed_documents(texts[start : start + BATCH_PASSAGES])
        clock("embedding", start, len(texts))
    return time.monotonic() - started, time.process_time() - cpu
