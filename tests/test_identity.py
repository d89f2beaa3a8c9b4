import dataclasses

import dspy
import pytest
from scripted_server import ScriptedServer

from programs.identity import describe_settings, hash_code, identify_program
from programs.lms import bind, make_lm, make_roles
from programs.load import Tools
from programs.rag import AgenticRAG, HybridRAG
from programs.run import Bounds


def test_what_changes_an_answer_changes_the_identity_of_a_program() -> None:
    seed = identify_program(AgenticRAG({}))
    assert identify_program(AgenticRAG({})) == seed
    assert identify_program(HybridRAG({})) != seed
    assert identify_program(AgenticRAG({}, Bounds(k=3))) != seed
    other = AgenticRAG({})
    other.judge.demos = [dspy.Example(question="q", verdict="sufficient")]
    assert identify_program(other) != seed
    other = AgenticRAG({})
    other.judge.signature = other.judge.signature.with_instructions("Be strict.")
    assert identify_program(other) != seed


def test_settings_hold_no_address_and_no_secret(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LM_API_KEY", "SECRET")
    lm = make_lm("openai/test", "http://127.0.0.1:9/v1")
    settings = describe_settings(identify_program(HybridRAG({})), [lm], None, tools.facts)
    assert "SECRET" not in str(settings)
    assert "127.0.0.1" not in str(settings)
    assert (settings["code"], settings["grader"]) == (hash_code(), None)


def test_another_lm_endpoint_temperature_grader_or_corpus_is_another_setting(tools: Tools) -> None:
    def settings(model: str = "openai/a", port: int = 9, corpus: str = "1", **sampling: float) -> str:
        lm = make_lm(model, f"http://127.0.0.1:{port}/v1", **sampling)
        facts = tools.facts.model_copy(update={"corpus_version": corpus})
        return str(describe_settings({}, [lm], None, facts))

    different = [settings(), settings("openai/b"), settings(port=8), settings(corpus="2"), settings(temperature=0.5)]
    assert len(set(different)) == 5
    assert settings() == different[0]


def test_lms_without_cache_are_asked_anew_and_stay_one_where_they_were() -> None:
    with ScriptedServer() as server:
        roles = make_roles("openai/test", api_base=server.url)
        fresh = roles.without_cache()
        with bind(fresh):
            for _ in range(2):
                fresh.answer("Say OK.")
        assert len(server.requests) == 2
    assert fresh.decision is fresh.answer
    assert dataclasses.replace(roles).answer.cache is True
