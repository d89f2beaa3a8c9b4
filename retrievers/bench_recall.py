"""Recall of whole documents for folders of `corpus.jsonl` and `cases.jsonl`, side by side."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from retrievers.build import build_index
from retrievers.filling import Progress
from retrievers.index import MODES, Fusion, Index, Mode, open_index
from retrievers.runs import rank_documents


@dataclass(frozen=True, slots=True)
class RecallRow:
    """Mean recall@k of one set: the sides alone, their reciprocal ranks, hybrid."""

    name: str
    n_cases: int
    keyword: float
    dense: float
    ranks: float
    hybrid: float


def measure_recall(folder: Path, index_folder: Path, embedder: str, k: int, progress: Progress) -> RecallRow:
    """Index one folder's corpus and measure recall@k over its cases that have gold documents.

    Raises:
        CorpusError: The corpus is missing or broken.
    """
    build_index(folder / "corpus.jsonl", index_folder, embedder, progress=progress)
    index = open_index(index_folder)
    cases = list(_read_gold(folder / "cases.jsonl"))
    recalls = {mode: _mean_recall(index, cases, k, mode) for mode in MODES}
    ranks = _mean_recall(index, cases, k, "hybrid", "ranks")
    return RecallRow(folder.name, len(cases), recalls["keyword"], recalls["dense"], ranks, recalls["hybrid"])


def format_table(rows: Sequence[RecallRow], k: int) -> str:
    """Lay out the rows, their means last."""
    lines = [f"{f'recall@{k}':24} {'cases':>5} {'keyword':>8} {'dense':>8} {'RRF':>8} {'hybrid':>8}"]
    means = RecallRow(
        "mean",
        sum(row.n_cases for row in rows),
        *(fmean(getattr(row, column) for row in rows) for column in ("keyword", "dense", "ranks", "hybrid")),
    )
    for row in (*rows, means):
        lines.append(
            f"{row.name:24} {row.n_cases:>5} {row.keyword:>8.3f} {row.dense:>8.3f} {row.ranks:>8.3f} {row.hybrid:>8.3f}"
        )
    return "\n".join(lines)


def to_record(row: RecallRow) -> dict[str, Any]:
    """Turn a row into JSON's types."""
    return asdict(row)


def _read_gold(path: Path) -> Iterator[tuple[str, frozenset[str]]]:
    with path.open(encoding="utf-8") as file:
        for case in map(json.loads, file):
            if case.get("gold_ids"):
                yield case["question"], frozenset(case["gold_ids"])


def _mean_recall(
    index: Index, cases: Sequence[tuple[str, frozenset[str]]], k: int, mode: Mode, fusion: Fusion = "scores"
) -> float:
    search = index.retriever(mode, fusion=fusion).search
    found = ({doc_id for doc_id, _ in rank_documents(search, question, k)} for question, _ in cases)
    return fmean(len(ids & gold) / len(gold) for ids, (_, gold) in zip(found, cases, strict=True))
