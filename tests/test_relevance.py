from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.relevance import complement, rate
from programs.run import Bounds, Evidence, Run
from retrievers.records import Hit, Passage


def ranked(*found: tuple[str, float]) -> tuple[Hit, ...]:
    """Passages named by their first word."""
    return tuple(
        Hit(Passage(f"{text.split()[0]}#0", text.split()[0], "", text), score, rank)
        for rank, (text, score) in enumerate(found, start=1)
    )


class Shelf:
    """Gives the ranking of a query."""

    def __init__(self, rankings: Mapping[str, tuple[Hit, ...]]) -> None:
        self.rankings = rankings

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        return list(self.rankings.get(query, ()))[:k]


def searched(rankings: Mapping[str, tuple[Hit, ...]], *, is_selective: bool = True, **bounds: Any) -> Run:
    first = next(iter(rankings))
    run = Run(first, {"hybrid": Shelf(rankings)}, Bounds(**bounds), is_selective=is_selective)
    for query in rankings:
        run.search("hybrid", query, decided_by="rule")
    return run


def shown(run: Run) -> list[str]:
    return [hit.passage.doc_id for hit in run.context()]


QUESTION = "Who supplies the relays of the NX-400?"
RELAYS = ranked(
    ("sup Falk Relais supplies the relays of the NX-400.", 0.9),
    ("lot Relays of the NX-400 carry a lot code.", 0.5),
    ("menu The canteen serves fish.", 0.1),
)


def test_score_and_rare_words_tell_what_is_relevant() -> None:
    first, second, last = rate(RELAYS, QUESTION, QUESTION)
    assert first == 1.0
    assert 0.5 < second < 0.8
    assert last < 0.1


def test_of_question_and_query_the_one_counts_that_a_passage_shares_more_with() -> None:
    hits = ranked(("ship Falk Relais ships from Bergen.", 0.9), ("sup Falk Relais supplies the relays.", 0.9))
    assert rate(hits, QUESTION, "warehouse Bergen") == (1.0, 1.0)
    assert rate(hits, QUESTION, QUESTION)[0] < 1.0


def test_across_languages_the_score_alone_tells() -> None:
    assert rate(RELAYS, "谁供应继电器？", "谁供应继电器？") == (1.0, 0.556, 0.111)


def test_scores_below_zero_tell_too() -> None:
    hits = ranked(("a x", -1.0), ("b x", -3.0), ("c x", -5.0))
    assert rate(hits, "?", "?") == (1.0, 0.5, 0.0)


@given(
    st.lists(st.floats(-50, 50), max_size=8),
    st.text(alphabet="ab1 中文-", max_size=12),
    st.text(alphabet="ab1 中文-", max_size=12),
)
def test_every_hit_has_a_number_from_0_to_1_and_one_that_leads_in_both_has_1(
    scores: list[float], question: str, query: str
) -> None:
    hits = ranked(*((f"d{n} a b1 中文", score) for n, score in enumerate(sorted(scores, reverse=True))))
    ratings = rate(hits, question, query)
    assert len(ratings) == len(hits)
    assert all(0 <= one <= 1 for one in ratings)
    assert list(ratings) == sorted(ratings, reverse=True)
    assert ratings[:1] in ((), (1.0,))


# --- the threshold ---


def test_passages_of_too_little_relevance_leave_the_context_and_are_named() -> None:
    run = searched({QUESTION: RELAYS})
    assert shown(run) == ["sup", "lot"]
    run.note(Evidence("sufficient", run.context()), run.context())
    assert run.hops[0].relevance == rate(RELAYS, QUESTION, QUESTION)
    assert (run.hops[0].judged, run.hops[0].left_out) == (("sup#0", "lot#0"), ("menu#0",))


def test_what_would_not_be_shown_anyway_was_not_left_out() -> None:
    run = searched({QUESTION: RELAYS}, n_passages=2)
    run.note(Evidence("sufficient", run.context()), run.context())
    assert run.hops[0].left_out == ()


