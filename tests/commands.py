"""What the tests of the command lines share: snapshots of a folder, and inputs that are wrong."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tiny
from fake_embedder import HashEmbedder

from programs.export import IndexFacts, save_export
from programs.rag import AgenticRAG
from retrievers import build_index

Arguments = list[str]

ROOT = Path(__file__).parents[1]
HEAVY = (
    "dspy",
    "mlflow",
    "chromadb",
    "torch",
    "numpy",
    "pydantic",
    "datasets",
    "rich",
    "xllamacpp",
    "sentence_transformers",
)

PARSE = """
import runpy, sys
arguments = sys.argv[1:]
try:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
except SystemExit as end:
    print("exit code", end.code)
print("heavy:", *sorted(set(sys.modules) & set({heavy!r})))
"""


def heavy_imports_of_help(command: Arguments) -> str:
    """The slow libraries, by name, that a command line with `--help` imports in a process of its own."""
    arguments = [str(ROOT / part) if part.endswith(".py") else part for part in command]
    done = subprocess.run(
        [sys.executable, "-c", PARSE.format(heavy=HEAVY), *arguments, "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.startswith("usage: ")
    assert done.stderr == ""
    code, heavy = done.stdout.splitlines()[-2:]
    assert code == "exit code 0"
    return heavy.removeprefix("heavy:").strip()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file in a folder but the captured output of commands; what is read may get its lock files."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".outputs" not in path.parts and path.name not in ("LOCK", "chroma.sqlite3-journal")
    }


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a flat folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def the_error(err: str) -> str:
    """The one line that stderr holds."""
    [line] = err.splitlines()
    assert line.startswith("error: ")
    return line


def make_export(folder: Path, index: Path) -> Path:
    """An export of the seed program, for the index that is there."""
    save_export(AgenticRAG({}), folder, lm="openai/test", index=facts_of(index))
    return folder


def facts_of(index: Path) -> IndexFacts:
    """What an export says of the index that is there."""
    manifest = json.loads((index / (index / "CURRENT").read_text().strip() / "manifest.json").read_text())
    return IndexFacts(**{name: manifest[name] for name in IndexFacts.model_fields if name in manifest})


def with_other_predictors(workspace: Path) -> str:
    """An export whose predictors are not those of this version."""
    folder = make_export(workspace / "old-export", workspace / "runs" / "index")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["predictors"]["plan"]["steps"] = "output list[str]"
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return str(folder)


def with_another_embedder(workspace: Path) -> str:
    """An index built with an embedder that bears the name of the packaged one and is another."""
    build_index(workspace / "corpus.jsonl", workspace / "other-index", HashEmbedder("multilingual"))
    return str(workspace / "other-index")


def of_another_index(workspace: Path) -> str:
    """An export that was compiled on an index with another embedder."""
    folder = make_export(workspace / "foreign-export", workspace / "runs" / "index")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["index"] |= {"embedder": "minilm", "embedder_fingerprint": "else"}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return str(folder)


def with_a_broken_line(workspace: Path, split: str, line: str) -> str:
    """A folder of cases one line of which is wrong."""
    folder = workspace / "broken"
    shutil.copytree(workspace / "cases", folder)
    with (folder / f"{split}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    return str(folder)


def with_a_leak(workspace: Path) -> str:
    """A folder of cases with one question in two splits."""
    first = tiny.cases_of("train")[0]
    return with_a_broken_line(workspace, "dev", tiny.line_of({**first, "id": "leak"}).strip())


Wrong = tuple[Callable[[Path], Arguments], str]

WRONG_LM: dict[str, Wrong] = {
    "an LM that is none": (lambda w: ["--lm", "nope"], r"not an LM: 'nope'"),
    "a GGUF file that is not there": (lambda w: ["--lm", "local:none.gguf"], r"no GGUF file at none.gguf"),
    "an LM without its key": (lambda w: ["--lm", "openai/x"], r"no answer from openai/x: .*OPENAI_API_KEY"),
    "an endpoint that is down": (
        lambda w: ["--lm", "openai/test", "--api-base", "http://127.0.0.1:9/v1"],
        r"no answer from openai/test: .*refused.*; check --lm, --api-base and the key",
    ),
    "a decision LM that is down": (
        lambda w: ["--lm", "openai/x", "--decision-lm", "ollama/x"],
        r"no answer from ollama/x: ",
    ),
    "an address that is none": (
        lambda w: ["--lm", "openai/test", "--api-base", "127.0.0.1:1"],
        r"--api-base is no HTTP address",
    ),
    "an address with a password": (
        lambda w: ["--lm", "openai/test", "--api-base", "http://me:SECRET@127.0.0.1:9/v1"],
        r"give http://127.0.0.1:9/v1, and the key in LM_API_KEY",
    ),
}


def lm_flags(arguments: Sequence[str], url: str) -> list[str]:
    """The flags of a scripted LM, unless a command has LM flags already."""
    return [] if "--lm" in arguments else ["--lm", "openai/test", "--api-base", url]


WRONG_INDEX: dict[str, Wrong] = {
    "no index": (lambda w: ["--index", "none"], r"none: no index here; build one with: python -m retrievers build"),
    "an index of another embedder": (
        lambda w: ["--index", with_another_embedder(w)],
        r"built with embedder 'multilingual' \(hash-multilingual-64\)",
    ),
}
WRONG_PROGRAM: dict[str, Wrong] = {
    "no program": (lambda w: ["agentik"], r"no program 'agentik': expected naive, hybrid, agentic or an export folder"),
    "a folder without an export": (lambda w: ["cases"], r"no export at cases \(manifest.json is missing\)"),
    "an export with other predictors": (
        lambda w: [with_other_predictors(w)],
        r"predictors differ from this version's in plan; compile again",
    ),
    "an export of another embedder": (
        lambda w: [of_another_index(w)],
        r"compiled on an index with embedder minilm, this index has multilingual",
    ),
}
