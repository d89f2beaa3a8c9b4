import json
import os
import subprocess
import sys
from pathlib import Path

import dspy
import pytest
from diskcache import FanoutCache
from dspy.clients import disk_serialization
from dspy.utils.exceptions import LMError
from scripted_server import ScriptedServer

from programs import lms
from programs.addresses import bypass_proxies, without_secrets
from programs.lms import AnswerCacheError, LMSpecError, Roles, bind, check, make_lm, make_roles
from programs.local_lm import LocalServer, cache_dir


def answer_folders() -> list[str]:
    return sorted(path.name for path in (cache_dir() / "answers").iterdir())


@pytest.mark.parametrize("spec", ["nope", "", "local-x", "/x", "openai/", "a b/c", "openai/a b"])
def test_what_is_no_lm_is_refused_with_the_forms_that_are(spec: str) -> None:
    with pytest.raises(LMSpecError, match=r"not an LM: .*use local, local:qwen.*local:PATH.gguf or PROVIDER/MODEL"):
        make_lm(spec)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:80", "ftp://h/v1", "http://", "http://[", "http://h:x/v1", "http://h:99999999/v1", "http://a b"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(LMSpecError, match="--api-base is no HTTP address"):
        make_lm("openai/test", address)


@pytest.mark.parametrize(
    "address", ["http://me:SECRET@h/v1", "http://SECRET@h/v1", "http://h/v1?key=SECRET", "http://h/v1#SECRET"]
)
def test_an_address_with_a_secret_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(LMSpecError, match=r"give http://h/v1, and the key in LM_API_KEY") as caught:
        make_lm("openai/test", address)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://h:1/v1", "http://h:1/v1"),
        ("sqlite:///runs/mlflow.db", "sqlite:///runs/mlflow.db"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
        ("./mlruns", "./mlruns"),
        ("postgresql://u:SECRET@h:5/db?password=SECRET", "postgresql://h:5/db"),
        ("postgresql://u:S/E#C?R@ET@h/db", "postgresql://h/db"),
        ("me:SECRET@h", "h"),
        ("http://h/v1#SECRET", "http://h/v1"),
    ],
)
def test_addresses_are_shown_without_their_secrets(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


def test_a_server_gets_the_schema_and_the_key_but_not_the_users_openai_key_for_another_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the-openai-key")
    with ScriptedServer() as server:
        for spec in ("openai/test", "ollama/test:1b"):
            make_lm(spec, server.url)("hi")
        monkeypatch.setenv("LM_API_KEY", "the-lm-key")
        make_lm("ollama/test:1b", server.url)("hi again")
        sent = [headers.get("Authorization", "") for headers in server.headers]
        assert sent == ["Bearer the-openai-key", "Bearer none", "Bearer the-lm-key"]
        assert [request["model"] for request in server.requests] == ["test", "test:1b", "test:1b"]

        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            assert dspy.Predict("fruit -> answer: str, citations: list[int]")(fruit="lemon").citations == [1]
        assert server.requests[-1]["response_format"]["json_schema"]["strict"] is True


def test_a_reasoning_model_can_be_named_though_it_refuses_a_temperature() -> None:
    with ScriptedServer() as server:
        lm = make_lm("openai/gpt-5-mini", server.url)
        check(lm)
        assert not {"temperature", "max_tokens", "max_completion_tokens"} & set(server.requests[-1])
    assert make_lm("openai/gpt-5-mini").label == "openai/gpt-5-mini"


def test_no_secret_and_no_address_is_in_what_an_lm_tells_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LM_API_KEY", "SECRET")
    lm = make_lm("openai/test", "http://somewhere:8000/v1")
    assert lm.label == "openai/test"
    told = json.dumps(lm.dump_state()) + lm.label + lm.model
    assert "SECRET" not in told
    assert "somewhere" not in told


def test_a_dead_endpoint_is_one_error_that_names_the_lm_and_the_flags() -> None:
    with ScriptedServer() as server:
        pass
    lm = make_lm("openai/test", server.url)
    with pytest.raises(
        LMError, match=r"no answer from openai/test: fail.*refused; check --lm, --api-base and the key$"
    ):
        check(lm)


def test_a_missing_key_is_told_without_what_only_python_code_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(LMError, match=r"Set OPENAI_API_KEY in the environment; check --lm, --api-base and the key$"):
        check(make_lm("openai/gpt-5-mini"))


def test_check_goes_past_the_cache_and_calls_an_lm_of_two_roles_once() -> None:
    with ScriptedServer() as server:
        roles = make_roles("openai/test", api_base=server.url)
        for _ in range(2):
            check(roles.decision, roles.answer)
        assert len(server.requests) == 2
        assert server.requests[0]["max_tokens"] == 4


def test_roles_share_a_meter_and_one_lm_where_they_can() -> None:
    with ScriptedServer() as server:
        same = make_roles("openai/a", api_base=server.url)
        assert same.decision is same.answer
        assert same.label == "openai/a"
        two = make_roles("openai/a", decision_lm="openai/b", api_base=server.url)
        assert two.label == "openai/b + openai/a"
        two.decision("x")
        two.answer("x")
        assert two.answer.meter is two.decision.meter
        assert two.answer.meter.usage.lm_calls == 2
        assert [request["model"] for request in server.requests] == ["b", "a"]


def test_each_endpoint_and_model_has_answers_of_its_own() -> None:
    replies = {"text": lambda request: "first"}, {"text": lambda request: "second"}
    with ScriptedServer(replies=replies[0]) as one, ScriptedServer(replies=replies[1]) as two:
        said = []
        for server, model in ((one, "a"), (two, "a"), (one, "b"), (one, "a")):
            lm = make_lm(f"openai/{model}", server.url)
            with bind(Roles(lm, lm)):
                said.append(lm("hi")[0])
        assert said == ["first", "second", "first", "first"]
        assert (len(one.requests), len(two.requests)) == (2, 1)
    folders = answer_folders()
    assert len(folders) == 3
    assert not any(server.url.split(":")[-1] in folder for server in (one, two) for folder in folders)


def test_the_cache_folder_of_a_long_model_name_can_be_made() -> None:
    lm, other = (make_lm(f"openai/{'long-name/' * 30}{end}", "http://127.0.0.1:9/v1") for end in "ab")
    with bind(Roles(lm, other)):
        pass
    with bind(Roles(other, other)):
        pass
    assert len(set(answer_folders())) == 2


def test_an_endpoint_of_the_environment_has_answers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = make_lm("openai/test")
    for address in ("http://a/v1", "http://b/v1"):
        monkeypatch.setenv("OPENAI_API_BASE", address)
        lms.use_cache(Roles(lm, lm))
    assert len(answer_folders()) == 2


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["TRAP"],)


