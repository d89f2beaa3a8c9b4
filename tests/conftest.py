"""What every test gets: no network but loopback, caches of its own, none of the user's keys; and shared fixtures."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Whether an example takes 200 ms tells of the machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# SQLite (MLflow, Chroma, the caches) waits for a disk at every commit, for memory it does not.
_MEMORY = Path("/dev/shm")
_HAS_ROOM = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 2 << 30
_ROOT = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY) if _HAS_ROOM else tempfile.gettempdir())
_SCRATCH = tempfile.mkdtemp(prefix="tests-", dir=_ROOT)
_KEYS = ("LM_API_KEY", "OPENAI_API_KEY", "OPENAI_API_BASE", "OPENAI_BASE_URL")
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")

_USERS_CACHE = os.environ.get("COMPILED_RAG_CACHE")

os.environ |= {
    "COMPILED_RAG_CACHE": f"{_SCRATCH}/cache",
    "DSPY_CACHEDIR": f"{_SCRATCH}/dspy",
    "OMP_NUM_THREADS": "2",
    "TOKENIZERS_PARALLELISM": "false",
}
for _name in (*_KEYS, *(name for name in os.environ if name.lower().endswith("_proxy"))):
    os.environ.pop(_name, None)


def pytest_unconfigure() -> None:
    shutil.rmtree(_SCRATCH, ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in _LOCAL:
            raise ConnectionRefusedError(f"a test tried to reach {address}")
        connect(self, address)

    def resolve_here(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host is not None and str(host) not in _LOCAL:
            raise socket.gaierror(f"a test tried to resolve {host}")
        return resolve(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_here)
        patch.setattr(socket, "getaddrinfo", resolve_here)
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILED_RAG_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def embedded_lm(monkeypatch: pytest.MonkeyPatch) -> str:
    """The `--lm` flag of the embedded LM; its joined file is the user's, its cached answers are the test's own."""
    from programs.local_lm import cache_dir

    own = cache_dir()
    with monkeypatch.context() as patch:
        patch.setenv("COMPILED_RAG_CACHE", _USERS_CACHE or "")
        models = cache_dir() / "models"
    models.mkdir(parents=True, exist_ok=True)
    (own / "models").symlink_to(models)
    return "local"


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An open index of the tiny corpus, with an embedder that needs no weights."""
    import tiny
    from fake_embedder import HashEmbedder

    from programs.export import IndexFacts
    from programs.load import Tools
    from retrievers import build_index, open_index
    from retrievers.index import MODES

    folder = tmp_path_factory.mktemp("tiny")
    build_index(tiny.write_corpus(folder / "corpus.jsonl"), folder / "index", HashEmbedder())
    index = open_index(folder / "index", HashEmbedder())
    facts = IndexFacts(
        embedder="hash",
        embedder_fingerprint=index.embedder.fingerprint,
        corpus_version=index.manifest.corpus_version,
        n_documents=index.manifest.n_documents,
        n_passages=index.manifest.n_passages,
    )
    return Tools(index, {mode: index.retriever(mode) for mode in MODES}, facts)


@pytest.fixture(scope="session")
def _fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables made, which takes seconds; a test gets a copy."""
    from mlflow.store.db.utils import _initialize_tables
    from sqlalchemy import create_engine

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    engine = create_engine(f"sqlite:///{path}")
    _initialize_tables(engine)
    engine.dispose()
    return path


@pytest.fixture(scope="session")
def new_store(_fresh_store: Path) -> Callable[[Path], str]:
    """Makes an empty MLflow store in a folder, and gives its tracking URI."""

    def make(folder: Path) -> str:
        path = folder / "runs" / "mlflow.db"
        path.parent.mkdir()
        shutil.copy(_fresh_store, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture
def store(new_store: Callable[[Path], str], tmp_path: Path) -> str:
    """Tracking URI of an empty MLflow store in the folder of the test."""
    return new_store(tmp_path)


@pytest.fixture(scope="session")
def warm() -> Iterator[Any]:
    """Runs command lines as processes; what leaves loopback by HTTP ends at a closed port."""
    from warm_python import WarmPython

    closed = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    # The MLflow store that a test opened stands in the environment, and would be the default of commands.
    own = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    with WarmPython({**own, **closed}) as warm_python:
        yield warm_python


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, warm: Any) -> Path:
    """A folder as a user has it: corpus, cases, and an index with the packaged embedder."""
    import tiny

    folder = tmp_path_factory.mktemp("project")
    tiny.write_corpus(folder / "corpus.jsonl")
    tiny.write_cases(folder / "cases")
    done = warm.run("-m", "retrievers", "build", "corpus.jsonl", "--index", "runs/index", cwd=folder)
    assert done.code == 0, done.err
    shutil.rmtree(folder / ".outputs")
    return folder


@pytest.fixture
def workspace(project: Path, store: str, tmp_path: Path) -> Path:
    """A copy of the project for one test, with an MLflow store."""
    for name in ("corpus.jsonl", "cases", "runs/index"):
        source, target = project / name, tmp_path / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    return tmp_path
