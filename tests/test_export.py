import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import dspy
import pytest
from commands import contents

from programs.databases import SQLite
from programs.decisions import threshold_of
from programs.export import (
    FILES,
    PROGRAMS,
    Manifest,
    ProgramStateError,
    check_target,
    describe_predictors,
    load_export,
    read_manifest,
    render_prompts,
    save_export,
)
from programs.load import Tools
from programs.rag import CHECK_THRESHOLD, AgenticRAG, HybridRAG, NaiveRAG
from programs.run import Bounds
from programs.sql import Tables
from programs.tools import Toolbox
from signatures import SearchStep

ROOT = Path(__file__).parents[1]


def compiled(tools: Tools, kind: type[NaiveRAG] = AgenticRAG, **bounds: int) -> NaiveRAG:
    """A program with instructions and demos as optimizers leave them, in both languages."""
    program = kind(tools.retrievers, Bounds(**bounds))
    program.answer.signature = program.answer.signature.with_instructions("Answer briefly.\n用提问的语言回答。")
    program.answer.demos = [
        dspy.Example(
            augmented=True, question="保修多久？", passages="<passage 1> …", answer="三年\u2028", citations=[1]
        )
    ]
    if isinstance(program, AgenticRAG):
        steps = [SearchStep(tool="keyword", query='E-1024 "x"'), SearchStep(tool="dense", query="风扇")]
        program.plan.demos = [dspy.Example(augmented=True, question="q", steps=steps)]
        program.rewrite.demos = [
            dspy.Example(question="q", known="k", missing="m", tried=["一", "two"], query="q2", tool="hybrid")
        ]
    return program


def save(program: NaiveRAG, folder: Path, tools: Tools, **built_by: Any) -> Manifest:
    return save_export(program, folder, lm="openai/test", index=tools.facts, built_by=built_by)


