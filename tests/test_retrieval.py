"""Failures planted one by one in real programs on a real index, and searches measured without an LM."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny
from fake_embedder import HashEmbedder
from scripted_server import Request, ScriptedServer

from programs.lms import bind, make_roles
from programs.load import Tools
from programs.rag import AgenticRAG, HybridRAG, NaiveRAG
from programs.record import to_json
from programs.retrieval import DEEP_K, RetrievalOnly, search_deeper
from programs.run import Bounds
from retrievers import build_index, open_index
from retrievers.records import Hit, Retriever
from trainsets.cases import Case
from trainsets.evaluation import Scoring, evaluate_program
from trainsets.ranking import to_retrieval_cases
from trainsets.results import CaseResult

CABLE = Case(id="c", question="How long may the sync cable be?", answer=("140 m",), gold_ids=("cable",))
# The bridge from the error to the supplier is nowhere in the question.
TWO = Case(
    id="t", question="What does E-1024 mean?", answer=("Falk Relais",), gold_ids=("e1024", "relay"), kind="multi_hop"
)
ONE_HIT = Bounds(k=1)


class Blind:
    """A retriever that never finds the passages of one document."""

    def __init__(self, retriever: Retriever, doc_id: str) -> None:
        self.retriever, self.doc_id = retriever, doc_id

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        hits = self.retriever.search(query, k + 1, filters)
        return [hit for hit in hits if hit.passage.doc_id != self.doc_id][:k]


class Broken:
    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        raise ConnectionError("the index went away")


@pytest.fixture
def lm() -> Iterator[ScriptedServer]:
    with ScriptedServer({CABLE.question: "140 m"}) as server:
        yield server


def result_of(case: Case, tools: Tools, kind: type[NaiveRAG], lm: ScriptedServer, **options: Any) -> CaseResult:
    """Evaluate one case as `evaluate.py` does."""
    retrievers = options.pop("retrievers", tools.retrievers)
    program = kind(retrievers, options.pop("bounds", None))
    scoring = Scoring(indexed_ids=tools.index, search_deeper=search_deeper(retrievers))
    with bind(make_roles("openai/test", api_base=lm.url)):
        [result] = evaluate_program(program, [case], describe=to_json, scoring=scoring, **options)
    return result


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


@pytest.mark.parametrize("kind", [NaiveRAG, HybridRAG, AgenticRAG])
def test_with_nothing_planted_the_case_is_right(
    tools: Tools, lm: ScriptedServer, records: Path, kind: type[NaiveRAG]
) -> None:
    assert result_of(CABLE, tools, kind, lm, records=records).outcome == "right"


def test_a_document_dropped_from_the_corpus_is_not_in_the_index(
    lm: ScriptedServer, tmp_path: Path, tools: Tools
) -> None:
    kept = [document for document in tiny.DOCUMENTS if document["id"] != "cable"]
    (tmp_path / "corpus.jsonl").write_text("".join(map(tiny.line_of, kept)), encoding="utf-8")
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index", HashEmbedder())
    index = open_index(tmp_path / "index", HashEmbedder())
    without = dataclasses.replace(tools, index=index, retrievers={"hybrid": index.retriever()})
    lm.answers.clear()
    result = result_of(CABLE, without, HybridRAG, lm, records=tmp_path / "records.jsonl")
    assert (result.outcome, result.detail) == ("not_in_index", "cable")


def test_a_blind_retriever_does_not_retrieve_however_deep(tools: Tools, lm: ScriptedServer, records: Path) -> None:
    lm.answers.clear()
    blind = {"hybrid": Blind(tools.retrievers["hybrid"], "cable")}
    result = result_of(CABLE, tools, HybridRAG, lm, records=records, retrievers=blind)
    assert (result.outcome, result.rank) == ("not_retrieved", None)


def test_evidence_below_the_cut_ranks_too_low_and_its_rank_is_told(
    tools: Tools, lm: ScriptedServer, records: Path
) -> None:
    far = CABLE.model_copy(update={"question": "What is the supply voltage of the fuse?", "gold_ids": ("cable",)})
    ranking = [hit.passage.doc_id for hit in tools.index.search(far.question, DEEP_K, "dense")]
    result = result_of(far, tools, NaiveRAG, lm, records=records, bounds=ONE_HIT)
    assert (result.outcome, result.rank) == ("ranked_too_low", ranking.index("cable") + 1)
    assert result.rank > 1
    assert json.loads(records.read_text(encoding="utf-8"))["rank"] == result.rank


def test_a_judge_that_is_always_content_stops_early(tools: Tools, lm: ScriptedServer, records: Path) -> None:
    def content(request: Request) -> str:
        return json.dumps({"quotes": ["E-1024 means"], "verdict": "sufficient", "missing": ""})

    lm.replies["quotes"] = content
    result = result_of(TWO, tools, AgenticRAG, lm, records=records, bounds=ONE_HIT)
    assert (result.outcome, result.detail) == ("stopped_early", "relay")


def test_an_answerer_that_ignores_the_passages_is_wrong_with_evidence(
    tools: Tools, lm: ScriptedServer, records: Path
) -> None:
    lm.replies["answer"] = lambda request: tiny.answer_json("150 m")
    assert result_of(CABLE, tools, HybridRAG, lm, records=records).outcome == "wrong_with_evidence"


def test_an_exception_in_a_tool_is_errored_and_told(tools: Tools, lm: ScriptedServer, records: Path) -> None:
    half = CABLE.model_copy(update={"id": "d", "question": "broken?"})

    class Sometimes(Broken):
        def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
            found = tools.retrievers["hybrid"]
            return super().search(query) if "broken" in query else found.search(query, k, filters)

    program = HybridRAG({"hybrid": Sometimes()})
    with bind(make_roles("openai/test", api_base=lm.url)):
        good, bad = evaluate_program(program, [CABLE, half], records=records, describe=to_json)
    assert good.outcome == "right"
    assert (bad.outcome, bad.scores) == ("errored", {})
    assert bad.error == "ConnectionError: the index went away"


def test_a_search_alone_is_scored_by_its_ranking_and_right_when_the_evidence_is_shown(
    tools: Tools, records: Path
) -> None:
    cases = to_retrieval_cases([CABLE, TWO, Case(id="h", question="hi", kind="chitchat")])
    assert [case.id for case in cases] == ["c", "t"]
    program = RetrievalOnly("keyword", tools.retrievers["keyword"])
    scoring = Scoring(indexed_ids=tools.index, search_deeper=search_deeper(program.retrievers))
    found, half = evaluate_program(program, cases, records=records, describe=to_json, scoring=scoring)
    assert (found.outcome, found.score, found.scores["mrr"]) == ("right", 1.0, 1.0)
    assert (half.outcome, half.score, half.scores["recall_at_10"]) == ("not_retrieved", 0.5, 0.5)
    assert found.prediction.usage.lm_calls == 0


def test_a_tool_that_is_no_retriever_has_nothing_deeper(tools: Tools) -> None:
    hop = RetrievalOnly("keyword", tools.retrievers["keyword"])(CABLE.question).hops[0]
    assert search_deeper(tools.retrievers)(hop)[0] == "cable#0"
    assert search_deeper({})(hop) == []
