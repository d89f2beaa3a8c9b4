"""Documents to passages to an index; queries to hits. Knows nothing of DSPy or MLflow."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrievers.build import BuildReport, Progress, build_index
    from retrievers.documents import CorpusError, Skip, read_documents
    from retrievers.embedders import Embedder, EmbedderError, load_embedder
    from retrievers.index import Index, IndexRetriever, open_index
    from retrievers.locks import IndexBusy
    from retrievers.manifest import IndexMismatch, IndexNotFound, Manifest
    from retrievers.passages import Chunker
    from retrievers.records import Document, Hit, Passage, Retriever
    from retrievers.tokenizer import tokenize

__all__ = [
    "BuildReport",
    "Chunker",
    "CorpusError",
    "Document",
    "Embedder",
    "EmbedderError",
    "Hit",
    "Index",
    "IndexBusy",
    "IndexMismatch",
    "IndexNotFound",
    "IndexRetriever",
    "Manifest",
    "Passage",
    "Progress",
    "Retriever",
    "Skip",
    "build_index",
    "load_embedder",
    "open_index",
    "read_documents",
    "tokenize",
]

_MODULES = {
    "build": ("BuildReport", "Progress", "build_index"),
    "documents": ("CorpusError", "Skip", "read_documents"),
    "embedders": ("Embedder", "EmbedderError", "load_embedder"),
    "index": ("Index", "IndexRetriever", "open_index"),
    "locks": ("IndexBusy",),
    "manifest": ("IndexMismatch", "IndexNotFound", "Manifest"),
    "passages": ("Chunker",),
    "records": ("Document", "Hit", "Passage", "Retriever"),
    "tokenizer": ("tokenize",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `--help` does not wait for Chroma."""
    if name not in _HOMES:
        raise AttributeError(f"module 'retrievers' has no attribute {name!r}")
    return getattr(import_module(f"retrievers.{_HOMES[name]}"), name)
