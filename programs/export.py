"""Export folders: save a program as plain JSON, and load it only where it fits."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, get_args

import dspy
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator

from programs.adapter import LeanJSONAdapter
from programs.rag import AgenticRAG, HybridRAG, NaiveRAG
from programs.run import Bounds
from programs.saving import replace_folder
from programs.tools import NO_TOOLS, Toolbox
from retrievers.records import Retriever

PROGRAMS: dict[str, type[NaiveRAG]] = {"naive": NaiveRAG, "hybrid": HybridRAG, "agentic": AgenticRAG}
FORMAT = 1
FILES = ("program.json", "manifest.json", "prompts.md")
TOOL_PREDICTORS = frozenset({"write_query", "call_tool"})  # there only where the toolbox has something to ask
_LIBRARIES = ("dspy", "chromadb", "rank-bm25", "sentence-transformers", "mlflow")


class _PredictorState(BaseModel):
    """What DSPy keeps of a predictor, as far as it does not look itself."""

    model_config = ConfigDict(extra="allow")

    demos: list[dict[str, Any]]
    signature: dict[str, Any]


_STATE = TypeAdapter(dict[str, _PredictorState])


class ProgramStateError(ValueError):
    """An export is damaged, or does not fit the code or the index it is to be used with."""


class IndexFacts(BaseModel):
    """What a program was compiled on; the embedder must be the same where it is used, the corpus may move on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    embedder: str
    embedder_fingerprint: str
    corpus_version: str
    n_documents: int
    n_passages: int


