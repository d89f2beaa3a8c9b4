"""The numbers behind the report and the plots: slices, comparisons, moves between outcomes, score and cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from trainsets.comparison import Comparison, compare_programs
from trainsets.outcomes import OutcomeName
from trainsets.recorded import Record, Records
from trainsets.records import scored_of
from trainsets.results import MAIN, Summary, summarise
from trainsets.stats import Interval, mean_interval

MIN_FOR_INTERVAL = 8
"""Below so many cases a bootstrap interval is far too narrow (one case alone would have none), so none is given."""
SLICED_BY: Mapping[str, Callable[[Record], str]] = {"kind": lambda one: one.kind, "language": lambda one: one.lang}

# Both are made of colours that differ for any colour vision, and a name or a number always stands beside a colour. The
# outcomes follow the pipeline: green is right, blue evidence not found, purple lost in the loop, yellow a wrong end.
# Source: Okabe and Ito 2008, Color Universal Design; Tol 2021, Colour Schemes (muted and light), SRON/EPS/TN/09-002.
PROGRAM_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
OUTCOME_COLORS: Mapping[OutcomeName, str] = {
    "right": "#117733",
    "unsupported_right": "#44aa99",
    "not_in_index": "#332288",
    "not_retrieved": "#77aadd",
    "ranked_too_low": "#99ddff",
    "dropped_by_threshold": "#bbccee",
    "dropped_by_judge": "#882255",
    "stopped_early": "#aa4499",
    "loop_exhausted": "#ffaabb",
    "wrong_with_evidence": "#ee8866",
    "should_have_abstained": "#ddcc77",
    "should_not_have_abstained": "#999933",
    "errored": "#555555",
}
"""Every outcome with its colour, in the order of a stacked bar: what is right, then what each stage lost."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The mean score of one program on some of the cases; None where no case of them has a score."""

    n: int
    n_right: int
    score: float | None
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Moves:
    """How many of the cases that two programs share went from one outcome to another."""

    before: str
    after: str
    counts: Mapping[tuple[OutcomeName, OutcomeName], int]

    @property
    def n(self) -> int:
        """The cases that both ran."""
        return sum(self.counts.values())

    @property
    def outcomes(self) -> list[OutcomeName]:
        """The outcomes that occur before or after, in the order of `OUTCOME_COLORS`."""
        return [name for name in OUTCOME_COLORS if any(name in pair for pair in self.counts)]

    @property
    def n_gained(self) -> int:
        """The cases that became right."""
        return sum(n for (old, new), n in self.counts.items() if old != "right" and new == "right")

    @property
    def n_lost(self) -> int:
        """The cases that were right and are no longer."""
        return sum(n for (old, new), n in self.counts.items() if old == "right" and new != "right")


@dataclass(frozen=True, slots=True)
class Point:
    """What one program reaches and what a question costs it. `usd` is for 1,000 questions."""

    name: str
    score: Slice
    tokens: float
    usd: float
    seconds: float | None


def summaries_of(records: Records) -> dict[str, Summary]:
    """Summarise each program, as `evaluate.py` does."""
    return {name: summarise([record.to_result() for record in own]) for name, own in records.items()}


def slice_of(records: Iterable[Record]) -> Slice:
    """Give the mean combined score of some records, with an interval where they are enough for one."""
    own = list(records)
    scores = [score for record in own if (score := record.scores.get(MAIN)) is not None]
    mean = mean_interval(scores) if scores else None
    n_right = sum(record.outcome == "right" for record in own)
    enough = mean is not None and len(scores) >= MIN_FOR_INTERVAL
    return Slice(len(own), n_right, mean.value if mean else None, mean if enough else None)


def slices_of(records: Records, key: Callable[[Record], str]) -> dict[str, dict[str, Slice]]:
    """Slice every program by `key`.

    Returns:
        Value of the key, sorted, to program to its slice; cases without a value are in none.
    """
    values = sorted({value for own in records.values() for record in own if (value := key(record))})
    table: dict[str, dict[str, Slice]] = {}
    for value in values:
        parts = {name: [record for record in own if key(record) == value] for name, own in records.items()}
        table[value] = {name: slice_of(part) for name, part in parts.items() if part}
    return table


def compare_pairs(records: Records) -> list[Comparison]:
    """Compare any two programs, the one further up the ladder being the baseline; those with the first come first.

    Raises:
        RecordError: two programs share no case, or ask different questions under one id.
    """
    scored = {name: scored_of(record.to_result() for record in own) for name, own in records.items()}
    return [compare_programs(name, scored[name], other, scored[other]) for other, name in combinations(scored, 2)]


def tabulate_moves(comparison: Comparison) -> Moves:
    """Lay the transitions of a comparison out as a table of outcomes."""
    counts = {(one.before, one.after): one.n for one in comparison.transitions}
    return Moves(comparison.baseline, comparison.name, counts)


def points_of(records: Records) -> list[Point]:
    """Place every program by what it reaches and what it costs."""
    points = []
    for name, summary in summaries_of(records).items():
        usd = summary.cost_usd / summary.n * 1000
        points.append(Point(name, slice_of(records[name]), summary.tokens, usd, summary.seconds_p50))
    return points


def metric_names(summaries: Sequence[Summary]) -> list[str]:
    """List every metric that a program has a mean of, in the order they are measured."""
    names = dict.fromkeys(name for summary in summaries for name in summary.scores)
    return [name for name in names if any(summary.scores.get(name) is not None for summary in summaries)]


def ink_on(color: str) -> str:
    """Choose black or white, whichever can be read on a colour.

    Source: relative luminance of WCAG 2.2; at 0.18 both have the same contrast.
    """
    channels = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "#ffffff"
