"""The figures of the report as PNG files, by matplotlib."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainsets.figures import (
    MIN_FOR_INTERVAL,
    OUTCOME_COLORS,
    PROGRAM_COLORS,
    SLICED_BY,
    Moves,
    Slice,
    compare_pairs,
    ink_on,
    points_of,
    slices_of,
    summaries_of,
    tabulate_moves,
)
from trainsets.pareto import TradeOff, pareto_front, trade_offs
from trainsets.recorded import Records, read_records
from trainsets.results import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

_MARKERS = "osD^vP"
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "text.parse_math": False,  # a name with two dollar signs is a name
}


def write_plots(folder: Path, out: Path) -> list[Path]:
    """Draw the record files in a folder.

    Args:
        folder: what `evaluate.py --out` named.
        out: the folder for the PNG files; those of an earlier call are replaced.

    Returns:
        The files that were written.

    Raises:
        RecordError: the folder does not hold what `evaluate.py` writes.
    """
    records, _ = read_records(folder)
    return draw_all(records, out)


def draw_all(records: Records, out: Path) -> list[Path]:
    """Draw records as PNG files in a folder, in place of those of an earlier call; returns the files."""
    import matplotlib

    out.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(_STYLE):
        for name, figure in _figures(records).items():
            path = out / f"{name}.png"
            path.unlink(missing_ok=True)
            if figure is not None:
                figure.savefig(path, dpi=150, metadata={"Software": None})
                written.append(path)
    return written


def _figures(records: Records) -> "dict[str, Figure | None]":
    """Draw every figure; None for one that these records leave nothing to show in."""
    names = label_names(list(records))
    # One pair is shown: the first program and the last, which is what a ladder climbs from and to.
    climb = {name: records[name] for name in (next(iter(records)), [*records][-1])}
    comparisons = compare_pairs(climb)
    return {
        "outcomes": draw_outcomes(summaries_of(records), names),
        **{f"slices_{by}": draw_slices(by, slices_of(records, key), names) for by, key in SLICED_BY.items()},
        "transitions": draw_transitions(tabulate_moves(comparisons[0]), names) if comparisons else None,
        "pareto": draw_pareto(trade_offs(points_of(records)), names),
    }


def label_names(texts: Sequence[str], noun: str = "program") -> dict[str, str]:
    """Give each text a label that the font can draw: itself, or its number where it would come out as boxes."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties())).get_charmap()
    drawable = [text if all(ord(char) in known for char in text) else f"{noun} {n}" for n, text in enumerate(texts, 1)]
    return {text: shown or "(none)" for text, shown in zip(texts, drawable, strict=True)}


def draw_outcomes(summaries: Mapping[str, Summary], names: Mapping[str, str]) -> "Figure":
    """Stack what became of the cases: those that are right, then what each stage of the pipeline lost."""
    figure, axes = _canvas(9, 1.6 + 0.5 * len(summaries))
    for place, summary in enumerate(summaries.values()):
        left = 0
        for outcome, color in OUTCOME_COLORS.items():
            n = summary.outcomes.get(outcome, 0)
            axes.barh(place, n, left=left, color=color, edgecolor="white", linewidth=0.7)
            if n >= 0.025 * summary.n:
                axes.text(left + n / 2, place, str(n), ha="center", va="center", color=ink_on(color), fontsize=8)
            left += n
    axes.set_yticks(range(len(summaries)), [names[name] for name in summaries])
    axes.invert_yaxis()
    axes.set_xlabel("cases")
    axes.set_title(f"Outcomes, {_n_of(one.n for one in summaries.values())} cases")
    occurred = [name for name in OUTCOME_COLORS if any(one.outcomes.get(name) for one in summaries.values())]
    handles = [_patch(OUTCOME_COLORS[name], name.replace("_", " ")) for name in occurred]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=8)
    return figure


def draw_slices(by: str, slices: Mapping[str, Mapping[str, Slice]], names: Mapping[str, str]) -> "Figure | None":
    """Draw the score of every program on every slice, with its interval where there are cases enough."""
    if not slices:
        return None
    figure, axes = _canvas(7, 1.4 + (0.25 + 0.17 * len(names)) * len(slices))
    values = label_names(list(slices), by)
    for number, name in enumerate(names):
        shift = (number - (len(names) - 1) / 2) * 0.6 / len(names)
        for place, parts in enumerate(slices.values()):
            if name in parts:
                _draw_slice(axes, parts[name], place + shift, number)
    labels = [f"{values[value]}\n{_n_of(part.n for part in parts.values())}" for value, parts in slices.items()]
    axes.set_yticks(range(len(slices)), labels)
    axes.invert_yaxis()
    axes.set_xlim(-0.02, 1.02)
    axes.grid(axis="x")
    axes.set_xlabel(f"mean score (0 to 1), 95 % interval; hollow: fewer than {MIN_FOR_INTERVAL} scored cases")
    n_cases = [sum(parts[name].n for parts in slices.values() if name in parts) for name in names]
    axes.set_title(f"Score by {by}, {_n_of(n_cases)} cases")
    handles = [_dot(number, names[name]) for number, name in enumerate(names)]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=8)
    return figure


