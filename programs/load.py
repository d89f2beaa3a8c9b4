"""Open an index for the programs, and build a program by name or from an export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from programs.export import PROGRAMS, IndexFacts, load_export
from programs.rag import NaiveRAG
from programs.run import Bounds
from programs.tools import NO_TOOLS, Toolbox, make_toolbox
from retrievers import Index, Retriever, open_index

MODES: dict[str, Literal["hybrid", "lexical", "dense"]] = {"hybrid": "hybrid", "keyword": "lexical", "dense": "dense"}


@dataclass(frozen=True, slots=True)
class Tools:
    """An open index as the programs see it: its retrievers, other tools, and facts to check exports by."""

    index: Index
    retrievers: Mapping[str, Retriever]
    facts: IndexFacts
    toolbox: Toolbox = NO_TOOLS


def open_tools(path: Path, databases: Sequence[str] = (), apis: Path | None = None) -> Tools:
    """Open the index at `path`, its embedder loaded, so that one that does not fit is found before any work.

    Args:
        path: The index.
        databases: Addresses of databases for SQL, besides the tables of the index; see `databases.open_database`.
        apis: A TOML file that declares HTTP tools; see `apis.load_apis`.

    Raises:
        FileNotFoundError: A database or the file of HTTP tools is not there.
        QueryError: A database can't be opened, or not safely.
        ApiError: An HTTP tool is declared wrongly.
        IndexNotFound: No index there.
        IndexMismatch: It was built with an embedder that is not the one installed.
        EmbedderError: Its embedder can't be loaded.
    """
    index = open_index(path)
    manifest, embedder = index.manifest, index.embedder
    facts = IndexFacts(
        embedder=embedder.name,
        embedder_fingerprint=embedder.fingerprint,
        corpus_version=manifest.corpus_version,
        n_documents=manifest.n_documents,
        n_passages=manifest.n_passages,
    )
    retrievers = {tool: index.retriever(mode) for tool, mode in MODES.items()}
    return Tools(index, retrievers, facts, make_toolbox(index, databases, apis))


def load_program(spec: str, tools: Tools, bounds: Bounds | None = None) -> NaiveRAG:
    """Build a seed program by name (`naive`, `hybrid`, `agentic`) or load an export folder.

    Raises:
        FileNotFoundError: Neither a name nor an export.
        ProgramStateError: The export does not fit.
    """
    if spec in PROGRAMS:
        return PROGRAMS[spec](tools.retrievers, bounds, tools.toolbox)
    if not Path(spec).exists():
        raise FileNotFoundError(f"no program {spec!r}: expected {', '.join(PROGRAMS)} or an export folder")
    return load_export(Path(spec), tools.retrievers, tools.facts, tools.toolbox)
