"""What crosses the retrieval boundary: documents, passages, hits, and the Retriever protocol."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Document:
    """A source as the user knows it: one file, one ticket, one JSONL line."""

    doc_id: str
    title: str
    text: str
    metadata: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passage:
    """A retrievable piece of a document. Its id is `doc_id#n`, n from 0 inside the document."""

    passage_id: str
    doc_id: str
    title: str
    text: str
    metadata: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """One passage in one ranking. Ranks count from 1; scores compare only inside their ranking."""

    passage: Passage
    score: float
    rank: int


class Retriever(Protocol):
    """Anything that ranks passages for a query.

    Implementations are safe to share between threads, and `__deepcopy__` returns self, because DSPy's optimizers
    deep-copy the program that holds them. They raise on a broken index or an invalid filter; no match is an empty list.
    """

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        """Rank at most `k` passages for `query`, best first."""
        ...
