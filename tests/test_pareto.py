from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainsets.figures import Point, Slice
from trainsets.pareto import AREA, TradeOff, format_number, lay_out, nice_ticks, pareto_front, trade_offs
from trainsets.stats import Interval


def point(name: str, score: float | None, tokens: float = 100, usd: float = 0.0, seconds: float | None = 1.0) -> Point:
    interval = None if score is None else Interval(score, score - 0.1, score + 0.1, 20)
    return Point(name, Slice(20, 10, score, interval), tokens, usd, seconds)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_front_holds_just_those_that_no_other_beats(pairs: list[tuple[int, int]]) -> None:
    places = {str(number): pair for number, pair in enumerate(pairs)}
    front = pareto_front(places)
    for name, (cost, score) in places.items():
        others = [place for place in places.values() if place != (cost, score)]
        is_beaten = any(other <= cost and best >= score for other, best in others)
        assert (name in front) is not is_beaten
    assert [places[name] for name in front] == sorted(places[name] for name in front)


def test_cost_is_money_where_any_was_spent_tokens_elsewhere_and_nothing_without_an_lm() -> None:
    free, paid = [point("naive", 0.5, 700)], [point("naive", 0.5, 700), point("agentic", 0.6, 900, usd=1.5)]
    assert trade_offs(free)[0].axis == "LM tokens per question"
    assert trade_offs(free)[0].places == {"naive": (700, 0.5)}
    assert trade_offs(paid)[0].axis == "US dollars per 1,000 questions"
    assert trade_offs(paid)[0].places == {"naive": (0.0, 0.5), "agentic": (1.5, 0.6)}
    assert [trade.title for trade in trade_offs([point("dense", 0.5, tokens=0)])] == ["Score against latency"]


def test_what_has_no_score_or_no_cost_is_left_out_and_said() -> None:
    latency = trade_offs([point("naive", 0.5), point("cached", 0.6, seconds=None), point("broken", None)])[1]
    plot = lay_out(latency)
    assert plot is not None
    assert [mark.point.name for mark in plot.marks] == ["naive"]
    assert plot.n_left_out == 2
    assert lay_out(trade_offs([point("broken", None)])[0]) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0, 1e6))
def test_marks_stand_in_the_area_and_labels_apart(scores: list[float], top: float) -> None:
    points = [point(str(n), score, tokens=top * n / len(scores)) for n, score in enumerate(scores, 1)]
    plot = lay_out(TradeOff("", "", points, {one.name: one.tokens for one in points}))
    assert plot is not None
    for mark in plot.marks:
        assert AREA.left <= mark.x <= AREA.right
        assert AREA.top <= mark.y <= AREA.bottom
        assert AREA.top <= mark.label_y < 290
    places = sorted(mark.label_y for mark in plot.marks)
    assert all(later - earlier >= 14.9 for earlier, later in pairwise(places))


@given(st.floats(1e-9, 1e12))
def test_ticks_are_few_and_reach_the_top(top: float) -> None:
    ticks = nice_ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] >= top * 0.999999
    assert 3 <= len(ticks) <= 6


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1234.4, "1,234"), (12.5, "12.5"), (0.0312, "0.0312"), (30.000000000000004, "30")]
)
def test_numbers_are_written_short(value: float, text: str) -> None:
    assert format_number(value) == text
