import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import mlflow
import pandas as pd
import pytest
import tiny
import yaml
from commands import contents
from compiled import compiled_export
from mlflow.tracking import MlflowClient
from scripted_server import ScriptedServer

from programs.export import ProgramStateError, load_export, render_prompts
from programs.lms import bind, make_roles
from programs.load import Tools, load_program, open_tools
from programs.tracking import versions
from programs.tracking.stores import TrackingError, make_experiment
from programs.tracking.versions import (
    PromotionError,
    VersionNotFound,
    exported,
    find,
    list_versions,
    promote,
    register,
    registry_name,
    requirements,
    roll_back,
)

pytestmark = pytest.mark.slow
NAME = "agentic-tiny"
ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}


@dataclass(frozen=True)
class Registry:
    uri: str
    first: Path
    second: Path
    folder: Path
    run_id: str


@pytest.fixture(scope="module")
def registry(
    project: Path, new_store: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """A store with two versions that differ in one prompt."""
    folder = tmp_path_factory.mktemp("registry")
    uri = new_store(folder)
    experiment = make_experiment(uri, "tests")
    exports = [compiled_export(folder / name, project / "runs" / "index", f"Answer {name}.") for name in ("one", "two")]
    run_id = MlflowClient(uri).create_run(experiment).info.run_id
    for export in exports:
        register(uri, NAME, export, run_id, {"gate": "promote", "score": None})
    yield Registry(uri, *exports, folder, run_id)
    mlflow.set_tracking_uri(None)


def test_the_newest_version_is_the_candidate_and_says_what_it_is(registry: Registry) -> None:
    newest, oldest = list_versions(registry.uri)
    assert (newest.number, oldest.number) == (2, 1)
    assert "candidate" in newest.aliases
    facts = {name: newest.tags[name] for name in ("gate", "lm", "optimizer", "seed_score", "compiled_score")}
    assert facts == {
        "gate": "promote", "lm": "openai/test", "optimizer": "bootstrap",
        "seed_score": "0.500", "compiled_score": "0.750",
    }  # fmt: skip
    described = MlflowClient(registry.uri).get_model_version(NAME, "2").description
    assert described == "bootstrap for openai/test: 0.500 → 0.750, gate: promote"
    model_id = MlflowClient(registry.uri).get_model_version(NAME, "2").source.removeprefix("models:/")
    told = MlflowClient(registry.uri).get_logged_model(model_id).tags
    assert not [value for value in told.values() if value.startswith("/")]
    assert newest.tags["corpus_version"]
    assert newest.run_id == registry.run_id


def test_a_prompt_gets_a_new_version_only_where_it_changed(registry: Registry) -> None:
    newest, oldest = list_versions(registry.uri)
    assert {name for name in oldest.prompts if newest.prompts[name] != oldest.prompts[name]} == {"answer"}
    prompts = [MlflowClient(registry.uri).load_prompt(f"prompts:/{NAME}.answer/{n}").template for n in (1, 2)]
    assert [prompt[0]["content"].split("\n")[0] for prompt in prompts] == ["Answer one.", "Answer two."]
    assert "{{question}}" in prompts[0][-1]["content"]
    assert prompts[0][1]["content"].endswith("question: Which fuse?")  # a demo, as the LM gets it


def test_an_export_that_is_registered_is_not_registered_again(registry: Registry) -> None:
    again = register(registry.uri, NAME, registry.first, registry.run_id, {})
    assert again.number == 1
    assert len(list_versions(registry.uri)) == 2
    assert find(registry.uri, "candidate").number == 2


def test_the_export_comes_back_byte_for_byte(registry: Registry) -> None:
    with exported(registry.uri, f"models:/{NAME}/1") as folder:
        assert contents(folder) == contents(registry.first)
    assert not folder.exists()


def test_champions_are_promoted_and_rolled_back_one_by_one(registry: Registry) -> None:
    for which in ("1", "2", "2"):
        promote(registry.uri, find(registry.uri, which))
    assert find(registry.uri, "champion").number == 2
    client = MlflowClient(registry.uri)
    assert client.load_prompt(f"prompts:/{NAME}.answer@champion", cache_ttl_seconds=0).version == 2
    assert roll_back(registry.uri).number == 1
    assert find(registry.uri, "champion").number == 1
    assert client.load_prompt(f"prompts:/{NAME}.answer@champion", cache_ttl_seconds=0).version == 1
    with pytest.raises(PromotionError, match=f"no version of {NAME} was champion before"):
        roll_back(registry.uri)


def test_who_promotes_while_another_does_comes_after_it(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    set_alias, began, is_second_done = versions._set_alias, Event(), Event()

    def set_late(*args: Any) -> None:
        if not began.is_set():
            began.set()
            is_second_done.wait(0.5)  # it never is: the second one waits
        set_alias(*args)

    monkeypatch.setattr(versions, "_set_alias", set_late)
    with ThreadPoolExecutor(1) as first:
        first.submit(promote, registry.uri, find(registry.uri, "1"))
        began.wait()
        promote(registry.uri, find(registry.uri, "2"))
        is_second_done.set()
    assert find(registry.uri, "champion").number == 2
    assert roll_back(registry.uri).number == 1


def test_a_model_that_a_kill_left_without_a_version_has_none_to_go_back_to(registry: Registry) -> None:
    client = MlflowClient(registry.uri)
    client.create_registered_model("empty")
    try:
        with pytest.raises(PromotionError, match="no version of empty was champion before"):
            roll_back(registry.uri, "empty")
    finally:
        client.delete_registered_model("empty")


def test_what_the_gate_rejected_is_promoted_only_by_force(registry: Registry) -> None:
    client = MlflowClient(registry.uri)
    client.set_model_version_tag(NAME, "2", "gate", "reject")
    try:
        refused = find(registry.uri, "2")
        with pytest.raises(PromotionError, match="the gate rejected version 2"):
            promote(registry.uri, refused)
        assert "champion" in promote(registry.uri, refused, force=True).aliases
    finally:
        client.set_model_version_tag(NAME, "2", "gate", "promote")


def test_a_rejected_version_is_registered_and_the_candidate_stays(registry: Registry, project: Path) -> None:
    gate = {"verdict": "reject", "reasons": []}
    worse = compiled_export(registry.folder / "worse", project / "runs" / "index", "Answer two.", gate=gate)
    client = MlflowClient(registry.uri)
    version = register(registry.uri, NAME, worse, registry.run_id, {})
    try:
        assert (version.number, version.tags["gate"]) == (3, "reject")
        assert find(registry.uri, "candidate").number == 2
    finally:
        client.delete_model_version(NAME, str(version.number))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda uri: find(uri, "7"), r"no version '7'; there are: 2, 1, "),
        (lambda uri: list_versions(uri, "other"), rf"no model 'other' in this store; choose one with --model: {NAME}"),
        (lambda uri: load_program("models:/x", None, tracking_uri=uri), r"expected models:/NAME@ALIAS"),  # type: ignore[arg-type]
        (lambda uri: load_program(f"models:/{NAME}@nobody", None, tracking_uri=uri), r"no version 'nobody'"),  # type: ignore[arg-type]
    ],
    ids=["number", "model", "no version", "alias"],
)
def test_what_is_not_there_is_said_with_what_is(registry: Registry, run: Callable[[str], Any], message: str) -> None:
    with pytest.raises(VersionNotFound, match=message):
        run(registry.uri)