def test_a_threshold_of_0_and_a_plain_run_show_everything() -> None:
    everything = ["sup", "lot", "menu"]
    assert shown(searched({QUESTION: RELAYS}, min_relevance=0)) == everything
    assert shown(searched({QUESTION: RELAYS}, is_selective=False)) == everything


def test_the_best_of_every_search_stays_and_so_does_the_best_that_a_search_brought_anew() -> None:
    bridge = ranked(("sup Falk Relais supplies the relays of the NX-400.", 0.9), ("ship Bergen is the harbour.", 0.1))
    assert shown(searched({QUESTION: RELAYS, "Falk": bridge}, min_relevance=1)) == ["sup", "ship"]


def test_a_passage_counts_by_the_search_that_rates_it_best() -> None:
    again = ranked(("menu The canteen serves fish.", 0.8), ("lot Relays of the NX-400 carry a lot code.", 0.1))
    assert set(shown(searched({QUESTION: RELAYS, "canteen fish": again}))) == {"sup", "lot", "menu"}


def test_a_passage_that_was_left_out_is_new_evidence_when_a_search_finds_it_relevant() -> None:
    again = ranked(("menu The canteen serves fish.", 0.8))
    run = Run(QUESTION, {"hybrid": Shelf({QUESTION: RELAYS, "canteen": again})}, Bounds(), is_selective=True)
    assert run.search("hybrid", QUESTION, decided_by="rule")
    assert run.search("hybrid", "canteen", decided_by="lm")
    assert (run.hops[1].kept, shown(run)) == ((), ["menu", "sup", "lot"])
    assert not run.search("keyword", "canteen", decided_by="lm")


RANKINGS = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.floats(-1, 1)), max_size=6, unique_by=lambda one: one[0]), max_size=4
)


@given(RANKINGS, st.floats(0, 1))
def test_no_threshold_empties_a_context_or_brings_back_what_another_drops(
    rankings: list[list[tuple[int, float]]], threshold: float
) -> None:
    made = {
        f"w{n} w{n + 1}": ranked(*((f"d{name} w{name} text {name}", score) for name, score in ranking))
        for n, ranking in enumerate(rankings)
    } or {"nothing": ()}
    plain, strict = (
        searched(made, n_passages=50, min_relevance=0),
        searched(made, n_passages=50, min_relevance=threshold),
    )
    assert set(shown(strict)) <= set(shown(plain))
    assert bool(shown(strict)) == bool(shown(plain))
    for hop in strict.hops:
        assert not hop.hits or hop.hits[0].passage.doc_id in shown(strict)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), "0.5", None])
def test_a_threshold_is_a_number_from_0_to_1(value: Any) -> None:
    with pytest.raises(ValueError, match="min_relevance"):
        Bounds(min_relevance=value)


def texts(*found: str) -> tuple[Hit, ...]:
    return ranked(*((text, 1.0) for text in found))


def test_the_other_half_of_a_question_stays_beside_what_was_quoted() -> None:
    recall, lead, price = texts(
        "recall notice 778 replaced the relay module everywhere",
        "lead times are counted from the order day",
        "relay modules come from Falk with a delivery time of nine weeks",
    )
    question = "How many weeks is the delivery time of the module that recall notice 778 replaced?"
    assert complement([recall], [recall, lead, price], question) == (recall, price)
    assert complement([price], [recall, lead, price], question) == (price, recall)


def test_a_quote_that_covers_the_question_stays_alone() -> None:
    hits = texts("sync cable of the NX-200 is 140 m long", "sync cable of the NX-220 is 90 m", "fans run at 40 degrees")
    assert complement(hits[:1], hits, "How long is the sync cable of the NX-200?") == hits[:1]


def test_where_no_word_of_the_question_is_found_nothing_is_added() -> None:
    hits = texts("sync cable", "relay module")
    assert complement(hits[:1], hits, "质保期") == hits[:1]
    assert complement(hits[:1], hits, "") == hits[:1]
