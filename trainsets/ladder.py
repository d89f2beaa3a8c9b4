"""Programs side by side on the same cases: totals, slices, comparisons and stability, and why a run of them fails."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainsets.comparison import Comparison, Stability, compare_programs, measure_stability
from trainsets.records import Scored, scored_of
from trainsets.results import CaseResult, Slice, Summary, explain_errors, slice_results, summarise
from trainsets.stats import Interval, mean_interval


@dataclass(frozen=True, slots=True)
class Rung:
    """One program with what came of it: `repeats` holds the results of every run over the cases."""

    name: str
    spec: str
    repeats: list[list[CaseResult]] = field(default_factory=list)

    @property
    def results(self) -> list[CaseResult]:
        """The results of the first run: what tables and comparisons are about."""
        return self.repeats[0]

    @property
    def summary(self) -> Summary:
        """The totals of the first run."""
        return summarise(self.results)

    @property
    def slices(self) -> list[Slice]:
        """The first run by kind and language."""
        return slice_results(self.results)

    @property
    def score_interval(self) -> Interval | None:
        """The mean score with its interval; None if no case was scored."""
        scores = [result.score for result in self.results if result.score is not None]
        return mean_interval(scores) if scores else None

    @property
    def stability(self) -> Stability | None:
        """How alike the runs are; None if there is one only."""
        return measure_stability(self.repeats) if len(self.repeats) > 1 else None


def compare_rungs(rungs: Sequence[Rung]) -> list[Comparison]:
    """Compare each further program with the first."""
    first, *others = rungs
    theirs = scored_of(first.results)
    return [compare_programs(one.name, scored_of(one.results), first.name, theirs) for one in others]


def compare_with(rungs: Sequence[Rung], baseline: str, records: Sequence[Scored]) -> list[Comparison]:
    """Compare each program with the records of an earlier evaluation, which tables call `baseline`.

    Raises:
        RecordError: They are of another gold set.
    """
    return [compare_programs(one.name, scored_of(one.results), baseline, records) for one in rungs]


def describe_rung(rung: Rung) -> dict[str, Any]:
    """Return a program as `summary.json` holds it; the format is documented in `records`."""
    return {
        "name": rung.name,
        "spec": rung.spec,
        "records": f"{rung.name}.jsonl",
        "summary": asdict(rung.summary),
        "score_interval": asdict(interval) if (interval := rung.score_interval) else None,
        "slices": [asdict(part) for part in rung.slices],
        "stability": asdict(stability) if (stability := rung.stability) else None,
    }


def find_failures(
    rungs: Sequence[Rung], against_baseline: Sequence[Comparison], fail_under: float | None
) -> Iterator[str]:
    """Say why an evaluation fails: too many errors, a score below the bar, worse than the baseline beyond chance."""
    for one in rungs:
        for number, results in enumerate(one.repeats, start=1):
            if errors := explain_errors(one.name if number == 1 else f"{one.name}, repeat {number}", results):
                yield errors
        score = one.score_interval.value if one.score_interval else None
        if fail_under is not None and (score is None or score < fail_under):
            yield f"{one.name}: {'no score' if score is None else f'score {score:.3f}'}, below {fail_under:g}"
    for each in against_baseline:
        if each.is_regression and each.interval:
            low, high = each.interval.low, each.interval.high
            yield (
                f"{each.name}: worse than {each.baseline} by {-each.interval.value:.3f}, "
                f"95 % interval {low:+.3f} … {high:+.3f}"
            )
