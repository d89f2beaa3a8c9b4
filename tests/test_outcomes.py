"""Failures planted one by one, in records made by hand and in real programs, get the outcome that names them."""

from collections.abc import Mapping
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from predictions import Hit, Passage, Prediction, hop, ranking

from programs.rag import AgenticRAG, HybridRAG
from programs.run import Bounds
from programs.tools import FAILED_QUERY
from retrievers.records import Hit as RealHit
from retrievers.records import Passage as RealPassage
from trainsets.answers import NoGoldAnswerError
from trainsets.cases import Case
from trainsets.normalize import tokens
from trainsets.outcomes import OUTCOMES, Outcome, attribute, count_transitions

CASE = Case(id="c", question="q", answer=("24 V",), gold_ids=("a", "b"), kind="multi_hop")
ABSENT = Case(id="u", question="q", answerable=False)
SHOWN = ranking("a#0", "b#0")


def name(case: Case, prediction: Prediction | None, **known: Any) -> str:
    return attribute(case, prediction, **known).name


def test_right_needs_a_citation_of_the_evidence_or_of_the_answer() -> None:
    assert name(CASE, Prediction("24 V", ("a#0",), context=SHOWN)) == "right"
    elsewhere = (Hit(Passage("x#0", "supply 24 V")),)
    assert name(CASE, Prediction("24 V", ("x#0",), context=elsewhere)) == "right"
    assert name(CASE, Prediction("24 V", (), context=SHOWN)) == "unsupported_right"
    assert name(CASE, Prediction("24 V", ("x#0",), context=ranking("x#0"))) == "unsupported_right"
    assert name(Case(id="n", question="q", answer=("24 V",)), Prediction("24 V")) == "right"


def test_with_all_evidence_shown_the_answerer_is_to_blame() -> None:
    assert name(CASE, Prediction("48 V", context=SHOWN)) == "wrong_with_evidence"
    assert name(CASE, Prediction("not found", abstained=True, context=SHOWN)) == "should_not_have_abstained"


def test_unanswerable_cases_are_right_when_abstained() -> None:
    assert name(ABSENT, Prediction("not found", abstained=True)) == "right"
    assert name(ABSENT, Prediction("24 V")) == "should_have_abstained"


def test_small_talk_has_no_evidence_to_miss() -> None:
    greeting = Case(id="h", question="hi", kind="chitchat")
    assert name(greeting, Prediction("Hello!", stop_reason="no_search_needed")) == "right"
    assert name(greeting, Prediction("not found", abstained=True)) == "should_not_have_abstained"
    assert name(greeting, Prediction("")) == "wrong_with_evidence"


def test_an_error_is_errored_and_never_wrong() -> None:
    assert attribute(CASE, None, error="TimeoutError: 120 s") == Outcome("errored", detail="TimeoutError: 120 s")
    assert name(CASE, None) == "errored"
    assert name(CASE, Prediction("x", stop_reason="error")) == "errored"
    assert name(ABSENT, Prediction("x", abstained=True, stop_reason="error")) == "errored"
    broken = hop("a#0", error="stock: HTTP 503")
    assert attribute(CASE, Prediction("48 V", hops=(broken,))) == Outcome("errored", detail="stock: HTTP 503")
    assert name(CASE, Prediction("24 V", ("a#0",), context=SHOWN, hops=(broken,))) == "right"


def test_a_query_of_the_lms_own_that_failed_does_not_hide_a_wrong_answer() -> None:
    failed = hop("a#0", "b#0", error=f"{FAILED_QUERY}no such column: price")
    assert name(CASE, Prediction("48 V", ("a#0",), context=SHOWN, hops=(failed,))) == "wrong_with_evidence"


def test_evidence_outside_the_index_is_told_first() -> None:
    lost = Prediction("48 V", context=ranking("a#0"), hops=(hop("a#0"),))
    assert attribute(CASE, lost, indexed_ids={"a"}) == Outcome("not_in_index", detail="b")
    assert name(CASE, lost, indexed_ids={"a", "b"}) == "not_retrieved"
    by_passage = Case(id="p", question="q", answer=("24 V",), gold_ids=("a#0", "b#7"), kind="multi_hop")
    assert name(by_passage, lost, indexed_ids={"a", "b"}) == "not_retrieved"
    assert name(by_passage, lost, indexed_ids={"a"}) == "not_in_index"


def test_evidence_that_was_a_hit_and_not_shown_ranked_too_low() -> None:
    deep = hop("a#0", "x#0", "y#0", "b#2", "b#0")
    outcome = attribute(CASE, Prediction("48 V", context=ranking("a#0", "x#0"), hops=(deep,)))
    assert outcome == Outcome("ranked_too_low", rank=4, detail="b")