def _draw_slice(axes: "Axes", part: Slice, y: float, number: int) -> None:
    if part.score is None:
        return
    color = _color(number)
    if part.interval:
        axes.hlines(y, part.interval.low, part.interval.high, color=color, linewidth=1.4)
    axes.plot(
        part.score, y, _MARKERS[number % len(_MARKERS)], color=color, markersize=5, fillstyle=_fill(bool(part.interval))
    )


def draw_transitions(moves: Moves, names: Mapping[str, str]) -> "Figure":
    """Draw how the cases moved from one outcome to another as a heat map."""
    import numpy as np

    outcomes = moves.outcomes
    table = np.array([[moves.counts.get((old, new), 0) for new in outcomes] for old in outcomes])
    figure, axes = _canvas(3 + 0.5 * len(outcomes), 2.2 + 0.42 * len(outcomes))
    image = axes.imshow(table, cmap="Blues", aspect="auto", vmin=0)
    for (row, column), n in np.ndenumerate(table):
        if n:
            axes.text(column, row, str(n), ha="center", va="center", color="white" if n > table.max() / 2 else "black")
    labels = [name.replace("_", " ") for name in outcomes]
    axes.set_xticks(range(len(labels)), labels, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel(f"outcome with {names[moves.after]}")
    axes.set_ylabel(f"outcome with {names[moves.before]}")
    gains = f"{moves.n_gained} became right, {moves.n_lost} no longer are"
    axes.set_title(f"{names[moves.before]} to {names[moves.after]}, n = {moves.n} cases: {gains}")
    figure.colorbar(image, ax=axes, label="cases")
    return figure


def draw_pareto(trades: Sequence[TradeOff], names: Mapping[str, str]) -> "Figure | None":
    """Draw score against each cost, side by side, with intervals and the programs that no other beats."""
    shown = [trade for trade in trades if trade.places]
    if not shown:
        return None
    figure = _figure(5.2 * len(shown), 4)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, trade in zip(panels, shown, strict=True):
        _draw_trade(axes, trade)
    handles = [_dot(number, names[name]) for number, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_trade(axes: "Axes", trade: TradeOff) -> None:
    front = pareto_front(trade.places)
    for number, point in enumerate(trade.points):
        if point.name not in trade.places:
            continue
        cost, score = trade.places[point.name]
        if ends := point.score.interval:
            axes.vlines(cost, ends.low, ends.high, color=_color(number), linewidth=1.4)
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot(cost, score, marker, color=_color(number), markersize=8, fillstyle=_fill(point.name in front))
    edge = [trade.places[name] for name in front]
    top = max(cost for cost, _ in trade.places.values()) * 1.1 or 1.0
    costs, scores = [cost for cost, _ in edge], [score for _, score in edge]
    axes.step([*costs, top], [*scores, scores[-1]], where="post", color="#777777", linestyle="--", linewidth=1)
    axes.set_xlim(0, top)
    axes.set_ylim(0, 1)
    axes.grid()
    axes.set_xlabel(trade.axis)
    axes.set_ylabel("mean score (0 to 1), 95 % interval")
    axes.set_title(
        f"{trade.title}, {_n_of(point.score.n for point in trade.points if point.name in trade.places)} cases"
    )


def _canvas(width: float, height: float) -> "tuple[Figure, Axes]":
    figure = _figure(width, height)
    return figure, figure.subplots()


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever the environment asks for
    return figure


def _patch(color: str, label: str) -> "Patch":
    from matplotlib.patches import Patch

    return Patch(color=color, label=label)


def _dot(number: int, label: str) -> "Line2D":
    from matplotlib.lines import Line2D

    marker = _MARKERS[number % len(_MARKERS)]
    return Line2D([], [], color=_color(number), marker=marker, linestyle="", label=label)


def _color(number: int) -> str:
    return PROGRAM_COLORS[number % len(PROGRAM_COLORS)]


def _fill(is_full: bool) -> str:
    return "full" if is_full else "none"


def _n_of(counts: Iterable[int]) -> str:
    """Say how many cases; their range where programs differ."""
    known = sorted(set(counts))
    return f"n = {known[0]}" if len(known) == 1 else f"n = {known[0]} to {known[-1]}"
