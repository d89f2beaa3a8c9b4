import json
from typing import Any, Literal

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from pydantic import BaseModel
from scripted_server import ScriptedServer

from programs.adapter import LeanJSONAdapter
from programs.lms import Roles, bind, make_lm
from programs.meter import Meter
from signatures import AnswerFromPassages


class Step(BaseModel):
    tool: Literal["keyword", "dense"]
    query: str


class Plan(dspy.Signature):
    """Plan the searches.

    Few of them.
    """

    question: str = dspy.InputField()
    known: list[str] = dspy.InputField(desc="what is known")
    steps: list[Step] = dspy.OutputField(desc="1 to 3 items")
    why: str = dspy.OutputField()


SYSTEM = """Plan the searches.

Few of them.

Reply with one JSON object:
"steps" (list[Step]): 1 to 3 items
"why" (str)"""

DEMO_REPLY = """{
  "steps": [
    {
      "tool": "keyword",
      "query": "保修 E-1"
    }
  ],
  "why": "an id"
}"""


def test_a_prompt_is_these_bytes() -> None:
    demo = dspy.Example(
        augmented=True, question="E-1?", known=["保修"], steps=[Step(tool="keyword", query="保修 E-1")], why="an id"
    )
    messages = LeanJSONAdapter().format(Plan, [demo], {"question": "第一行\n第二行", "known": []})
    assert messages == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": 'question: E-1?\nknown: ["保修"]'},
        {"role": "assistant", "content": DEMO_REPLY},
        {"role": "user", "content": "question:\n第一行\n第二行\nknown: []"},
    ]


def test_only_the_last_message_changes_with_the_question() -> None:
    adapter = LeanJSONAdapter()
    demo = {"question": "q", "passages": "p", "answer": "a", "citations": [1]}
    one, two = (
        adapter.format(AnswerFromPassages, [demo], {"question": q, "passages": p}) for q, p in (("a", "b"), ("c", "d"))
    )
    assert one[:-1] == two[:-1]
    assert one[-1] != two[-1]


def test_rendering_does_not_depend_on_the_order_of_the_inputs() -> None:
    adapter = LeanJSONAdapter()
    one = adapter.format(AnswerFromPassages, [], {"question": "a", "passages": "b"})
    assert one == adapter.format(AnswerFromPassages, [], {"passages": "b", "question": "a"})
    assert one == LeanJSONAdapter().format(AnswerFromPassages, [], {"question": "a", "passages": "b"})


def test_the_system_message_is_much_shorter_than_the_stock_one() -> None:
    ours, stock = (
        adapter.format(AnswerFromPassages, [], {"question": "q", "passages": "p"})
        for adapter in (LeanJSONAdapter(), dspy.JSONAdapter())
    )
    assert len(str(ours)) < 0.6 * len(str(stock))


REPLIES = {
    "no JSON": "I can't say.",
    "empty": "",
    "a field is missing": '{"answer": "x"}',
    "a field is of the wrong type": '{"answer": "x", "citations": "one and two"}',
    "null": '{"answer": null, "citations": []}',
    "a list": '["x", [1]]',
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_an_output_that_cannot_be_read_is_counted_once_and_never_asked_for_again(reply: str) -> None:
    run = Meter()
    with ScriptedServer(replies={"answer": lambda request: reply}) as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)), dspy.context(run_meter=run), pytest.raises(AdapterParseError):
            dspy.Predict(AnswerFromPassages)(question="q", passages="p")
        assert len(server.requests) == 1
    assert (run.usage.parse_failures, lm.meter.usage.parse_failures) == (1, 1)
    assert run.usage.lm_calls == 1


def test_the_lm_that_was_called_is_charged_not_the_one_that_is_bound() -> None:
    with ScriptedServer(replies={"answer": lambda request: "no"}) as server:
        bound, called = (make_lm(f"openai/{name}", server.url) for name in "ab")
        with bind(Roles(bound, bound)), pytest.raises(AdapterParseError):
            dspy.Predict(AnswerFromPassages)(question="q", passages="p", lm=called)
    assert (bound.meter.usage.parse_failures, called.meter.usage.parse_failures) == (0, 1)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ('```json\n{"answer": "140 m", "citations": [1]}\n```', "140 m"),
        ('Sure: {"answer": "三十六个月", "citations": [1], "extra": 1}', "三十六个月"),
    ],
)
def test_an_output_with_something_around_its_json_is_read(reply: str, answer: str) -> None:
    with ScriptedServer(replies={"answer": lambda request: reply}) as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            assert dspy.Predict(AnswerFromPassages)(question="q", passages="p").answer == answer
    assert lm.meter.usage.parse_failures == 0


@pytest.mark.parametrize(
    ("escaped", "answer"),
    [(r"\ud800 V", "\ufffd V"), (r"\ud83d\ude00", "😀"), (r"\ude00\ud83d", "\ufffd\ufffd"), (r"\u4fdd", "保")],
)
def test_half_a_character_is_replaced_so_that_it_can_be_sent_and_written(escaped: str, answer: str) -> None:
    read = LeanJSONAdapter().parse(AnswerFromPassages, f'{{"answer": "{escaped}", "citations": []}}')
    assert read["answer"] == answer


def test_the_server_is_given_the_schema_of_the_outputs() -> None:
    schemas: list[dict[str, Any]] = []

    def reply(request: dict[str, Any]) -> str:
        schemas.append(request["response_format"]["json_schema"]["schema"])
        return json.dumps({"steps": [{"tool": "dense", "query": "q"}], "why": ""})

    with ScriptedServer(replies={"steps": reply}) as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)):
            assert dspy.Predict(Plan)(question="q", known=[]).steps == [Step(tool="dense", query="q")]
    [schema] = schemas
    assert schema["required"] == ["steps", "why"]
    assert schema["$defs"]["Step"]["properties"]["tool"]["enum"] == ["keyword", "dense"]
    assert schema["$defs"]["Step"]["additionalProperties"] is False