def test_evidence_below_the_cut_is_found_by_a_deeper_search() -> None:
    shallow = Prediction("48 V", context=ranking("a#0"), hops=(hop("a#0", "x#0"),))
    assert attribute(CASE, shallow, deep_ranks={"b": 37, "a": 1}) == Outcome("ranked_too_low", 37, "b")
    assert name(CASE, shallow, deep_ranks={"a": 1}) == "not_retrieved"


def test_evidence_that_the_judge_read_and_left_out_was_dropped() -> None:
    judged = hop("a#0", "b#0", verdict="sufficient")
    dropped = Prediction("48 V", context=ranking("a#0"), hops=(judged,))
    assert attribute(CASE, dropped) == Outcome("dropped_by_judge", rank=2, detail="b")
    unread = hop("a#0", "b#0", judged=("a#0",), verdict="sufficient")
    assert attribute(CASE, Prediction("48 V", context=ranking("a#0"), hops=(unread,))) == Outcome(
        "ranked_too_low", 2, "b"
    )
    unjudged = hop("a#0", "b#0")
    assert name(CASE, Prediction("48 V", context=ranking("a#0"), hops=(unjudged,))) == "ranked_too_low"


def test_evidence_that_was_rated_too_little_relevant_was_dropped_by_the_threshold() -> None:
    rated = hop("a#0", "b#0", judged=("a#0",), left_out=("b#0",), verdict="sufficient")
    lost = Prediction("48 V", context=ranking("a#0"), hops=(rated,))
    assert attribute(CASE, lost) == Outcome("dropped_by_threshold", rank=2, detail="b")
    assert name(CASE, Prediction("48 V", context=SHOWN, hops=(rated,))) == "wrong_with_evidence"
    other = hop("a#0", "b#0", "x#0", judged=("a#0",), left_out=("x#0",), verdict="sufficient")
    assert name(CASE, Prediction("48 V", context=ranking("a#0"), hops=(other,))) == "ranked_too_low"
    read_later = hop("b#0", judged=("a#0", "b#0"), verdict="sufficient")
    assert name(CASE, Prediction("48 V", context=ranking("a#0"), hops=(rated, read_later))) == "dropped_by_judge"


def test_a_loop_that_goes_on_to_answer_without_the_evidence_stopped_early() -> None:
    content = Prediction("48 V", context=ranking("a#0"), hops=(hop("a#0", verdict="sufficient"),))
    assert name(CASE, content) == "stopped_early"
    assert name(CASE, Prediction("48 V", stop_reason="no_search_needed")) == "stopped_early"


@pytest.mark.parametrize("reason", ["max_rounds", "repeated_query", "no_new_evidence", "budget", "timeout"])
def test_a_loop_that_ends_halfway_is_exhausted_and_one_that_never_found_anything_did_not_retrieve(reason: str) -> None:
    half = (hop("a#0", verdict="insufficient"), hop("x#0", verdict="insufficient"))
    kwargs: dict[str, Any] = {"abstained": True, "stop_reason": reason}
    assert name(CASE, Prediction("not found", context=ranking("a#0"), hops=half, **kwargs)) == "loop_exhausted"
    nothing = (hop("x#0", verdict="insufficient"), hop("y#0", verdict="insufficient"))
    assert name(CASE, Prediction("not found", context=ranking("x#0"), hops=nothing, **kwargs)) == "not_retrieved"


def test_alternative_evidence_is_enough_where_one_document_may_do() -> None:
    either = Case(id="e", question="q", answer=("24 V",), gold_ids=("a", "b"), kind="lookup")
    held = Hit(Passage("a#0", "24 V"))
    assert name(either, Prediction("48 V", context=(held,))) == "wrong_with_evidence"
    assert name(either, Prediction("48 V", context=ranking("a#0"), hops=(hop("a#0"),))) == "not_retrieved"
    assert name(either, Prediction("48 V"), indexed_ids={"a"}) == "stopped_early"
    assert name(either, Prediction("48 V", context=ranking("a#1")), indexed_ids={"a"}) == "not_in_index"
    both = either.model_copy(update={"kind": "comparison"})
    assert name(both, Prediction("48 V", context=(held,), hops=(hop("a#0"),))) == "not_retrieved"


def test_without_gold_ids_the_answer_in_the_context_is_the_evidence() -> None:
    case = Case(id="n", question="q", answer=("24 V",))
    held = (Hit(Passage("x#0", "supply 24 V")),)
    assert name(case, Prediction("48 V", context=held)) == "wrong_with_evidence"
    assert name(case, Prediction("48 V", context=ranking("x#0"), hops=(hop("x#0"),))) == "not_retrieved"


