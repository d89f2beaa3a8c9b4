"""The registry: exports as model versions with aliases, their prompts beside them; promote and roll back."""

import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array, Object, Property

from programs.tracking.provenance import describe_code
from programs.tracking.pyfunc import CONFIG
from programs.tracking.stores import guarded, only_writer

if TYPE_CHECKING:
    from programs.export import Manifest

CHAMPION, CANDIDATE = "champion", "candidate"
_REJECTED = "reject"  # a verdict of the gate
_PROJECT = "compiled-rag"
_ROOT = Path(__file__).parents[2]
# What an export needs to run; no gold case is among it.
_PACKAGES = ("signatures", "retrievers", "programs")
_FILES = ("trainsets/__init__.py", "trainsets/normalize.py")
_PAST = "champions"  # tag of a model: the versions that were champion, the present one last
_STATE, _CREATED, _PROMPTS = "state_sha256", "created", "prompts"
_TURN = Object([Property("role", DataType.string), Property("text", DataType.string)])
_SIGNATURE = ModelSignature(
    inputs=Schema([ColSpec("string", "question"), ColSpec(Array(_TURN), "history", required=False)]),
    outputs=Schema(
        [
            ColSpec("string", "answer"),
            ColSpec(Array(DataType.string), "citations"),
            ColSpec("boolean", "abstained"),
            ColSpec("string", "stop_reason"),
            ColSpec("long", "lm_calls"),
            ColSpec("double", "seconds"),
            ColSpec("string", "error", required=False),
        ]
    ),
)
_EXAMPLE = pd.DataFrame({"question": ["Which documents are there?"]})


class VersionNotFound(LookupError):  # noqa: N818 - named as the other exceptions of what is not there
    """No such model, version or alias in the registry."""


class PromotionError(RuntimeError):
    """A version that may not become champion, or no version to go back to."""


@dataclass(frozen=True, slots=True)
class Version:
    """One registered version of a compiled program."""

    name: str
    number: int
    aliases: tuple[str, ...]
    created: datetime
    run_id: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def prompts(self) -> dict[str, int]:
        """The version of every predictor's prompt in the prompt registry."""
        pairs = (pair.rpartition("=") for pair in self.tags.get(_PROMPTS, "").split())
        return {predictor: int(number) for predictor, _, number in pairs if number.isdecimal()}


