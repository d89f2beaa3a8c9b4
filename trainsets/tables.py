"""The rows of the tables that evaluations print; a dash where there is nothing to measure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainsets.comparison import Comparison, Stability
from trainsets.outcomes import OUTCOMES
from trainsets.results import MAIN, Slice, Summary

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]

COLUMNS = (
    "program", "score", "answer", "evidence@5", "abstain P", "abstain R", "LM calls", "tokens", "s P50", "s P95",
    "unparsed", "errors",
)  # fmt: skip


def table_row(name: str, summary: Summary) -> tuple[str, ...]:
    """Return one row under `COLUMNS`."""
    scores, abstention = summary.scores, summary.abstention
    return (
        name,
        shown(scores.get(MAIN)),
        shown(scores.get("answer_score")),
        shown(scores.get("all_evidence_recall_at_5")),
        shown(abstention.get("abstention_precision")),
        shown(abstention.get("abstention_recall")),
        f"{summary.lm_calls:.1f}",
        f"{summary.tokens:,.0f}",
        shown(summary.seconds_p50, 1),
        shown(summary.seconds_p95, 1),
        str(summary.parse_failures),
        str(summary.n_errors),
    )


_QUALITY = {
    "EM": "exact_match",
    "F1": "token_f1",
    "cite P": "citation_precision",
    "cite R": "citation_recall",
    "ctx P": "context_precision",
    "ctx R": "context_recall",
    "faith": "faithfulness",
}
_GRADED = {"LM faith": "graded_faithfulness", "relevant": "graded_relevancy"}
_RETRIEVAL = {
    "recall@1": "recall_at_1",
    "recall@5": "recall_at_5",
    "recall@10": "recall_at_10",
    "success@5": "success_at_5",
    "all evidence@10": "all_evidence_recall_at_10",
    "MRR": "mrr",
    "nDCG@10": "ndcg_at_10",
}


def quality_table(summaries: Mapping[str, Summary]) -> Table:
    """Lay out what the main table has no room for: words of the answer, citations, context, faithfulness, cost.

    `faith` is by rules; `LM faith` and `relevant` are by a grader, where there was one.
    """
    graded = any(name in one.scores for one in summaries.values() for name in _GRADED.values())
    metrics = _QUALITY | (_GRADED if graded else {})
    rows = [
        (
            name,
            *(shown(one.scores.get(metric)) for metric in metrics.values()),
            shown(one.scores.get("judge_accuracy")),
            shown(one.scores.get("rounds"), 2),
            f"{one.cost_usd:.4f}",
        )
        for name, one in summaries.items()
    ]
    return ("program", *metrics, "judge", "rounds", "USD"), rows


def describe_cut_off(summaries: Mapping[str, Summary]) -> list[str]:
    """Say of each program whose LM was cut off at its token limit how often; those are unparsed, most of them."""
    return [
        f"{name}: the LM was cut off at its token limit {one.truncations} times"
        for name, one in summaries.items()
        if one.truncations
    ]


def retrieval_table(summaries: Mapping[str, Summary]) -> Table:
    """Lay out how programs rank that only search."""
    rows = [
        (
            name,
            *(shown(one.scores.get(metric)) for metric in _RETRIEVAL.values()),
            shown(None if one.seconds_p50 is None else 1000 * one.seconds_p50, 0),
            str(one.n_errors),
        )
        for name, one in summaries.items()
    ]
    return ("search", *_RETRIEVAL, "ms P50", "errors"), rows


def outcome_table(summaries: Mapping[str, Summary]) -> Table:
    """Lay out how many cases had which outcome: a row an outcome that occurred, a column a program."""
    occurred = [name for name in OUTCOMES if any(one.outcomes.get(name) for one in summaries.values())]
    rows = [(name, *(str(one.outcomes.get(name, 0)) for one in summaries.values())) for name in occurred]
    return ("outcome", *summaries), rows


def slice_table(slices: Mapping[str, Sequence[Slice]], comparisons: Sequence[Comparison]) -> Table:
    """Lay out the score of every program by kind and language, and how far each comparison is apart there."""
    names = list(slices)
    groups = [(one.by, one.value, one.n) for one in slices[names[0]]]
    scores = {(name, one.by, one.value): one.score for name, part in slices.items() for one in part}
    apart = {(n, one.by, one.value): one.difference for n, each in enumerate(comparisons) for one in each.slices}
    rows = [
        (
            f"{by} {value}",
            str(n),
            *(shown(scores.get((name, by, value))) for name in names),
            *(signed(apart.get((number, by, value))) for number in range(len(comparisons))),
        )
        for by, value, n in groups
    ]
    return ("slice", "n", *names, *(f"{one.name} − {Path(one.baseline).name}" for one in comparisons)), rows


def stability_table(stabilities: Mapping[str, Stability]) -> Table:
    """Lay out how alike repeats were."""
    rows = [
        (
            name,
            str(one.n_repeats),
            str(one.n),
            *(shown(value) for value in (one.right, one.answer, one.verdict)),
            " ".join(map(shown, one.scores)),
        )
        for name, one in stabilities.items()
    ]
    return ("program", "repeats", "cases", "same right", "same answer", "same verdict", "score of each"), rows


def shown(value: float | None, digits: int = 3) -> str:
    """Write a number with so many digits; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def signed(value: float | None) -> str:
    """Write a difference with its sign; a dash for None."""
    return "–" if value is None else f"{value:+.3f}"