def test_a_retrieval_only_case_is_right_when_its_evidence_was_shown() -> None:
    case = Case(id="r", question="q", gold_ids=("a",))
    assert name(case, Prediction("anything", context=ranking("a#0"), hops=(hop("a#0"),))) == "right"
    assert name(case, Prediction("anything", context=ranking("x#0"), hops=(hop("x#0"),))) == "not_retrieved"
    with pytest.raises(NoGoldAnswerError):
        attribute(Case(id="e", question="q"), Prediction("x"))


passages = st.lists(st.sampled_from(["a#0", "b#1", "x#0", "y#3"]), unique=True, max_size=4).map(tuple)
hops = st.builds(
    lambda hits, verdict, error: hop(*hits, verdict=verdict, error=error),
    passages,
    st.sampled_from([None, "sufficient", "insufficient", "conflict"]),
    st.sampled_from([None, None, "boom"]),
)
runs = st.builds(
    lambda answer, cited, abstained, reason, shown, made: Prediction(
        answer, cited, abstained, None, reason, ranking(*shown), tuple(made)
    ),
    st.sampled_from(["24 V", "48 V", ""]),
    passages,
    st.booleans(),
    st.sampled_from(["sufficient", "max_rounds", "error", "no_search_needed", "budget"]),
    passages,
    st.lists(hops, max_size=3),
)


@given(st.lists(st.tuples(st.sampled_from([CASE, ABSENT]), st.none() | runs), max_size=12))
def test_every_run_has_one_of_the_outcomes(pairs: list[tuple[Case, Prediction | None]]) -> None:
    assert {attribute(case, prediction, indexed_ids={"a"}).name for case, prediction in pairs} <= set(OUTCOMES)


def test_transitions_count_how_cases_moved() -> None:
    before = {"1": "ranked_too_low", "2": "ranked_too_low", "3": "right"}
    after = {"1": "right", "2": "right", "3": "right"}
    moved = count_transitions(before, after)  # type: ignore[arg-type]
    assert moved == {("ranked_too_low", "right"): 2, ("right", "right"): 1}
    with pytest.raises(ValueError, match="the first is 3"):
        count_transitions(before, {"1": "right", "2": "right"})  # type: ignore[arg-type]


# Real programs over a small shelf of passages, with one part broken at a time.

SHELF = {
    "sup": "The NX-220 power unit is supplied by Kestrel Components.",
    "site": "Kestrel Components ships from its warehouse in Bergen.",
    "menu": "The canteen in Trondheim serves fish on Friday.",
    "lot": "Relays of the NX-400 come from lot L-2409.",
}
QUESTION = "Where does the supplier of the NX-220 power unit ship from?"
HOPS = Case(id="m", question=QUESTION, answer=("Bergen",), gold_ids=("sup", "site"), kind="multi_hop")


class Shelf:
    """Ranks passages by shared words; `blind_to` are those it never finds."""

    def __init__(self, documents: Mapping[str, str], blind_to: tuple[str, ...] = (), k: int | None = None) -> None:
        self.documents = {id_: text for id_, text in documents.items() if id_ not in blind_to}
        self.k = k

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[RealHit]:
        words = set(tokens(query))
        scores = {id_: len(words & set(tokens(text))) for id_, text in self.documents.items()}
        best = [id_ for id_ in sorted(scores, key=scores.__getitem__, reverse=True) if scores[id_]][: self.k or k]
        return [
            RealHit(RealPassage(f"{id_}#0", id_, id_, self.documents[id_]), float(scores[id_]), rank)
            for rank, id_ in enumerate(best, start=1)
        ]


class BrokenTool(Shelf):
    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[RealHit]:
        raise ConnectionError("the index went away")


def make_program(shelf: Shelf, kind: type = AgenticRAG) -> Any:
    """Build a program whose predictors are perfect; a test then breaks one of them."""
    program = kind(dict.fromkeys(("hybrid", "keyword", "dense"), shelf))

    def answer(question: str, passages: str) -> dspy.Prediction:
        return dspy.Prediction(answer="Bergen" if "Bergen" in passages else "Oslo", citations=[1, 2])

    def judge(question: str, passages: str) -> dspy.Prediction:
        quotes = [text for text in (SHELF["sup"], SHELF["site"]) if text in passages]
        verdict = "sufficient" if len(quotes) == 2 else "insufficient"
        return dspy.Prediction(verdict=verdict, quotes=quotes, missing="where Kestrel ships from")

    program.answer = answer
    if kind is AgenticRAG:
        step = dspy.Prediction(tool="hybrid", query="supplier NX-220")
        program.plan = lambda question: dspy.Prediction(steps=[step])
        program.judge = judge
        program.rewrite = lambda **_: dspy.Prediction(query="Kestrel Components warehouse", tool="hybrid")
    return program