def registry_name(text: str) -> str:
    """Return `text` as models, prompts and experiments may be called: ASCII letters, digits, `.`, `_` and `-`."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")
    return plain or "u" + text.encode().hex()[:12]


def register(tracking_uri: str, name: str, export: Path, run_id: str, tags: Mapping[str, Any]) -> Version:
    """Register an export as the next version of a model, the candidate unless rejected; a known one is left alone.

    The version holds the export, the code that runs it and the requirements of both, and nothing pickled.

    Args:
        tracking_uri: The store.
        name: The model, see `registry_name`.
        export: An export folder.
        run_id: The run that it came from.
        tags: What the list of versions shows beside it: the verdict of the gate, scores.

    Raises:
        ProgramStateError: The export is damaged.
    """
    from programs.export import load_export, read_manifest

    client, manifest = MlflowClient(tracking_uri), read_manifest(export)
    program = load_export(export, {})
    with only_writer(tracking_uri):
        _make_model(client, name)
        known = _same_export(client, name, manifest)
        if known is None:
            model_id = _log_model(export, manifest, run_id)
            shown = _tags_of(manifest) | {key: str(value) for key, value in tags.items() if value is not None}
            source, about = f"models:/{model_id}", _say(shown)
            known = client.create_model_version(name, source, run_id, shown, description=about, model_id=model_id)
        if _PROMPTS not in known.tags:
            numbers = _register_prompts(client, name, program, f"version {known.version}", run_id)
            listed = " ".join(f"{predictor}={number}" for predictor, number in numbers.items())
            client.set_model_version_tag(name, known.version, _PROMPTS, listed)
            registered = find(tracking_uri, str(known.version), name)
            if registered.tags.get("gate") != _REJECTED:
                _set_alias(client, registered, CANDIDATE)
    return find(tracking_uri, str(known.version), name)


def _make_model(client: MlflowClient, name: str) -> None:
    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(name, description="A RAG program compiled against a gold case set.")


def _same_export(client: MlflowClient, name: str, manifest: "Manifest") -> Any:
    for one in client.search_model_versions(f"name = '{name}'"):
        if one.tags.get(_STATE) == manifest.state_sha256 and one.tags.get(_CREATED) == manifest.created:
            return one
    return None


def _tags_of(manifest: "Manifest") -> dict[str, str]:
    built_by = manifest.built_by
    wanted = {name: built_by.get(name) for name in ("optimizer", "seed_score", "compiled_score")}
    wanted["gate"] = (built_by.get("gate") or {}).get("verdict")
    told = {name: _shown(value) for name, value in wanted.items() if value is not None}
    return told | {
        "program": manifest.program,
        "lm": manifest.lm,
        "corpus_version": manifest.index.corpus_version,
        "embedder": manifest.index.embedder,
        _STATE: manifest.state_sha256,
        _CREATED: manifest.created,
    }


def _say(tags: Mapping[str, str]) -> str:
    """Return one line on a version, for the list of versions."""
    line = f"{tags.get('optimizer', 'export')} for {tags['lm']}"
    if "seed_score" in tags and "compiled_score" in tags:
        line += f": {tags['seed_score']} → {tags['compiled_score']}"
    return f"{line}, gate: {tags['gate']}" if "gate" in tags else line


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _log_model(export: Path, manifest: "Manifest", run_id: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:  # under one name, whatever the export folder is called
        data = shutil.copytree(export, Path(scratch) / "export")
        (code := Path(scratch) / "trainsets").mkdir()
        for file in _FILES:
            shutil.copy(_ROOT / file, code)
        info = Model.log(
            None,
            _Flavor,
            name="program",
            run_id=run_id,
            loader_module="programs.tracking.pyfunc",
            data_path=str(data),
            code_paths=[*(str(_ROOT / package) for package in _PACKAGES), str(code)],
            pip_requirements=requirements(manifest.lm),
            signature=_SIGNATURE,
            input_example=_EXAMPLE,
            metadata={"lm": manifest.lm, "corpus_version": manifest.index.corpus_version},
            validate_serving_input=False,
            tags=describe_code() | {"mlflow.source.name": Path(sys.argv[0]).name},
        )
    return str(info.model_id)


class _Flavor:
    """The pyfunc flavor, without what MLflow does beside saving.

    It would try the example, which opens the index and calls the LM, and log the configuration as params of the run.
    """

    @staticmethod
    def save_model(path: str, validate_serving_input: bool, mlflow_model: Model, **kwargs: Any) -> None:
        mlflow_model.artifact_path = "program"  # not the absolute place of the artifacts
        mlflow.pyfunc.save_model(path, model_config=dict(CONFIG), mlflow_model=mlflow_model, **kwargs)
        _keep_out_bytecode(Path(path))


def _keep_out_bytecode(code: Path) -> None:
    """Put a file where Python would make a folder for the bytecode of the code in a version.

    A version in a local store is run where it lies, and its bytecode would hold the absolute path of that place.
    """
    for folder in {source.parent for source in code.rglob("*.py")}:
        (folder / "__pycache__").write_text("No bytecode is kept here: it would hold the path of this folder.\n")


def requirements(lm: str) -> list[str]:
    """Return what a version needs to run, each package at the version that is installed here."""
    declared = _declared()
    wanted = [*declared[""], *(declared.get(extra, []) if (extra := _extra_of(lm)) else [])]
    names = [re.sub(r"\s", "", re.split(r"[<>=!~;]", one)[0]) for one in wanted]
    found = {name: _installed(name.partition("[")[0]) for name in names}
    return [f"{name}=={number}" for name, number in found.items() if number]


def _extra_of(lm: str) -> str | None:
    """Return the extra that installs an embedded LM; an LM served elsewhere needs none."""
    from programs.local_lm import MODELS

    return next((model.extra for model in MODELS.values() if f"local:{model.name}" in lm), None)


def _declared() -> dict[str, list[str]]:
    """Return the requirements of each extra, and of none: from the checkout, whose installation may be older."""
    checkout = _ROOT / "pyproject.toml"
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    declared: dict[str, list[str]] = {"": []}
    for requirement in requires(_PROJECT) or []:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        declared.setdefault(extra.group(1) if extra else "", []).append(requirement)
    return declared


def _installed(package: str) -> str | None:
    try:
        return version(package).partition("+")[0]  # `+cpu` is a build of one index, no version that all of them have
    except PackageNotFoundError:
        return None


def _register_prompts(client: MlflowClient, name: str, program: Any, message: str, run_id: str) -> dict[str, int]:
    """Register the messages of every predictor; a prompt that did not change keeps its version."""
    from programs.export import format_prompt

    numbers = {}
    for predictor_name, predictor in sorted(program.named_predictors()):
        prompt = f"{name}.{predictor_name}"
        messages = [{"role": one["role"], "content": one["content"]} for one in format_prompt(predictor, "{{%s}}")]
        last = client.load_prompt(f"prompts:/{prompt}@latest", allow_missing=True, cache_ttl_seconds=0)
        if last is None or last.template != messages:
            last = client.register_prompt(prompt, messages, message, tags={"demos": str(len(predictor.demos))})
        client.link_prompt_version_to_run(run_id, last)
        numbers[predictor_name] = int(last.version)
    return numbers


def _set_alias(client: MlflowClient, version: Version, alias: str) -> None:
    client.set_registered_model_alias(version.name, alias, str(version.number))
    for predictor, number in version.prompts.items():
        client.set_prompt_alias(f"{version.name}.{predictor}", alias, number)


@guarded
def list_versions(tracking_uri: str, name: str | None = None) -> list[Version]:
    """Return all versions of a model, newest first; of the only model there is, if no name is given.

    Raises:
        VersionNotFound: No such model, none at all, or several to choose from.
    """
    client = MlflowClient(tracking_uri)
    model = _model(client, name)
    aliases: dict[str, list[str]] = {}
    for alias, number in model.aliases.items():
        aliases.setdefault(str(number), []).append(alias)
    found = client.search_model_versions(f"name = '{model.name}'")
    versions = [_version(one, aliases.get(str(one.version), [])) for one in found]
    return sorted(versions, key=lambda one: -one.number)


def _model(client: MlflowClient, name: str | None) -> Any:
    models = {one.name: one for one in client.search_registered_models()}
    if name in models or (name is None and len(models) == 1):
        return models[name] if name is not None else next(iter(models.values()))
    if not models:
        raise VersionNotFound("no version is registered in this store; optimize.py registers what it exports")
    wanted = f"no model {name!r}" if name else "several models"
    raise VersionNotFound(f"{wanted} in this store; choose one with --model: {', '.join(sorted(models))}")


def _version(one: Any, aliases: list[str]) -> Version:
    created = datetime.fromtimestamp(one.creation_timestamp / 1000)
    return Version(one.name, int(one.version), tuple(sorted(aliases)), created, one.run_id or "", dict(one.tags))


@guarded
def find(tracking_uri: str, which: str, name: str | None = None) -> Version:
    """Return a version by its number or by an alias.

    Raises:
        VersionNotFound: There is none.
    """
    versions = list_versions(tracking_uri, name)
    for one in versions:
        if which.removeprefix("v") == str(one.number) or which in one.aliases:
            return one
    known = ", ".join([*(str(one.number) for one in versions), *(alias for one in versions for alias in one.aliases)])
    raise VersionNotFound(f"no version {which!r}; there are: {known or 'none'}")


@guarded
def promote(tracking_uri: str, version: Version, *, force: bool = False) -> Version:
    """Make a version the champion.

    Raises:
        PromotionError: The gate rejected it; `force` promotes it all the same.
    """
    if version.tags.get("gate") == _REJECTED and not force:
        raise PromotionError(f"the gate rejected version {version.number}; promote it all the same with --force")
    client = MlflowClient(tracking_uri)
    with only_writer(tracking_uri):
        past = _past(client, version.name)
        if not past or past[-1] != version.number:
            client.set_registered_model_tag(version.name, _PAST, " ".join(map(str, [*past, version.number])))
        _set_alias(client, version, CHAMPION)
    return find(tracking_uri, str(version.number), version.name)


@guarded
def roll_back(tracking_uri: str, name: str | None = None) -> Version:
    """Make the version that was champion before the present one champion again.

    Raises:
        PromotionError: There was none before.
        VersionNotFound: No such model.
    """
    client = MlflowClient(tracking_uri)
    model = _model(client, name).name
    with only_writer(tracking_uri):
        past = _past(client, model)
        if len(past) < 2:
            raise PromotionError(f"no version of {model} was champion before; promote one with: promote VERSION")
        before = find(tracking_uri, str(past[-2]), model)
        _set_alias(client, before, CHAMPION)
        client.set_registered_model_tag(model, _PAST, " ".join(map(str, past[:-1])))
    return before


def _past(client: MlflowClient, name: str) -> list[int]:
    told = client.get_registered_model(name).tags.get(_PAST, "").split()
    return [int(number) for number in told if number.isdecimal()]  # a tag can be edited in the UI


@contextmanager
def exported(tracking_uri: str, uri: str) -> Iterator[Path]:
    """Fetch the export of `models:/NAME@ALIAS` or `models:/NAME/NUMBER` into a folder that lasts for the block.

    Raises:
        VersionNotFound: There is no such version.
    """
    matched = re.fullmatch(r"models:/([^/@]+)[/@]([^/@]+)", uri)
    if not matched:
        raise VersionNotFound(f"not a version: {uri!r}; expected models:/NAME@ALIAS or models:/NAME/NUMBER")
    version = find(tracking_uri, matched.group(2), matched.group(1))
    with tempfile.TemporaryDirectory() as scratch:
        yield _download(tracking_uri, version, Path(scratch))


@guarded
def _download(tracking_uri: str, version: Version, folder: Path) -> Path:
    source = f"models:/{version.name}/{version.number}/data/export"
    return Path(mlflow.artifacts.download_artifacts(source, dst_path=str(folder), tracking_uri=tracking_uri))
