"""The numbers behind the report and the plots: comparisons, slices, outcomes, transitions and the Pareto front."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainsets.outcomes import OutcomeName, count_transitions
from trainsets.recorded import Record, Records
from trainsets.results import MAIN, Summary, summarise
from trainsets.stats import Interval, McNemar, mcnemar, mean_interval, paired_bootstrap

MIN_FOR_INTERVAL = 8
"""Below so many cases a bootstrap interval is far too narrow (one case alone would have none), so none is given."""

# Both palettes can be told apart with any colour vision. The outcomes follow the pipeline: greens are right answers,
# blues evidence that was not found, purples evidence that the loop lost, browns a wrong end.
# Source: Okabe and Ito 2008, Color Universal Design; Tol 2021, Colour Schemes (muted and light), SRON/EPS/TN/09-002.
PROGRAM_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
OUTCOME_COLORS: Mapping[OutcomeName, str] = {
    "right": "#117733",
    "unsupported_right": "#44aa99",
    "not_in_index": "#332288",
    "not_retrieved": "#77aadd",
    "ranked_too_low": "#99ddff",
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
class Comparison:
    """One program against the first on the cases that both were scored on; no interval where there is none."""

    name: str
    other: str
    difference: Interval | None
    rightness: McNemar
    n_common: int

    @property
    def verdict(self) -> str:
        """What the interval proves, in words."""
        if self.difference is None:
            return "no case was scored in both"
        if self.difference.low > 0:
            return "better"
        return "WORSE" if self.difference.high < 0 else "no difference is proven"


@dataclass(frozen=True, slots=True)
class Transitions:
    """How the cases that two programs share moved from one outcome to another, most frequent first."""

    before: str
    after: str
    counts: Mapping[tuple[OutcomeName, OutcomeName], int]

    @property
    def n(self) -> int:
        """The cases that both programs ran."""
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
        Value of the key, sorted, to program to its slice; a program that ran no such case is left out of it.
    """
    values = sorted({key(record) for own in records.values() for record in own})
    table: dict[str, dict[str, Slice]] = {}
    for value in values:
        parts = {name: [record for record in own if key(record) == value] for name, own in records.items()}
        table[value] = {name: slice_of(part) for name, part in parts.items() if part}
    return table


def compare_with_first(records: Records) -> list[Comparison]:
    """Compare every other program with the first one."""
    other, *names = records
    return [_compare(name, other, records) for name in names]


def _compare(name: str, other: str, records: Records) -> Comparison:
    pairs = _pairs(records[other], records[name])
    scored = [
        (first, second)
        for old, new in pairs
        if (first := old.scores.get(MAIN)) is not None and (second := new.scores.get(MAIN)) is not None
    ]
    difference = paired_bootstrap([a for a, _ in scored], [b for _, b in scored]) if scored else None
    both = [(old, new) for old, new in pairs if old.error is None and new.error is None]
    rightness = mcnemar([old.outcome == "right" for old, _ in both], [new.outcome == "right" for _, new in both])
    return Comparison(name, other, difference, rightness, len(pairs))


def _pairs(first: Iterable[Record], second: Iterable[Record]) -> list[tuple[Record, Record]]:
    others = {record.id: record for record in second}
    return [(record, others[record.id]) for record in first if record.id in others]


def transitions_of(records: Records) -> list[Transitions]:
    """Count the moves between any two programs, the one further up the ladder first."""
    names = list(records)
    pairs = [(before, after) for place, before in enumerate(names) for after in names[place + 1 :]]
    return [one for before, after in pairs if (one := _transitions(before, after, records)).n]


def _transitions(before: str, after: str, records: Records) -> Transitions:
    pairs = _pairs(records[before], records[after])
    old = {record.id: record.outcome for record, _ in pairs}
    new = {record.id: record.outcome for _, record in pairs}
    return Transitions(before, after, count_transitions(old, new))


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