def outcome_of(program: Any, shelf: Shelf, case: Case = HOPS) -> Outcome:
    return attribute(case, program(question=case.question, history=[]), indexed_ids=shelf.documents.keys())


def test_the_unbroken_program_is_right() -> None:
    shelf = Shelf(SHELF)
    assert outcome_of(make_program(shelf), shelf).name == "right"


def test_a_document_dropped_from_the_corpus_is_not_in_the_index() -> None:
    shelf = Shelf({id_: text for id_, text in SHELF.items() if id_ != "site"})
    assert outcome_of(make_program(shelf), shelf) == Outcome("not_in_index", detail="site")


def test_a_blind_retriever_does_not_retrieve() -> None:
    blind = Shelf(SHELF, blind_to=("sup", "site"))
    result = attribute(HOPS, make_program(blind)(question=QUESTION, history=[]), indexed_ids=SHELF)
    assert result.name == "not_retrieved"
    hybrid = make_program(blind, HybridRAG)(question=QUESTION, history=[])
    assert attribute(HOPS, hybrid, indexed_ids=SHELF).name == "not_retrieved"


def test_a_judge_that_is_always_content_stops_early() -> None:
    shelf = Shelf(SHELF, k=1)
    program = make_program(shelf)
    program.judge = lambda **_: dspy.Prediction(verdict="sufficient", quotes=[SHELF["sup"]], missing="")
    assert outcome_of(program, shelf) == Outcome("stopped_early", detail="site")


def test_a_judge_that_overlooks_evidence_it_read_drops_it() -> None:
    class Once(Shelf):
        def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[RealHit]:
            found = super().search(query, k, filters)  # by what was quoted, nothing that leads on is found
            return [hit for hit in found if SHELF["sup"] not in query or hit.passage.doc_id in ("menu", "lot")]

    shelf = Once(SHELF)
    program = make_program(shelf)
    program.bounds = Bounds(min_relevance=0.0)
    program.judge = lambda **_: dspy.Prediction(verdict="sufficient", quotes=[SHELF["sup"]], missing="")
    outcome = outcome_of(program, shelf)
    assert (outcome.name, outcome.detail) == ("dropped_by_judge", "site")


def test_a_threshold_that_shuts_evidence_out_drops_it() -> None:
    shelf = Shelf(SHELF)
    program = make_program(shelf)
    program.rewrite = lambda **_: dspy.Prediction(query="fish on Friday", tool="hybrid")
    assert outcome_of(program, shelf) == Outcome("dropped_by_threshold", rank=3, detail="site")
    program.bounds = Bounds(min_relevance=0.0)
    assert outcome_of(program, shelf).name == "right"


def test_a_rewriter_that_leads_nowhere_exhausts_the_loop() -> None:
    shelf = Shelf(SHELF, k=1)
    program = make_program(shelf)
    program.rewrite = lambda **_: dspy.Prediction(query="fish on Friday", tool="hybrid")
    assert outcome_of(program, shelf).name == "loop_exhausted"


def test_a_tool_that_the_lm_made_up_is_no_error_of_the_system() -> None:
    shelf = Shelf(SHELF, k=1)
    program = make_program(shelf)
    program.rewrite = lambda **_: dspy.Prediction(query="fish on Friday", tool="web")
    prediction = program(question=QUESTION, history=[])
    assert {hop.tool for hop in prediction.hops if hop.error} == {"web"}
    assert attribute(HOPS, prediction).name == "loop_exhausted"


def test_an_answerer_that_ignores_the_passages_is_wrong_with_evidence() -> None:
    shelf = Shelf(SHELF)
    program = make_program(shelf)
    program.answer = lambda **_: dspy.Prediction(answer="Oslo", citations=[1, 2])
    assert outcome_of(program, shelf).name == "wrong_with_evidence"


def test_an_answerer_that_guesses_right_without_a_source_is_unsupported() -> None:
    shelf = Shelf(SHELF, blind_to=("site", "sup"))
    program = make_program(shelf, HybridRAG)
    program.answer = lambda **_: dspy.Prediction(answer="Bergen", citations=[1])
    assert outcome_of(program, shelf).name == "unsupported_right"


def test_an_exception_in_a_tool_is_errored() -> None:
    program = make_program(BrokenTool(SHELF))
    try:
        prediction, error = program(question=QUESTION, history=[]), None
    except ConnectionError as raised:
        prediction, error = None, f"{type(raised).__name__}: {raised}"
    outcome = attribute(HOPS, prediction, error)
    assert outcome.name == "errored"
    assert "the index went away" in outcome.detail