class Manifest(BaseModel):
    """What built an export and what it needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    program: Literal["naive", "hybrid", "agentic"]
    bounds: dict[str, int | float]
    predictors: dict[str, dict[str, str]]
    state_sha256: str
    lm: str
    index: IndexFacts
    created: str
    libraries: dict[str, str]
    built_by: dict[str, Any] = {}

    @field_validator("built_by")
    @classmethod
    def _check_built_by(cls, built_by: dict[str, Any]) -> dict[str, Any]:
        """Refuse what versions read of it in another form."""
        for name, kind in (("model", str), ("gate", dict)):
            if not isinstance(built_by.get(name), kind | None):
                raise ValueError(f"{name}: {built_by[name]!r}")
        return built_by


def save_export(
    program: NaiveRAG,
    folder: Path,
    *,
    lm: str,
    index: IndexFacts,
    built_by: Mapping[str, Any] | None = None,
    changes: str = "",
) -> Manifest:
    """Write `program.json`, `manifest.json` and `prompts.md` into `folder`, replacing an export that is there.

    The folder is written beside its place and moved there whole, so a reader finds the old export or the new one.

    Args:
        program: The program; its predictors must hold no LM.
        folder: Where the export goes.
        lm: Label of the LM that it was compiled for.
        index: What it was compiled on.
        built_by: Optimizer, settings, scores: whatever explains how it came to be. No secrets.
        changes: Markdown that `prompts.md` ends with: how the prompts differ from those of another program.

    Raises:
        ProgramStateError: A predictor holds an LM, or `folder` is something else than an export.
    """
    check_target(folder)
    holding = [name for name, predictor in program.named_predictors() if predictor.lm is not None]
    if holding:
        raise ProgramStateError(f"predictors {', '.join(holding)} hold an LM; bind LMs with dspy.context instead")
    # Keys keep their order: it is what demos are rendered in.
    state = json.dumps(program.dump_state(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    manifest = Manifest(
        program=name_of(program),
        bounds=asdict(program.bounds),
        predictors=describe_predictors(program),
        state_sha256=_sha256(state),
        lm=lm,
        index=index,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        libraries={name: version(name) for name in _LIBRARIES},
        built_by=dict(built_by or {}),
    )
    prompts = "\n".join([render_prompts(program), *([changes] if changes else [])])
    replace_folder(folder, dict(zip(FILES, (state, _pretty(manifest), prompts), strict=True)))
    return manifest


def load_export(
    folder: Path,
    retrievers: Mapping[str, Retriever],
    index: IndexFacts | None = None,
    toolbox: Toolbox = NO_TOOLS,
) -> NaiveRAG:
    """Load a program from an export folder.

    Args:
        folder: An export.
        retrievers: What the program searches with.
        index: Facts of the index behind `retrievers`; left out, the index is not compared.
        toolbox: What it may use besides; a tool that it was compiled without is asked with the seed prompt.

    Raises:
        FileNotFoundError: No export there.
        ProgramStateError: The export is damaged, its predictors differ from this code's, or the index was built with
            another embedder.
    """
    manifest = read_manifest(folder)
    state = _read_state(folder, manifest)
    program = PROGRAMS[manifest.program](retrievers, Bounds(**manifest.bounds), toolbox)  # type: ignore[arg-type]
    mine = describe_predictors(program)
    optional = TOOL_PREDICTORS & (manifest.predictors.keys() ^ mine.keys())
    _compare_predictors(folder, _without(manifest.predictors, optional), _without(mine, optional))
    if set(state) != set(manifest.predictors):
        raise ProgramStateError(
            f"{folder}/program.json: predictors {sorted(state)}, expected {sorted(manifest.predictors)}"
        )
    if index is not None and index.embedder_fingerprint != manifest.index.embedder_fingerprint:
        raise ProgramStateError(
            f"{folder}: compiled on an index with embedder {manifest.index.embedder}, this index has {index.embedder}; "
            "use the index it was compiled on, or compile again"
        )
    try:
        program.load_state(program.dump_state() | {name: one for name, one in state.items() if name in mine})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ProgramStateError(f"{folder}/program.json: not the state of this program ({reason})") from None
    return program


def read_manifest(folder: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises:
        FileNotFoundError: No export there.
        ProgramStateError: Not a manifest of this format.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        raise FileNotFoundError(f"no export at {folder} (manifest.json is missing); optimize.py writes one")
    try:
        manifest = Manifest.model_validate_json(path.read_text(encoding="utf-8-sig"))
        Bounds(**manifest.bounds)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise ProgramStateError(f"{path}: not a manifest of format {FORMAT}: {_first_line(error)}") from None
    return manifest


def describe_predictors(program: dspy.Module) -> dict[str, dict[str, str]]:
    """Return the schema of a program: predictor → field → `input` or `output` and its type."""
    return {name: _describe(predictor.signature) for name, predictor in sorted(program.named_predictors())}


def _describe(signature: type[dspy.Signature]) -> dict[str, str]:
    inputs = {name: f"input {_type_name(info.annotation)}" for name, info in signature.input_fields.items()}
    outputs = {name: f"output {_type_name(info.annotation)}" for name, info in signature.output_fields.items()}
    return inputs | outputs


def _type_name(annotation: Any) -> str:
    plain = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    return " ".join([plain, *map(_describe_model, _models_in(annotation))])


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, BaseModel):
        yield annotation
        parts = [info.annotation for info in annotation.model_fields.values()]
    else:
        parts = list(get_args(annotation))
    for part in parts:
        yield from _models_in(part)


def _describe_model(model: type[BaseModel]) -> str:
    fields = (f"{name}: {_type_name(info.annotation)}" for name, info in model.model_fields.items())
    return f"{model.__name__}({', '.join(fields)})"


def render_prompts(program: dspy.Module) -> str:
    """Return thresholds and messages of every predictor as Markdown, with `{field}` where an input goes."""
    parts = [f"# Prompts of {type(program).__name__}\n"]
    for name, predictor in sorted(program.named_predictors()):
        parts.append(f"## {name} ({len(predictor.demos)} demos)\n")
        parts += [f"`{output}` is a yes from {state['threshold']} on\n" for output, state in predictor.fields.items()]
        messages = format_prompt(predictor, "{%s}")
        parts += [f"### {message['role']}\n\n~~~~text\n{message['content']}\n~~~~\n" for message in messages]
    return "\n".join(parts)


def format_prompt(predictor: Any, blank: str) -> list[dict[str, Any]]:
    """Return the messages of one predictor; `blank` shows where an input goes, with `%s` for its name."""
    blanks = {field: blank % field for field in predictor.signature.input_fields}
    return LeanJSONAdapter().format(predictor.signature, predictor.demos, blanks)


def _read_state(folder: Path, manifest: Manifest) -> dict[str, Any]:
    path = folder / "program.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        raise ProgramStateError(f"{path}: missing or not UTF-8; export the program again") from None
    if _sha256(text) != manifest.state_sha256:
        raise ProgramStateError(f"{path}: not the file that manifest.json describes; export the program again")
    try:
        _STATE.validate_json(text)
    except ValidationError as error:
        raise ProgramStateError(f"{path}: not the state of a program ({_first_line(error)})") from None
    state: dict[str, Any] = json.loads(text)
    return state


def _without(predictors: Mapping[str, dict[str, str]], names: frozenset[str]) -> dict[str, dict[str, str]]:
    return {name: fields for name, fields in predictors.items() if name not in names}


def _compare_predictors(folder: Path, saved: dict[str, dict[str, str]], mine: dict[str, dict[str, str]]) -> None:
    if saved == mine:
        return
    differing = sorted(name for name in saved.keys() | mine.keys() if saved.get(name) != mine.get(name))
    raise ProgramStateError(
        f"{folder}: predictors differ from this version's in {', '.join(differing)}; compile again, or use the version "
        "of the code that exported it"
    )


def name_of(program: NaiveRAG) -> Literal["naive", "hybrid", "agentic"]:
    """Return the name that a program is built by.

    Raises:
        ProgramStateError: It is none that can be exported.
    """
    for name, kind in PROGRAMS.items():
        if type(program) is kind:
            return name  # type: ignore[return-value]
    raise ProgramStateError(f"{type(program).__name__} is none of {', '.join(PROGRAMS)}")


def choose_place(folder: Path, verdict: str | None, champion: str | None) -> Path:
    """Choose where an export goes after the gate: a rejected one beside `folder`, so that it replaces nothing.

    The champion, where it stands in `folder`, gives way only to a program that is promoted.
    """
    in_use = champion is not None and Path(champion).resolve() == folder.resolve()
    is_beside = verdict == "reject" or (verdict == "keep" and in_use)
    return folder.with_name(f"{folder.name}-{verdict}") if is_beside else folder


def check_target(folder: Path) -> None:
    """Refuse a place where an export can't go, and where it goes if the gate keeps it from there, before the work.

    Raises:
        ProgramStateError: Something else than an export, or an export with other files in it, is there.
        NotADirectoryError: A part of the path is a file.
        OSError: It can't be written.
    """
    parent = next(one for one in folder.absolute().parents if one.exists())
    if not parent.is_dir():
        raise NotADirectoryError(f"{folder}: {parent} is a file; choose another place with --out")
    for place in (folder, *(choose_place(folder, verdict, str(folder)) for verdict in ("keep", "reject"))):
        _check_place(place)
    try:
        os.rmdir(mkdtemp(dir=parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def _check_place(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if folder.exists() and names != set(FILES) and (names or not folder.is_dir()):
        raise ProgramStateError(f"{folder} exists and is no export; choose another place with --out")


def _pretty(manifest: Manifest) -> str:
    return json.dumps(manifest.model_dump(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}"
    return str(error).splitlines()[0]
