"""Searching without an LM: a program that only searches, and the searches of a run made again with more hits."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import dspy

from programs.meter import Usage
from programs.record import Hop, make_prediction
from retrievers.records import Retriever

DEEP_K = 100  # hits in which evidence that no hop found is looked for
_N_SHOWN = 10  # passages that count as shown by a program that only searches


class Search(Protocol):
    """What one hop asked for."""

    @property
    def tool(self) -> str: ...  # noqa: D102
    @property
    def query(self) -> str: ...  # noqa: D102
    @property
    def filters(self) -> Mapping[str, Any] | None: ...  # noqa: D102


class RetrievalOnly:
    """Makes one search with the question and says nothing. The ranking is what there is to measure."""

    def __init__(self, tool: str, retriever: Retriever) -> None:
        """Search with the retriever of this tool."""
        self.tool = tool
        self.retrievers = {tool: retriever}

    def __call__(self, question: str, history: Sequence[Mapping[str, str]] = ()) -> dspy.Prediction:
        """Rank passages for the question; the best of them are the context."""
        began = time.monotonic()
        hits = tuple(self.retrievers[self.tool].search(question, DEEP_K))
        seconds = round(time.monotonic() - began, 4)
        ids = tuple(hit.passage.passage_id for hit in hits)
        return make_prediction(
            question=question,
            answer="",
            citations=(),
            abstained=True,
            stop_reason="sufficient" if hits else "no_new_evidence",
            hops=(Hop(question, self.tool, question, None, "rule", hits, ids, seconds),),
            context=hits[:_N_SHOWN],
            usage=Usage(seconds=seconds),
        )


def search_deeper(retrievers: Mapping[str, Retriever]) -> Callable[[Search], list[str]]:
    """Make the function that repeats a search with `DEEP_K` hits and gives their passage ids, best first."""

    def search(hop: Search) -> list[str]:
        retriever = retrievers.get(hop.tool)
        return [hit.passage.passage_id for hit in retriever.search(hop.query, DEEP_K, hop.filters)] if retriever else []

    return search
