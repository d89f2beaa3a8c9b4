from pathlib import Path

import pytest
import tiny
from fake_embedder import HashEmbedder

import retrievers.index
from programs.export import PROGRAMS, ProgramStateError, save_export
from programs.load import Tools, load_program, open_tools
from programs.rag import AgenticRAG
from programs.run import Bounds
from retrievers import IndexMismatch, IndexNotFound, build_index


@pytest.fixture
def index(tmp_path: Path) -> Path:
    corpus = tiny.write_corpus(tmp_path / "corpus.jsonl")
    build_index(corpus, tmp_path / "index", HashEmbedder("multilingual"))
    return tmp_path / "index"


def test_tools_are_the_three_ways_to_search_one_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrievers.index, "load_embedder", HashEmbedder)
    tools = open_tools(index)
    assert set(tools.retrievers) == {"hybrid", "keyword", "dense"}
    for tool, question in (("keyword", "E-1024"), ("dense", "sync cable"), ("hybrid", "保修期")):
        found = [hit.passage.doc_id for hit in tools.retrievers[tool].search(question, 3)]
        assert found[0] == {"E-1024": "e1024", "sync cable": "cable", "保修期": "zh-warranty"}[question]
    assert tools.facts.embedder == "multilingual"
    assert tools.facts.embedder_fingerprint == HashEmbedder("multilingual").fingerprint
    assert (tools.facts.n_documents, tools.facts.n_passages) == (8, 8)


def test_an_index_of_another_embedder_is_refused_before_any_work(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrievers.index, "load_embedder", lambda name: HashEmbedder(name, dimension=32))
    with pytest.raises(IndexMismatch, match="built with embedder 'multilingual'"):
        open_tools(index)


def test_no_index_there_says_what_builds_one(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(IndexNotFound, match="python -m retrievers build"):
            open_tools(path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_seed_program_is_built_by_name(tools: Tools, name: str) -> None:
    program = load_program(name, tools, Bounds(max_rounds=1))
    assert type(program) is PROGRAMS[name]
    assert program.bounds.max_rounds == 1
    assert not any(predictor.demos for predictor in program.predictors())


def test_an_export_is_loaded_by_its_folder_and_keeps_its_bounds(tools: Tools, tmp_path: Path) -> None:
    program = AgenticRAG(tools.retrievers, Bounds(max_rounds=1))
    save_export(program, tmp_path / "export", lm="openai/test", index=tools.facts)
    assert load_program(str(tmp_path / "export"), tools).bounds == Bounds(max_rounds=1)
    other = tools.facts.model_copy(update={"embedder_fingerprint": "else"})
    with pytest.raises(ProgramStateError, match="compiled on an index with embedder"):
        load_program(str(tmp_path / "export"), Tools(tools.index, tools.retrievers, other))


def test_what_is_neither_a_name_nor_an_export_is_said(tools: Tools, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no program 'agentik': expected naive, hybrid, agentic or an export"):
        load_program("agentik", tools)
    with pytest.raises(FileNotFoundError, match="no export at"):
        load_program(str(tmp_path), tools)
