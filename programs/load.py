"""Open an index for the programs, and build a program by name or from an export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from programs.export import PROGRAMS, IndexFacts, ProgramStateError, load_export
from programs.places import tracking_uri as default_store
from programs.rag import NaiveRAG
from programs.run import Bounds
from programs.tools import NO_TOOLS, Toolbox, make_toolbox
from retrievers import Index, Retriever, open_index
from retrievers.index import MODES


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
    retrievers: dict[str, Retriever] = {mode: index.retriever(mode) for mode in MODES}
    return Tools(index, retrievers, facts, make_toolbox(index, databases, apis))


def load_program(spec: str, tools: Tools, bounds: Bounds | None = None, *, tracking_uri: str | None = None) -> NaiveRAG:
    """Build a seed program by name, load an export folder, or a registered version.

    Args:
        spec: `naive`, `hybrid`, `agentic`; an export folder; `models:/NAME@champion` or `models:/NAME/3`.
        tools: The index that it is to search.
        bounds: Of a seed program; the others bring their own.
        tracking_uri: The MLflow store that has the version; see `places.tracking_uri`.

    Raises:
        FileNotFoundError: Neither a name nor an export.
        ProgramStateError: The export does not fit.
        VersionNotFound: The store has no such version.
        TrackingError: The store can't be used.
    """
    if spec in PROGRAMS:
        return PROGRAMS[spec](tools.retrievers, bounds, tools.toolbox)
    if is_version(spec):
        return _load_version(spec, tools, tracking_uri or default_store())
    if not Path(spec).exists():
        raise FileNotFoundError(
            f"no program {spec!r}: expected {', '.join(PROGRAMS)} or an export folder, or models:/NAME@ALIAS"
        )
    return load_export(Path(spec), tools.retrievers, tools.facts, tools.toolbox)


def is_version(spec: str) -> bool:
    """Tell whether a program is named by its place in the registry."""
    return spec.startswith("models:")


def _load_version(spec: str, tools: Tools, tracking_uri: str) -> NaiveRAG:
    from programs.tracking.versions import exported

    with exported(tracking_uri, spec) as folder:
        try:
            return load_export(folder, tools.retrievers, tools.facts, tools.toolbox)
        except ProgramStateError as error:  # the folder is gone when it is read
            raise ProgramStateError(str(error).replace(str(folder), spec)) from None
