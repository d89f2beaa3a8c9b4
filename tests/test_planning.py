from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.narrowing import Fields
from programs.planning import MAX_STEPS, Step, find_choices, plan_by_rule, read_plan, split_waves, stands_alone
from programs.tools import NO_TOOLS, Toolbox
from signatures import SearchStep
from trainsets.cases import load_sample

TODAY = date(2026, 5, 14)
FIELDS = Fields(
    {"date": "date", "type": "string", "product": "string"},
    {"type": ("ticket", "notice"), "product": ("NX-220", "NX-400"), "region": ("Europe", "UK")},
)


def step(query: str) -> Step:
    return Step("hybrid", query, "lm")


def test_a_plain_question_is_one_search_and_no_plan_of_the_lm() -> None:
    assert plan_by_rule("What does E-1024 mean?", NO_TOOLS, TODAY) == [Step("hybrid", "What does E-1024 mean?", "rule")]
    assert plan_by_rule("Compare E-1024 and E-1025", NO_TOOLS, TODAY) is None


def test_a_filtered_search_stands_beside_the_plain_one() -> None:
    question = "Which NX-220 ticket came last month?"
    plain, filtered = plan_by_rule(question, Toolbox(fields=FIELDS), TODAY) or []
    assert (plain.query, plain.filters) == (filtered.query, None) == (question, None)
    assert filtered.filters == {
        "type": "ticket",
        "product": "NX-220",
        "date": {"gte": "2026-04-01", "lte": "2026-04-30"},
    }


def test_a_plan_has_three_steps_at_most_and_none_without_a_query() -> None:
    planned = [SearchStep(tool="dense", query=query) for query in ("a", " ", "b", "c", "d")]
    assert [one.query for one in read_plan(planned, "q", FIELDS, TODAY)] == ["a", "b"]  # of the first three
    assert [(one.query, one.decided_by) for one in read_plan([], "q", FIELDS, TODAY)] == [("q", "rule")]


@pytest.mark.parametrize(
    ("queries", "waves"),
    [
        (["a", "b"], [[0, 1]]),
        (["a", "b of {1}", "c"], [[0, 2], [1]]),
        (["a", "b of {1}", "c of {2}"], [[0], [1], [2]]),
        (["a of {1}", "b of {3}", "c of {99}"], [[0, 1, 2]]),  # of itself, of a later one, of none
        ([], []),
    ],
)
def test_a_step_comes_after_those_it_needs(queries: list[str], waves: list[list[int]]) -> None:
    assert split_waves([step(query) for query in queries]) == waves


def test_a_result_takes_the_place_of_its_number() -> None:
    filled = step("town of {1} and {2} and {1}").fill({1: "Falk Relais"})
    assert (filled.query, filled.goal) == ("town of Falk Relais and and Falk Relais", "town of {1} and {2} and {1}")


@given(st.lists(st.text(alphabet="ab {}0123", max_size=12), max_size=MAX_STEPS))
def test_every_step_is_taken_once(queries: list[str]) -> None:
    steps = [step(query) for query in queries]
    waves = split_waves(steps)
    assert sorted(place for wave in waves for place in wave) == list(range(len(steps)))
    for number, wave in enumerate(waves):
        for place in wave:
            earlier = {one for before in waves[:number] for one in before}
            assert {need - 1 for need in steps[place].needs if 0 < need <= place} <= earlier


def test_every_follow_up_of_the_sample_is_told_and_most_whole_questions_are_left_alone() -> None:
    cases = [case for split in ("train", "dev", "test") for case in load_sample(split) if case.kind != "chitchat"]
    assert [case.question for case in cases if case.history and stands_alone(case.question)] == []
    whole = [stands_alone(case.question) for case in cases if not case.history]
    assert sum(whole) / len(whole) > 0.7


@pytest.mark.parametrize(
    "question", ["And the B2?", "那华东区呢？", "How long is that?", "要是没买保价，最多赔多少？", "price?"]
)
def test_what_points_back_does_not_stand_alone(question: str) -> None:
    assert not stands_alone(question)


@pytest.mark.parametrize(
    "question",
    ["How much does it cost?", "When does it expire?", "它的保修期多久？", "这款能接几个模块？", "What is its price?"],
)
def test_a_question_that_points_at_nothing_has_choices(question: str) -> None:
    assert find_choices(question, FIELDS) == {"product": ("NX-220", "NX-400"), "region": ("Europe", "UK")}


@pytest.mark.parametrize(
    "question",
    [
        "How much does the NX-220 cost and when does it expire?",
        "E-1024: what does it mean?",
        "Is it raining?",
        "When did Falk Relais say it delivers?",
        "How long is the warranty?",
        "保修期多久？",
        "",
    ],
)
def test_a_question_that_names_something_is_not_asked_back(question: str) -> None:
    assert find_choices(question, FIELDS) == {}


def test_no_question_of_the_sample_is_asked_back() -> None:
    cases = [case for split in ("train", "dev", "test") for case in load_sample(split)]
    assert [case.question for case in cases if find_choices(case.question, FIELDS) and not case.history] == []


def test_an_index_without_values_offers_nothing() -> None:
    assert find_choices("How much does it cost?", Fields()) == {}
