"""A Pareto plot: what programs reach against what they cost, which of them no other beats, and where each is drawn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainsets.figures import Point


@dataclass(frozen=True, slots=True)
class TradeOff:
    """Scores against one cost: name to cost, for the programs that have both."""

    title: str
    axis: str
    points: Sequence[Point]
    costs: Mapping[str, float]

    @property
    def places(self) -> dict[str, tuple[float, float]]:
        """Name to cost and score."""
        scores = {point.name: point.score.score for point in self.points}
        return {name: (cost, score) for name, cost in self.costs.items() if (score := scores[name]) is not None}


def trade_offs(points: Sequence[Point]) -> list[TradeOff]:
    """Set scores against cost (money where any was spent, else tokens; neither where no LM was asked) and latency."""
    usd, tokens = {point.name: point.usd for point in points}, {point.name: point.tokens for point in points}
    seconds = {point.name: point.seconds for point in points if point.seconds is not None}
    trades = [TradeOff("Score against latency", "seconds per question, median (P50)", points, seconds)]
    if any(usd.values()):
        trades.insert(0, TradeOff("Score against cost", "US dollars per 1,000 questions", points, usd))
    elif any(tokens.values()):
        trades.insert(0, TradeOff("Score against cost", "LM tokens per question", points, tokens))
    return trades


def pareto_front(costs_and_scores: Mapping[str, tuple[float, float]]) -> list[str]:
    """Name those that no other beats: none is as good for less, or better for as little; cheapest first.

    Args:
        costs_and_scores: name to cost (less is better) and score (more is better).
    """
    return sorted(
        (
            name
            for name, (cost, score) in costs_and_scores.items()
            if not any(
                (other <= cost and best >= score) and (other, best) != (cost, score)
                for other, best in costs_and_scores.values()
            )
        ),
        key=lambda name: costs_and_scores[name],
    )


@dataclass(frozen=True, slots=True)
class Area:
    """Where the axes stand in a picture of 560 × 300 pixels; names stand right of it."""

    left: float = 52
    right: float = 420
    top: float = 14
    bottom: float = 250

    def x_of(self, share: float) -> float:
        """Give the pixel of a share of the width."""
        return round(self.left + (self.right - self.left) * share, 1)

    def y_of(self, score: float) -> float:
        """Give the pixel of a score."""
        return round(self.bottom - (self.bottom - self.top) * min(max(score, 0.0), 1.0), 1)


AREA = Area()
_LABEL_GAP, _LOWEST_LABEL = 15.0, 285.0


@dataclass(frozen=True, slots=True)
class Mark:
    """One program in a Pareto plot; `low` and `high` are the ends of its interval, all in pixels."""

    point: Point
    x: float
    y: float
    low: float | None
    high: float | None
    label_y: float
    cost: str
    is_best: bool


@dataclass(frozen=True, slots=True)
class ParetoPlot:
    """A scatter plot, laid out: ticks are pairs of pixels and text, the front is a path of pixels."""

    title: str
    axis: str
    marks: Sequence[Mark]
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    front: str
    n_left_out: int


def lay_out(trade: TradeOff) -> ParetoPlot | None:
    """Place everything of a trade-off; None if no program has a score and this cost."""
    places = trade.places
    if not places:
        return None
    ticks = nice_ticks(max(cost for cost, _ in places.values()))
    pixels = {name: (AREA.x_of(cost / ticks[-1]), AREA.y_of(score)) for name, (cost, score) in places.items()}
    label_ys = _spread({name: y for name, (_, y) in pixels.items()})
    front = pareto_front(places)
    marks = [
        _mark(point, *pixels[point.name], label_ys[point.name], places[point.name][0], point.name in front)
        for point in trade.points
        if point.name in places
    ]
    return ParetoPlot(
        title=trade.title,
        axis=trade.axis,
        marks=marks,
        x_ticks=[(AREA.x_of(tick / ticks[-1]), format_number(tick)) for tick in ticks],
        y_ticks=[(AREA.y_of(fifth / 5), f"{fifth / 5:.1f}") for fifth in range(6)],
        front=_steps([pixels[name] for name in front]),
        n_left_out=len(trade.points) - len(marks),
    )


def _mark(point: Point, x: float, y: float, label_y: float, cost: float, is_best: bool) -> Mark:
    ends = point.score.interval
    low, high = (AREA.y_of(ends.low), AREA.y_of(ends.high)) if ends else (None, None)
    return Mark(point, x, y, low, high, label_y, format_number(cost), is_best)


def _steps(places: Sequence[tuple[float, float]]) -> str:
    """Draw the edge of what is reached: level to the next program, then up to it."""
    (x, y), *rest = places
    return f"M{x},{y}" + "".join(f"H{next_x}V{next_y}" for next_x, next_y in rest) + f"H{AREA.right}"


def _spread(places: Mapping[str, float]) -> dict[str, float]:
    """Move labels apart that would stand on one another: down, and up again where they would leave the picture."""
    names = sorted(places, key=places.__getitem__)
    spread: dict[str, float] = {}
    above, below = -math.inf, _LOWEST_LABEL + _LABEL_GAP
    for name in names:
        above = spread[name] = max(places[name], above + _LABEL_GAP)
    for name in reversed(names):
        below = spread[name] = min(spread[name], below - _LABEL_GAP)
    return spread


def nice_ticks(top: float) -> list[float]:
    """List three to six round numbers from 0 to at least `top`; 0 and 1 where `top` is as good as nothing."""
    if top < 1e-9:
        return [0.0, 1.0]
    rough = top / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
    return [step * n for n in range(math.ceil(top / step) + 1)]


def format_number(value: float) -> str:
    """Write a number short: 1,234 or 12.5 or 0.031."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