@pytest.mark.parametrize("kind", PROGRAMS.values(), ids=PROGRAMS)
def test_a_loaded_program_renders_the_same_bytes_in_a_fresh_process(
    kind: type[NaiveRAG], tools: Tools, tmp_path: Path
) -> None:
    program = compiled(tools, kind)
    save(program, tmp_path / "export", tools)
    code = (
        "import sys, pathlib; from programs.export import load_export, render_prompts\n"
        "program = load_export(pathlib.Path(sys.argv[1]), {})\n"
        "sys.stdout.buffer.write(render_prompts(program).encode())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "export")]
    fresh = subprocess.run(
        command, capture_output=True, check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    expected = render_prompts(program).encode()
    assert fresh.stdout == expected
    assert (tmp_path / "export" / "prompts.md").read_bytes() == expected
    assert "三年" in expected.decode()


def test_loading_and_saving_again_changes_nothing(tools: Tools, tmp_path: Path) -> None:
    program = compiled(tools, max_rounds=2)
    first = save(program, tmp_path / "a", tools)
    loaded = load_export(tmp_path / "a", tools.retrievers, tools.facts)
    second = save(loaded, tmp_path / "b", tools)
    assert contents(tmp_path / "a")["program.json"] == contents(tmp_path / "b")["program.json"]
    assert contents(tmp_path / "a")["prompts.md"] == contents(tmp_path / "b")["prompts.md"]
    assert first.state_sha256 == second.state_sha256
    assert loaded.bounds == program.bounds == Bounds(max_rounds=2)
    assert type(loaded) is AgenticRAG


def test_the_threshold_of_the_check_is_saved_and_loaded_back(tools: Tools, tmp_path: Path) -> None:
    program = AgenticRAG(tools.retrievers)
    program.check.fields["supported"]["threshold"] = 0.73
    save(program, tmp_path / "export", tools)
    loaded = load_export(tmp_path / "export", tools.retrievers, tools.facts)
    assert isinstance(loaded, AgenticRAG)
    assert threshold_of(loaded.check, "supported") == threshold_of(loaded.deepcopy().check, "supported") == 0.73
    assert threshold_of(AgenticRAG(tools.retrievers).check, "supported") == CHECK_THRESHOLD


def test_prompts_end_with_what_changed(tools: Tools, tmp_path: Path) -> None:
    program = compiled(tools)
    save_export(program, tmp_path / "export", lm="openai/test", index=tools.facts, changes="# Changed\n\n三年\n")
    text = (tmp_path / "export" / "prompts.md").read_text(encoding="utf-8")
    assert text == render_prompts(program) + "\n# Changed\n\n三年\n"
    load_export(tmp_path / "export", tools.retrievers, tools.facts)


def test_a_program_copied_by_an_optimizer_saves_the_same_bytes(tools: Tools, tmp_path: Path) -> None:
    program = compiled(tools)
    save(program, tmp_path / "a", tools)
    save(program.deepcopy(), tmp_path / "b", tools)
    assert contents(tmp_path / "a")["program.json"] == contents(tmp_path / "b")["program.json"]


def test_an_export_is_three_plain_files(tools: Tools, tmp_path: Path) -> None:
    save(compiled(tools), tmp_path / "export", tools)
    files = contents(tmp_path / "export")
    assert set(files) == set(FILES)
    json.loads(files["program.json"])
    json.loads(files["manifest.json"])
    assert "三年".encode() in files["program.json"]  # readable, not escaped
    assert not any(content.startswith(b"\x80") for content in files.values())  # the head of a pickle


def test_the_manifest_says_what_built_it_and_what_it_needs(tools: Tools, tmp_path: Path) -> None:
    save(compiled(tools), tmp_path / "export", tools, optimizer="bootstrap", seed_score=0.5)
    manifest = read_manifest(tmp_path / "export")
    assert (manifest.program, manifest.lm, manifest.format) == ("agentic", "openai/test", 1)
    assert manifest.index == tools.facts
    assert manifest.built_by == {"optimizer": "bootstrap", "seed_score": 0.5}
    assert set(manifest.libraries) >= {"dspy", "chromadb", "mlflow"}
    assert manifest.bounds["max_rounds"] == Bounds().max_rounds
    assert manifest.created.endswith("+00:00")


def test_the_predictors_of_the_agentic_program_are_pinned(tools: Tools) -> None:
    # These names are the schema of every export that exists: a rename makes them all unreadable.
    names = set(describe_predictors(AgenticRAG(tools.retrievers)))
    assert {"answer", "condense", "judge", "plan", "rewrite"} <= names <= {
        "answer", "check", "condense", "judge", "plan", "rewrite",
    }  # fmt: skip
    assert set(describe_predictors(HybridRAG(tools.retrievers))) == {"answer"}


def test_an_lm_on_a_predictor_is_refused_so_that_no_address_or_key_is_written(tools: Tools, tmp_path: Path) -> None:
    program = compiled(tools)
    program.answer.lm = dspy.LM("openai/x", api_key="SECRET", api_base="http://SECRET/v1")
    with pytest.raises(ProgramStateError, match="predictors answer hold an LM"):
        save(program, tmp_path / "export", tools)
    assert not (tmp_path / "export").exists()


def test_lms_bound_while_saving_leave_no_trace(tools: Tools, tmp_path: Path) -> None:
    lm = dspy.LM("openai/x", api_key="SECRET", api_base="http://SECRET/v1")
    with dspy.context(lm=lm):
        save(compiled(tools), tmp_path / "export", tools)
    assert not any(b"SECRET" in content for content in contents(tmp_path / "export").values())


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_export_is_refused(tools: Tools, tmp_path: Path, name: str) -> None:
    save(compiled(tools), tmp_path / "export", tools)
    path = tmp_path / "export" / name
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content.replace(b"briefly", b"rudely"), b"\xff\xfe", b""):
        path.write_bytes(damaged)
        if name == "prompts.md" or damaged == content:
            load_export(tmp_path / "export", tools.retrievers)  # for people only; nothing is read from it
        else:
            with pytest.raises(ProgramStateError, match=str(path)):
                load_export(tmp_path / "export", tools.retrievers)


@pytest.mark.parametrize(
    "edit",
    [
        lambda state: "{",
        lambda state: "[]",
        lambda state: json.dumps(state | {"answer": 3}),
        lambda state: json.dumps(state | {"answer": {"demos": []}}),
        lambda state: json.dumps(state | {"answer": state["answer"] | {"signature": {"fields": 3}}}),
        lambda state: json.dumps(state | {"answer": state["answer"] | {"demos": 3}}),
        lambda state: json.dumps(state | {"answer": state["answer"] | {"demos": [3]}}),
    ],
    ids=["torn", "a list", "a number", "no signature", "no fields", "no demos", "a demo that is a number"],
)
def test_a_state_that_was_edited_is_refused_even_where_its_digest_was_too(
    tools: Tools, tmp_path: Path, edit: Callable[[dict[str, Any]], str]
) -> None:
    save(compiled(tools), tmp_path / "export", tools)
    path = tmp_path / "export" / "program.json"
    path.write_text(edit(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    edit_manifest(tmp_path / "export", state_sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(ProgramStateError, match=str(path)):
        load_export(tmp_path / "export", tools.retrievers)


def edit_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "not a manifest of format 1: format"),
        ({"program": "other"}, "not a manifest of format 1: program"),
        ({"surprise": 1}, "not a manifest of format 1: surprise"),
        ({"built_by": {"gate": "promote"}}, "not a manifest of format 1: built_by: .*gate: 'promote'"),
        ({"built_by": {"model": 3}}, "not a manifest of format 1: built_by: .*model: 3"),
        ({"bounds": {"max_rouns": 3}}, "not a manifest of format 1: .*max_rouns"),
        ({"bounds": {"k": 0}}, "not a manifest of format 1: bounds: k: 0, expected a number of at least 1"),
        ({"bounds": {"k": 2.5}}, "bounds: k: 2.5, expected"),
        ({"bounds": {"max_seconds": float("nan")}}, "bounds: max_seconds: nan, expected a number of at least 0"),
        ({"state_sha256": "0" * 64}, "not the file that manifest.json describes"),
        ({"predictors": {"answer": {"question": "input str"}}}, "predictors differ from this version's in answer, "),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    tools: Tools, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(compiled(tools), tmp_path / "export", tools)
    edit_manifest(tmp_path / "export", **changes)
    with pytest.raises(ProgramStateError, match=message):
        load_export(tmp_path / "export", tools.retrievers)


def test_a_predictor_whose_type_changed_is_named(tools: Tools, tmp_path: Path) -> None:
    manifest = save(compiled(tools), tmp_path / "export", tools)
    steps = manifest.predictors["plan"]["steps"]
    assert "SearchStep(tool: " in steps  # the fields of a model count too: demos hold its values
    changed = {**manifest.predictors, "plan": {**manifest.predictors["plan"], "steps": steps.replace("query", "text")}}
    edit_manifest(tmp_path / "export", predictors=changed)
    with pytest.raises(ProgramStateError, match=r"predictors differ from this version's in plan; compile again"):
        load_export(tmp_path / "export", tools.retrievers)


def test_an_export_of_another_embedder_is_refused_and_a_grown_corpus_is_not(tools: Tools, tmp_path: Path) -> None:
    save(compiled(tools), tmp_path / "export", tools)
    grown = tools.facts.model_copy(update={"corpus_version": "later", "n_documents": 999})
    load_export(tmp_path / "export", tools.retrievers, grown)
    other = tools.facts.model_copy(update={"embedder": "minilm", "embedder_fingerprint": "else"})
    with pytest.raises(ProgramStateError, match="compiled on an index with embedder hash, this index has minilm"):
        load_export(tmp_path / "export", tools.retrievers, other)


def test_no_export_there_says_what_writes_one(tools: Tools, tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError, match=r"no export at .*optimize.py writes one"):
            load_export(folder, tools.retrievers)


def test_saving_replaces_an_export_whole(tools: Tools, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    save(compiled(tools), folder, tools)
    save(compiled(tools, NaiveRAG), folder, tools)
    assert read_manifest(folder).program == "naive"
    assert set(contents(folder)) == set(FILES)
    assert list(tmp_path.iterdir()) == [folder]


def test_an_export_without_tools_is_used_with_them_and_one_with_tools_without(tools: Tools, tmp_path: Path) -> None:
    own = SQLite(_orders(tmp_path))
    toolbox = Toolbox((Tables(own),))
    plain, with_tables = AgenticRAG(tools.retrievers), AgenticRAG(tools.retrievers, None, toolbox)
    with_tables.write_query.signature = with_tables.write_query.signature.with_instructions("Compiled.")
    save(plain, tmp_path / "plain", tools)
    save(with_tables, tmp_path / "tables", tools)
    seed = load_export(tmp_path / "plain", tools.retrievers, toolbox=toolbox)
    assert seed.write_query.signature.instructions.startswith("Write one SELECT")
    kept = load_export(tmp_path / "tables", tools.retrievers, toolbox=toolbox)
    assert kept.write_query.signature.instructions == "Compiled."
    assert not hasattr(load_export(tmp_path / "tables", tools.retrievers), "write_query")


def _orders(folder: Path) -> Path:
    with closing(sqlite3.connect(folder / "orders.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (region TEXT)")
    return folder / "orders.db"


def test_saving_through_a_link_keeps_the_link(tools: Tools, tmp_path: Path) -> None:
    save(compiled(tools), tmp_path / "v1", tools)
    (tmp_path / "current").symlink_to("v1")
    save(compiled(tools, NaiveRAG), tmp_path / "current", tools)
    assert (tmp_path / "current").is_symlink()
    assert read_manifest(tmp_path / "v1").program == "naive"
    assert {path.name for path in tmp_path.iterdir()} == {"v1", "current"}


def test_a_damaged_export_can_be_replaced(tools: Tools, tmp_path: Path) -> None:
    save(compiled(tools), tmp_path / "export", tools)
    (tmp_path / "export" / "manifest.json").write_text("{", encoding="utf-8")
    save(compiled(tools), tmp_path / "export", tools)
    load_export(tmp_path / "export", tools.retrievers)


@pytest.mark.parametrize(
    "names", [["notes.txt"], ["manifest.json"], [*FILES, "notes.txt"], ["CURRENT", "manifest.json"]]
)
def test_a_folder_with_anything_else_in_it_is_left_alone(tools: Tools, tmp_path: Path, names: list[str]) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}", encoding="utf-8")
    before = contents(folder)
    with pytest.raises(ProgramStateError, match="exists and is no export; choose another place with --out"):
        save(compiled(tools), folder, tools)
    assert contents(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_a_place_that_is_or_lies_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProgramStateError, match="is no export"):
        check_target(tmp_path / "file")
    with pytest.raises(NotADirectoryError, match="is a file; choose another place"):
        check_target(tmp_path / "file" / "a" / "b")
    check_target(tmp_path / "new" / "deep")
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty")
    assert not (tmp_path / "new").exists()
    assert [path.name for path in (tmp_path / "empty").iterdir()] == []
    with pytest.raises(OSError, match="/proc/none/export"):  # a place that nobody can write
        check_target(Path("/proc/none/export"))


KILLED = """
import os, pathlib, shutil, sys
sys.path.insert(0, sys.argv[3])
from programs import export, saving
from programs.decisions import threshold_of
from programs.rag import NaiveRAG
die = lambda *args, **kwargs: os._exit(9)
if sys.argv[2] == "before":
    saving.exchange = die
if sys.argv[2] in ("before", "between two renames"):
    saving.os.replace = die
if sys.argv[2] == "after":
    saving.shutil.rmtree = die
facts = export.IndexFacts(embedder="e", embedder_fingerprint="f", corpus_version="c", n_documents=1, n_passages=1)
export.save_export(NaiveRAG({}), pathlib.Path(sys.argv[1]), lm="new", index=facts)
"""


@pytest.mark.parametrize(("moment", "expected"), [("before", "openai/test"), ("after", "new")])
def test_a_kill_while_saving_leaves_the_old_export_or_the_new_one(
    tools: Tools, tmp_path: Path, moment: str, expected: str
) -> None:
    folder = tmp_path / "export"
    save(compiled(tools), folder, tools)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), moment, str(ROOT)], cwd=tmp_path)
    assert killed.returncode == 9
    assert read_manifest(folder).lm == expected
    load_export(folder, tools.retrievers)
    assert len(list(tmp_path.iterdir())) == 2
    save(compiled(tools), folder, tools)  # and what is left over is cleared away
    assert set(contents(folder)) == set(FILES)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux swaps two folders in one step")
def test_there_is_no_moment_between_two_renames(tools: Tools, tmp_path: Path) -> None:
    save(compiled(tools), tmp_path / "export", tools)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "export"), "between two renames", str(ROOT)]
    subprocess.run(command, check=True)
    assert read_manifest(tmp_path / "export").lm == "new"


