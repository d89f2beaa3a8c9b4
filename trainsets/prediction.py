"""What the metrics read of a program's answer: the shape, without importing the programs that make it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class PassageLike(Protocol):
    """A retrievable piece of a document; its id is `doc_id#n`."""

    @property
    def passage_id(self) -> str: ...  # noqa: D102
    @property
    def doc_id(self) -> str: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def text(self) -> str: ...  # noqa: D102


class HitLike(Protocol):
    """One passage in one ranking, rank from 1."""

    @property
    def passage(self) -> PassageLike: ...  # noqa: D102
    @property
    def score(self) -> float: ...  # noqa: D102
    @property
    def rank(self) -> int: ...  # noqa: D102


class HopLike(Protocol):
    """One retrieve–judge turn: what was asked of which tool, what came back, what the judge read and said of it."""

    @property
    def goal(self) -> str: ...  # noqa: D102
    @property
    def tool(self) -> str: ...  # noqa: D102
    @property
    def query(self) -> str: ...  # noqa: D102
    @property
    def filters(self) -> Mapping[str, Any] | None: ...  # noqa: D102
    @property
    def decided_by(self) -> str: ...  # noqa: D102
    @property
    def hits(self) -> Sequence[HitLike]: ...  # noqa: D102
    @property
    def kept(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def judged(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def left_out(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def verdict(self) -> str | None: ...  # noqa: D102
    @property
    def error(self) -> str | None: ...  # noqa: D102


class PredictionLike(Protocol):
    """The result of a program for one question."""

    @property
    def answer(self) -> str: ...  # noqa: D102
    @property
    def citations(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def abstained(self) -> bool: ...  # noqa: D102
    @property
    def verdict(self) -> str | None: ...  # noqa: D102
    @property
    def stop_reason(self) -> str: ...  # noqa: D102
    @property
    def context(self) -> Sequence[HitLike]: ...  # noqa: D102
    @property
    def hops(self) -> Sequence[HopLike]: ...  # noqa: D102
    @property
    def usage(self) -> Any: ...  # noqa: D102


def doc_of(passage_id: str) -> str:
    """Give the document of a passage id `doc_id#n`; an id without `#` is a document already."""
    doc_id, _, _ = passage_id.rpartition("#")
    return doc_id or passage_id


def gold_found(gold_ids: Sequence[str], passage_ids: Sequence[str]) -> frozenset[str]:
    """Pick the gold ids that these passages cover. A gold id names a document, or one passage of it."""
    covered = set(passage_ids) | {doc_of(id_) for id_ in passage_ids}
    return frozenset(id_ for id_ in gold_ids if id_ in covered)


def ids_of(hits: Sequence[HitLike]) -> tuple[str, ...]:
    """List the passage ids of hits, in their order."""
    return tuple(hit.passage.passage_id for hit in hits)