def test_reading_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"no MLflow store at .*none\.db"):
        list_versions(f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


def test_a_version_is_loaded_by_alias_with_the_same_prompts(registry: Registry, project: Path) -> None:
    tools = open_tools(project / "runs" / "index")
    loaded = load_program(f"models:/{NAME}@candidate", tools, tracking_uri=registry.uri)
    assert render_prompts(loaded) == render_prompts(load_export(registry.second, {}))
    other = Tools(tools.index, tools.retrievers, tools.facts.model_copy(update={"embedder_fingerprint": "else"}))
    with pytest.raises(ProgramStateError, match=f"^models:/{NAME}@candidate: compiled on an index with embedder"):
        load_program(f"models:/{NAME}@candidate", other, tracking_uri=registry.uri)


def model_folder(registry: Registry) -> Path:
    found = list((registry.folder / "runs" / "mlartifacts").rglob("MLmodel"))
    return next(path.parent for path in found if "Answer one" in (path.parent / "data/export/program.json").read_text())


def test_a_version_is_plain_files_with_signature_example_and_requirements(registry: Registry) -> None:
    folder = model_folder(registry)
    described = yaml.safe_load((folder / "MLmodel").read_text(encoding="utf-8"))
    assert described["flavors"]["python_function"]["loader_module"] == "programs.tracking.pyfunc"
    assert [one["name"] for one in json.loads(described["signature"]["inputs"])] == ["question", "history"]
    assert json.loads((folder / "input_example.json").read_text(encoding="utf-8"))["columns"] == ["question"]
    listed = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert {one.partition("==")[0].partition("[")[0] for one in listed} >= {"dspy", "chromadb", "bm25s", "mlflow"}
    assert all("+" not in one and "==" in one for one in listed)
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {"", ".py", ".json", ".yaml", ".txt", ".md"}
    for path in folder.rglob("*"):
        assert path.is_dir() or os.fsencode(registry.folder) not in path.read_bytes()


def test_an_embedded_lm_is_among_the_requirements_of_what_it_answers_for() -> None:
    assert not any("xllamacpp" in one for one in requirements("openai/test"))
    assert any("xllamacpp" in one for one in requirements("local:qwen2.5-coder-1.5b"))


@pytest.mark.parametrize(
    ("text", "name"),
    [("agentic-sample", "agentic-sample"), ("Agentic My cases/v2", "agentic-my-cases-v2"), ("案例", "ue6a188e4be8b")],
)
def test_names_are_what_a_registry_takes(text: str, name: str) -> None:
    assert registry_name(text) == name


ASK = """
import json, sys
import mlflow, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2], model_config=json.loads(sys.argv[3]))
table = model.predict(pd.DataFrame({"question": json.loads(sys.argv[4])}))
import programs
print(json.dumps({"code": programs.__file__, "rows": table.to_dict("records")}))
"""


def test_a_version_answers_in_a_clean_environment_as_it_did_before(
    registry: Registry, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = list(ANSWERS)[:3]
    with ScriptedServer(ANSWERS) as server:
        tools, roles = open_tools(project / "runs" / "index"), make_roles("openai/test", api_base=server.url)
        with bind(roles):
            before = [load_export(registry.second, tools.retrievers)(question=question) for question in questions]
        n_calls = len(server.requests)
        # Without `site`, the checkout is not on the path: what runs is the code in the model.
        env = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]}
        config = json.dumps({"index": str(project / "runs" / "index"), "api_base": server.url, "threads": 2})
        command = [registry.uri, f"models:/{NAME}@candidate", config, json.dumps(questions)]
        done = subprocess.run(
            [sys.executable, "-S", "-c", ASK, *command], cwd=tmp_path, env=env, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    after = json.loads(done.stdout.splitlines()[-1])
    assert not after["code"].startswith(str(Path(__file__).parents[1]))
    assert [row["answer"] for row in after["rows"]] == [one.answer for one in before]
    assert [tuple(row["citations"]) for row in after["rows"]] == [one.citations for one in before]
    assert len(server.requests) == n_calls  # every prompt was the same, byte for byte: all answers came from the cache


@pytest.mark.spark
@pytest.mark.filterwarnings("default")  # PySpark and pandas 3 warn of each other
def test_a_spark_table_of_questions_is_answered_by_its_workers(
    registry: Registry, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    sql = pytest.importorskip("pyspark.sql")
    functions = pytest.importorskip("pyspark.sql.functions")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    spark = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        with ScriptedServer(ANSWERS) as server:
            config = {"index": str(project / "runs" / "index"), "api_base": server.url}
            mlflow.set_tracking_uri(registry.uri)
            answer = mlflow.pyfunc.spark_udf(
                spark, f"models:/{NAME}@candidate", model_config=config, env_manager="local",
                extra_env={"COMPILED_RAG_CACHE": os.environ["COMPILED_RAG_CACHE"]},
            )  # fmt: skip
            questions = spark.createDataFrame(pd.DataFrame({"question": list(ANSWERS)[:4]})).repartition(2)
            rows = questions.select("question", answer(functions.struct("question")).alias("found")).collect()
        assert {row.question: row.found.answer for row in rows} == dict(list(ANSWERS.items())[:4])
        assert all(len(row.found.citations) == 1 and row.found.error is None for row in rows)
    finally:
        spark.stop()