def test_a_first_save_that_is_killed_leaves_no_export(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "export"), "before", str(ROOT)])
    assert killed.returncode == 9
    assert not (tmp_path / "export").exists()


def test_a_reader_never_finds_half_an_export(tools: Tools, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    save(compiled(tools), folder, tools)
    code = (
        f"import sys, pathlib; sys.path.insert(0, {str(ROOT)!r})\n"
        "from programs.export import load_export\n"
        "print('ready', flush=True)\n"
        "while not pathlib.Path('stop').exists(): load_export(pathlib.Path('export'), {})"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "ready\n"
        for n in range(60):
            save(compiled(tools, max_rounds=1 + n % 2), folder, tools)
            if reader.poll() is not None:
                break
        (tmp_path / "stop").touch()
    assert reader.returncode == 0


def test_programs_share_their_retrievers_with_their_copies(tools: Tools) -> None:
    program = compiled(tools)
    copy = program.deepcopy()
    assert all(copy.retrievers[tool] is retriever for tool, retriever in tools.retrievers.items())
    assert copy.reset_copy().retrievers["dense"] is tools.retrievers["dense"]
    assert copy.answer is not program.answer
    assert copy.answer.demos == program.answer.demos


def test_prompts_show_every_message_with_the_place_of_its_inputs(tools: Tools) -> None:
    text = render_prompts(compiled(tools))
    assert "## answer (1 demos)" in text
    assert "question: {question}" in text
    assert "用提问的语言回答。" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == sorted(
        line for line in text.splitlines() if line.startswith("## ")
    )