def test_a_pickled_object_in_the_cache_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAP", str(tmp_path / "sprung"))
    with ScriptedServer() as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            lm("hi")
        [folder] = (cache_dir() / "answers").iterdir()
        with FanoutCache(str(folder), shards=16) as cache:
            [key] = cache
            plain = cache[key]
            cache[key] = Trap()
        assert plain["_dspy_format"]
        with bind(Roles(lm, lm)):
            assert lm("hi") == ["OK"]
        assert len(server.requests) == 2
    assert not (tmp_path / "sprung").exists()


def test_a_broken_cache_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILED_RAG_CACHE", str(tmp_path))
    roles = make_roles("openai/test", api_base="http://127.0.0.1:1/v1")
    with bind(roles):
        pass
    [folder] = (tmp_path / "answers").iterdir()
    for database in folder.rglob("cache.db"):
        database.write_bytes(b"no database at all" * 400)
    with pytest.raises(AnswerCacheError, match=f"LM answers in {folder}: .*; remove the folder"), bind(roles):
        pass


def test_a_cache_that_cannot_be_written_is_not_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILED_RAG_CACHE", str(tmp_path / "cache"))
    roles = make_roles("openai/test", api_base="http://127.0.0.1:1/v1")
    with bind(roles):
        pass
    [folder] = (tmp_path / "cache" / "answers").iterdir()
    (folder / "003" / "cache.db").unlink()
    (folder / "003" / "cache.db").mkdir()  # no file can be opened there
    expected = f"no LM answers can be kept in {folder}: unable to open database file; set COMPILED_RAG_CACHE"
    with pytest.raises(AnswerCacheError, match=expected), bind(roles):
        pass
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPILED_RAG_CACHE", str(tmp_path / "file"))
    with pytest.raises(AnswerCacheError, match="Not a directory; set COMPILED_RAG_CACHE"), bind(roles):
        pass


def test_what_is_cached_is_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_serialization._RestrictedUnpickler, "find_class", _refuse_class)
    with ScriptedServer() as server:
        lm = make_lm("openai/test", server.url)
        for _ in range(2):
            with bind(Roles(lm, lm)):
                dspy.Predict("fruit -> answer: str, citations: list[int]")(fruit="lemon")
        assert len(server.requests) == 1


def _refuse_class(self: object, module: str, name: str) -> None:
    raise AssertionError(f"the cache holds a {module}.{name}")


def test_the_embedded_server_is_reached_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    with ScriptedServer() as server:
        monkeypatch.setattr(
            lms, "start", lambda model: LocalServer(server.url, "tiny", f"tiny-{server.url[-8:-3]}", None)
        )
        lm = make_lm("local")
        assert lm("hi", cache=False) == ["OK"]
    assert lm.label == "local:tiny"
    assert os.environ["NO_PROXY"] == "example.org,127.0.0.1"


def test_bypassing_a_proxy_twice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", "a, b")
    bypass_proxies("127.0.0.1")
    first = os.environ["no_proxy"]
    bypass_proxies("127.0.0.1")
    assert os.environ["no_proxy"] == first == "a, b,127.0.0.1"
    assert "NO_PROXY" not in os.environ


@pytest.mark.parametrize("spec", ["local:", "local:no-such-model", "local:/none/x.gguf"])
def test_a_local_model_that_is_not_there_is_named(spec: str) -> None:
    from programs.local_lm import LocalLMError

    with pytest.raises(LocalLMError, match="no GGUF file at"):
        make_lm(spec)


def test_nothing_is_fetched_but_answers() -> None:
    # A hosted model is priced and its abilities are looked up: from the package, not from the network.
    code = """
import socket
def refuse(*args, **kwargs): raise SystemExit(f"reached out: {args}")
socket.getaddrinfo = refuse
from programs.lms import make_lm
lm = make_lm("openai/gpt-4o-mini")
assert lm.supports_response_schema
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(lms.__file__).parents[1])
