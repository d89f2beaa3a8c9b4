"""Hand-made predictions for the tests of metrics and outcomes: what a program returns, without a program."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Passage:
    passage_id: str
    text: str = ""
    title: str = ""

    @property
    def doc_id(self) -> str:
        return self.passage_id.rpartition("#")[0]


@dataclass(frozen=True)
class Hit:
    passage: Passage
    score: float = 1.0
    rank: int = 1


@dataclass(frozen=True)
class Hop:
    hits: tuple[Hit, ...] = ()
    kept: tuple[str, ...] = ()
    verdict: str | None = None
    judged: tuple[str, ...] = ()
    goal: str = ""
    tool: str = "hybrid"
    query: str = "q"
    filters: dict[str, object] | None = None
    error: str | None = None


@dataclass(frozen=True)
class Prediction:
    answer: str = ""
    citations: tuple[str, ...] = ()
    abstained: bool = False
    verdict: str | None = None
    stop_reason: str = "sufficient"
    context: tuple[Hit, ...] = ()
    hops: tuple[Hop, ...] = ()
    usage: object = None


def ranking(*passage_ids: str, text: str = "") -> tuple[Hit, ...]:
    return tuple(Hit(Passage(id_, text), 1 / rank, rank) for rank, id_ in enumerate(passage_ids, start=1))


def hop(*passage_ids: str, keep: tuple[str, ...] | None = None, **fields: object) -> Hop:
    """Make a hop that keeps all its hits, and whose judge, if there is a verdict, read them all."""
    kept = passage_ids if keep is None else keep
    fields = {"judged": kept if fields.get("verdict") else ()} | fields
    return Hop(hits=ranking(*passage_ids), kept=kept, **fields)  # type: ignore[arg-type]
