import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest
from compiled import compiled_export, record, write_records
from mlflow.tracking import MlflowClient

from programs.__main__ import main
from programs.changes import changes_markdown
from programs.export import render_prompts
from programs.rag import AgenticRAG
from programs.registry import _by_predictor
from programs.tracking import track
from programs.tracking.journal import pending_folders
from retrievers.locks import hold_lock


@dataclass(frozen=True)
class Store:
    uri: str
    folder: Path


@pytest.fixture(scope="module")
def store_of_two(
    project: Path, new_store: Callable[[Path], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A store that two exports were logged to, by the command."""
    folder = tmp_path_factory.mktemp("two")
    uri = new_store(folder)
    for number, name in enumerate(("one", "two"), 1):
        export = compiled_export(
            folder / name, project / "runs" / "index", f"Answer {name}.", compiled_score=number / 2
        )
        assert main(["log", str(export), "--tracking-uri", uri]) == 0
    yield Store(uri, folder)
    mlflow.set_tracking_uri(None)


@pytest.fixture
def ask(store_of_two: Store, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--tracking-uri", store_of_two.uri])
        return code, *capsys.readouterr()

    return run


def test_versions_are_a_table_newest_first(ask: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = ask("versions")
    lines = out.strip().splitlines()
    assert (code, lines[0]) == (0, "agentic-tiny")
    assert [line.split()[0] for line in lines[-2:]] == ["2", "1"]
    assert "candidate" in lines[-2]
    assert lines[-1].split()[-4:-1] == ["0.500", "0.500", "–"]


def test_versions_are_json_for_machines(ask: Callable[..., tuple[int, str, str]]) -> None:
    newest, oldest = json.loads(ask("versions", "--json")[1])
    assert (newest["version"], oldest["version"], newest["tags"]["compiled_score"]) == (2, 1, "1.000")
    assert newest["prompts"]["answer"] == 2


def test_a_version_is_shown_with_its_prompts(ask: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = ask("show", "candidate")
    assert (code, out.splitlines()[0]) == (0, "agentic-tiny 2  candidate")
    assert "  optimizer: bootstrap\n" in out
    assert "Answer two." in out


def test_a_diff_tells_facts_and_prompts_that_differ(ask: Callable[..., tuple[int, str, str]]) -> None:
    lines = ask("diff", "1", "2")[1].splitlines()
    assert "compiled_score: 0.500 → 1.000" in lines
    start = lines.index("--- answer, version 1")
    assert lines[start + 1] == "+++ answer, version 2"
    assert {"-Answer one.", "+Answer two."} <= set(lines)
    assert not [line for line in lines if line.startswith("--- ") and "answer" not in line]
    assert ask("diff", "1", "1")[1] == ""


def test_what_a_compile_changed_is_no_part_of_a_prompt() -> None:
    prompts = render_prompts(AgenticRAG({}))
    told = _by_predictor(f"{prompts}\n{changes_markdown([])}")
    assert told == _by_predictor(prompts)
    assert list(told) == ["answer", "check", "condense", "judge", "plan", "rewrite"]
    assert "changed" not in told["rewrite"]


def test_promote_and_rollback_move_the_champion(ask: Callable[..., tuple[int, str, str]]) -> None:
    assert ask("promote", "1")[:2] == (0, "champion: agentic-tiny 1, as models:/agentic-tiny@champion\n")
    assert ask("promote", "candidate")[0] == 0
    assert "champion" in ask("versions")[1].splitlines()[-3]
    assert ask("rollback")[1].startswith("champion: agentic-tiny 1")
    assert ask("rollback") == (
        1,
        "",
        "error: no version of agentic-tiny was champion before; promote one with: promote VERSION\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "9"], "error: no version '9'; there are: 2, 1"),
        (["versions", "--model", "x"], "error: no model 'x' in this store; choose one with --model: agentic-tiny"),
        (["log", "none"], "error: no export at none"),
    ],
)
def test_what_is_not_there_is_one_line(
    ask: Callable[..., tuple[int, str, str]], arguments: list[str], message: str
) -> None:
    code, out, err = ask(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


def test_an_export_that_names_no_model_needs_one(
    ask: Callable[..., tuple[int, str, str]], project: Path, tmp_path: Path
) -> None:
    export = compiled_export(tmp_path / "export", project / "runs" / "index", "Answer.", model=None)
    assert ask("log", str(export))[2].endswith("name one with --model\n")


def break_params(folder: Path, *, again: bool = False) -> None:
    """Make the store refuse params, or take them again."""
    old, new = ("gone", "params") if again else ("params", "gone")
    with closing(sqlite3.connect(folder / "runs" / "mlflow.db")) as database:
        database.execute(f"ALTER TABLE {old} RENAME TO {new}")
        database.commit()


def test_what_a_store_does_not_take_waits_beside_the_export_and_is_logged_later(
    store: str, tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = compiled_export(tmp_path / "export", project / "runs" / "index", "Answer.")
    records = write_records(tmp_path / "records.jsonl", [record()])
    with track(store, "tests", "a compile", keep=export) as tracked:
        tracked.log_scores("seed", {"score": 0.25})
        break_params(tmp_path)
        tracked.log_params({"optimizer": "bootstrap"})
        tracked.log_files(records, "records")
        tracked.log_traces(records, {"program": "compiled"})
        tracked.log_trial(
            1, 0.5, n_cases=3, n_demos={"answer": 1}, prompts={"answer": "Answer."}, thresholds={"check.supported": 0.4}
        )
        tracked.register("agentic-tiny", export, {"gate": "pass"}, champion=True)
    said = capsys.readouterr().err
    assert "no such table" in said
    assert f"log it later with: python -m programs log {export} --tracking-uri {store}\n" in said
    [waiting] = pending_folders(export)
    shutil.rmtree(export)  # what waits has copies of its files
    records.unlink()

    command = ["log", str(export), "--tracking-uri", store]
    assert main(command) == 2  # the store still refuses, and nothing is lost
    assert pending_folders(export) == [waiting]
    break_params(tmp_path, again=True)
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out == "logged: a compile\n"
    assert pending_folders(export) == []
    client = MlflowClient(store)
    run = client.get_run(tracked.run_id)
    assert (run.info.status, run.data.params) == ("FINISHED", {"optimizer": "bootstrap"})
    assert run.data.metrics | {"seed.score": 0.25, "optimizer.score": 0.5} == run.data.metrics
    assert [one.path for one in client.list_artifacts(tracked.run_id, "records")] == ["records/records.jsonl"]
    assert len(client.search_traces(locations=[run.info.experiment_id])) == 1
    assert client.get_model_version_by_alias("agentic-tiny", "champion").version == 1


def run_with(**entry: object) -> str:
    return json.dumps({"experiment": "e", "run_id": "r", "name": "n", "entries": [entry]})


METRICS = {"metrics": {"a": 1.0}, "step": 0, "time": 1}
EDITED = {
    "unknown kind": run_with(kind="metric", values=METRICS),
    "no kind": run_with(values=METRICS),
    "kind that is a list": run_with(kind=[], values=METRICS),
    "metrics without a time": run_with(kind="metrics", values={"metrics": {}, "step": 0}),
    "a metric in words": run_with(kind="metrics", values=METRICS | {"metrics": {"a": "good"}}),
    "a param that is a number": run_with(kind="params", values={"a": 1}),
    "values that are a list": run_with(kind="text", values=[]),
    "a trial without a score": run_with(kind="trial", values={"number": 1}),
    "files without a path": run_with(kind="files", values={"folder": None}),
    "files that are not there": run_with(kind="files", values={"folder": None}, path="0/gone.jsonl"),
    "a version that nobody named": run_with(kind="version", values={"tags": {}, "champion": True}, path="."),
    "a data set of many": run_with(kind="dataset", values={"name": "n", "digest": "d", "n": "many", "context": "c"}),
}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a": 1}', '{"entries": [3]}', '{"entries": 3}', "[" * 100_000, *EDITED.values()],
    ids=["", "[]", "{", "a", "3 in entries", "3 entries", "deep", *EDITED],
)
def test_what_is_no_run_that_waits_is_one_line_and_kept(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    run = tmp_path / "export.unlogged" / "run.json"
    run.parent.mkdir()
    run.write_text(text, encoding="utf-8")
    assert main(["log", str(tmp_path / "export"), "--tracking-uri", store]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {run}: not a run that waits to be logged (")
    assert line.endswith(f"; remove {run.parent}")
    assert run.read_text(encoding="utf-8") == text


def test_the_reason_names_what_is_wrong_and_what_is_known(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = tmp_path / "export.unlogged"
    waiting.mkdir()
    for name, reason in (
        ("unknown kind", "kind 'metric', expected one of params, "),
        ("a metric in words", "metrics.a: "),
    ):
        (waiting / "run.json").write_text(EDITED[name], encoding="utf-8")
        assert main(["log", str(tmp_path / "export"), "--tracking-uri", store]) == 2
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["no JSON", "3", "{}", '{"id": "x", "seconds": "long"}', '{"seconds": 1, "prediction": 3}']
)
def test_records_that_wait_and_were_edited_are_one_line_and_kept(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    waiting = tmp_path / "export.unlogged"
    waiting.mkdir()
    (waiting / "records.jsonl").write_text(line + "\n", encoding="utf-8")
    entry = run_with(kind="traces", values={"tags": {}}, path="records.jsonl")
    (waiting / "run.json").write_text(entry, encoding="utf-8")
    assert main(["log", str(tmp_path / "export"), "--tracking-uri", store]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {waiting / 'records.jsonl'}:1: no record of an evaluation (")
    assert waiting.is_dir()


def test_a_second_run_that_waits_does_not_replace_the_first_and_one_process_logs_them(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        with track(store, "tests", name, keep=tmp_path / "export") as tracked:
            break_params(tmp_path)
            tracked.log_params({"a": 1})
        break_params(tmp_path, again=True)
    assert [folder.name for folder in pending_folders(tmp_path / "export")] == ["export.unlogged", "export.unlogged-2"]
    with hold_lock(tmp_path / "export.unlogged"):  # as another process that logs it
        assert main(["log", str(tmp_path / "export"), "--tracking-uri", store]) == 2
    assert "is writing this log; wait for it" in capsys.readouterr().err
    assert main(["log", str(tmp_path / "export"), "--tracking-uri", store]) == 0
    assert [path.name for path in tmp_path.glob("*unlogged*")] == []


def test_trials_are_children_of_their_compile_and_points_of_its_curve(store: str) -> None:
    with track(store, "tests", "mipro light") as tracked:
        for number, (score, n_cases) in enumerate([(0.5, 9), (0.75, 3), (0.625, 9)], 1):
            tracked.log_trial(number, score, n_cases=n_cases, is_full=n_cases == 9, prompts={"answer": "Answer."})
    client = MlflowClient(store)
    curve = client.get_metric_history(tracked.run_id, "optimizer.score")
    assert [(point.step, point.value) for point in curve] == [(1, 0.5), (3, 0.625)]
    assert [point.step for point in client.get_metric_history(tracked.run_id, "optimizer.minibatch_score")] == [2]
    experiment = client.get_run(tracked.run_id).info.experiment_id
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{tracked.run_id}'")
    assert sorted(child.info.run_name for child in children) == [
        "trial 1 · 0.500 on 9 cases", "trial 2 · 0.750 on 3 cases", "trial 3 · 0.625 on 9 cases",
    ]  # fmt: skip
    assert client.list_artifacts(children[0].info.run_id, "prompts")[0].path == "prompts/answer.txt"


def test_help_needs_no_mlflow(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("versions", "show", "diff", "promote", "rollback", "log"))
