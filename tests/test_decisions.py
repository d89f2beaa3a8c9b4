import dspy
import pytest
from dspy.experimental import ReAnchor
from scripted_server import Request, ScriptedServer, prompt_of

from programs.decisions import OptionReader, UndecidedError, decide, make_decider, threshold_of
from programs.lms import MeteredLM, Roles, bind, make_lm
from signatures import CheckAnswer

INPUTS = {"passages": "<passage 1> t\nThe cable is 140 m.\n</passage>", "question": "How long?"}


def reader_at(server: ScriptedServer) -> MeteredLM:
    lm = make_lm("openai/test", server.url, cache=False)
    lm.reports_options = True
    return lm


@pytest.mark.parametrize(
    ("tokens", "probability"),
    [
        ({"yes": 0.6, "no": 0.2}, 0.75),
        ({"Yes": 0.3, " yes": 0.3, "No": 0.2, "maybe": 0.1}, 0.75),
        ({"是": 0.1, "否": 0.3}, 0.25),
        ({"yes": 1.0}, 1.0),
    ],
)
def test_a_decision_is_read_from_the_likeliest_next_tokens(tokens: dict[str, float], probability: float) -> None:
    with ScriptedServer(next_token=lambda request: tokens) as server:
        lm = reader_at(server)
        with bind(Roles(lm, lm)):
            supported = decide(make_decider(CheckAnswer, 0.5), **INPUTS).supported
        assert supported.probability == pytest.approx(probability)
        assert supported.value is (probability >= 0.5)
        [request] = server.requests
    assert request["max_tokens"] == 2
    assert request["logprobs"] is True
    assert request["top_logprobs"] == 20
    assert lm.meter.usage.lm_calls == 1
    assert lm.meter.calls[0].asked == "self"


def test_the_inputs_come_first_and_the_question_last() -> None:
    with ScriptedServer() as server:
        lm = reader_at(server)
        with bind(Roles(lm, lm)):
            decide(make_decider(CheckAnswer, 0.5), **INPUTS)
        prompt = prompt_of(server.requests[0])
    assert prompt.startswith("passages:\n<passage 1> t")
    assert prompt.endswith("Do the passages state the exact answer to this question? Reply yes or no.")
    assert server.requests[0]["messages"][0]["content"].startswith("Check an answer")


@pytest.mark.parametrize("tokens", [{"maybe": 1.0}, {}])
def test_a_token_that_is_neither_option_is_no_decision(tokens: dict[str, float]) -> None:
    with ScriptedServer(next_token=lambda request: tokens) as server:
        lm = reader_at(server)
        with bind(Roles(lm, lm)), pytest.raises(UndecidedError, match=r"neither yes nor no|no token probabilities"):
            decide(make_decider(CheckAnswer, 0.5), **INPUTS)


def test_an_lm_that_reports_no_options_writes_its_probability() -> None:
    replies = {"supported": lambda request: '{"supported": {"noul": 0.3}}'}
    with ScriptedServer(replies=replies) as server:
        lm = make_lm("openai/test", server.url, cache=False)
        with bind(Roles(lm, lm)):
            supported = decide(make_decider(CheckAnswer, 0.25), **INPUTS).supported
    assert (supported.value, supported.probability) == (True, 0.3)


def test_a_threshold_is_a_part_of_the_state() -> None:
    decider, other = make_decider(CheckAnswer, 0.8), make_decider(CheckAnswer, 0.1)
    other.load_state(decider.dump_state())
    assert threshold_of(other, "supported") == threshold_of(decider.deepcopy(), "supported") == 0.8


def test_demos_are_earlier_turns() -> None:
    decider = make_decider(CheckAnswer, 0.5)
    decider.demos = [
        dspy.Example(INPUTS | {"question": "How wide?", "supported": False}),
        dspy.Example(INPUTS | {"supported": {"value": True, "confidence": 1.0}}),
        dspy.Example(INPUTS),
    ]
    with ScriptedServer() as server:
        lm = reader_at(server)
        with bind(Roles(lm, lm)):
            decide(decider, **INPUTS)
        messages = server.requests[0]["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    texts = [str(message["content"]) for message in messages]
    assert ("no" in texts[2], "yes" in texts[4]) == (True, True)


def test_an_optimizer_fits_the_threshold_without_another_lm_call() -> None:
    # Of twenty answers the LM believes all, but the right ones more: the threshold that tells them apart is between.
    def next_token(request: Request) -> dict[str, float]:
        p = 0.9 if "right" in prompt_of(request) else 0.6
        return {"yes": p, "no": 1 - p}

    examples = [
        dspy.Example(INPUTS | {"question": f"{word} {n}", "expected": word == "right"}).with_inputs(*INPUTS)
        for n in range(10)
        for word in ("right", "wrong")
    ]
    with ScriptedServer(next_token=next_token) as server:
        lm = make_lm("openai/test", server.url)
        with bind(Roles(lm, lm)), dspy.context(lm=OptionReader(lm)):
            fitted = ReAnchor(lambda gold, pred, trace=None: float(bool(pred.supported) == gold.expected)).compile(
                make_decider(CheckAnswer, 0.5), trainset=examples
            )
        assert len(server.requests) == len(examples)
    assert 0.6 < threshold_of(fitted, "supported") <= 0.9
