"""Drafts that break a rule are rejected for that rule; those that pass carry their evidence."""

from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from trainsets import drafting
from trainsets.cases import Case
from trainsets.checks import check_cases
from trainsets.drafting import DraftLog, draft_cases, find_links

DOCUMENTS = {
    "unit": "Power unit\nThe NX-220 power unit, type PU-31, is supplied by Kestrel.",
    "site": "Supplier file\nOrders go to Kestrel, whose warehouse is in Bergen.",
    "note": "Canteen\nFish is served on Friday.",
    "policy": "差旅\n国内住宿标准为每晚500元。",
}
GOOD = {
    "question": "Where do NX-220 supplies come from?",
    "answer": "Kestrel",
    "evidence": "The NX-220 power unit, type PU-31, is supplied by Kestrel.",
}
TWO_HOP = {
    "question": "From which city does the maker of the NX-220 power unit deliver?",
    "answer": "Bergen",
    "first_evidence": "type PU-31, is supplied by Kestrel",
    "evidence": "whose warehouse is in Bergen",
}

Reply = Callable[..., dict[str, Any]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Case], DraftLog]]:
    """Draft with scripted replies by signature; the second reading finds what was drafted unless told otherwise."""

    def run(n: int = 1, documents: dict[str, str] = DOCUMENTS, **replies: Reply) -> tuple[list[Case], DraftLog]:
        drafted: dict[str, str] = {}

        def find(question: str, passages: str) -> dict[str, Any]:
            return {"stated": question in drafted, "answer": drafted.get(question, "")}

        def predict(signature: type[dspy.Signature]) -> Callable[..., dspy.Prediction]:
            reply = replies.get(signature.__name__, find if signature.__name__ == "FindAnswer" else unused)

            def call(**inputs: Any) -> dspy.Prediction:
                out = reply(**inputs)
                if out.get("answer") and signature.__name__ != "FindAnswer":
                    drafted[out["question"]] = out["answer"]
                return dspy.Prediction(**out)

            return call

        monkeypatch.setattr(drafting.dspy, "Predict", predict)
        log = DraftLog()
        return list(draft_cases(documents, n, log_to=log)), log

    return run


def unused(**_: Any) -> dict[str, Any]:
    return {"question": "Which part is it?", "absent": "x", "answer": "", "evidence": "", "first_evidence": ""}


def only_unit(passage: str, language: str = "", **changes: str) -> dict[str, Any]:
    return GOOD | changes if "PU-31" in passage else unused()


def test_a_good_draft_becomes_a_case_that_passes_the_check(play: Any) -> None:
    [case], log = play(DraftQuestion=only_unit)
    assert (case.kind, case.lang, case.answer, case.gold_ids) == ("single_hop", "en", ("Kestrel",), ("unit",))
    assert case.gold_spans == (GOOD["evidence"],)
    assert case.meta == {"review": "draft"}
    assert check_cases([case], DOCUMENTS) == []
    assert log.n_tries == 1 + sum(log.rejected.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"answer": "Heron"}, "the answer is not in the passage"),
        ({"answer": ""}, "empty"),
        ({"question": "NX-220 的电源从哪里来？"}, "another language than the passage"),
        ({"evidence": "Kestrel supplies it."}, "the evidence is not word for word"),
        ({"evidence": "The NX-220 power unit"}, "the evidence does not hold the answer or the link"),
        ({"question": "Does Kestrel make it?"}, "the question holds the answer"),
        ({"question": "Who does this document say makes it?"}, "speaks of the passage"),
        (
            {"question": "NX-220 power unit, type PU-31, is supplied by whom in Oslo?"},
            "the question copies the passage",
        ),
        ({"answer": GOOD["evidence"] * 2}, "the answer is long"),
    ],
)
def test_a_draft_that_breaks_a_rule_is_rejected_for_it(play: Any, changes: dict[str, str], reason: str) -> None:
    documents = {"unit": DOCUMENTS["unit"]}
    cases, log = play(documents=documents, DraftQuestion=lambda passage, language: only_unit(passage, **changes))
    assert cases == []
    assert log.rejected == {f"single_hop: {reason}": drafting.TRIES_PER_CASE}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"stated": False, "answer": ""}, "the second reading found no answer"),
        ({"stated": True, "answer": "PU-31"}, "the second reading found another answer"),
    ],
)
def test_the_second_reading_has_to_agree(play: Any, found: dict[str, Any], reason: str) -> None:
    documents = {"unit": DOCUMENTS["unit"]}
    cases, log = play(documents=documents, DraftQuestion=only_unit, FindAnswer=lambda **_: found)
    assert cases == []
    assert set(log.rejected) == {f"single_hop: {reason}"}


def test_two_documents_that_share_a_rare_name_make_a_two_hop_case(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_links(DOCUMENTS) == [("unit", "site", "Kestrel"), ("site", "unit", "Kestrel")]
    monkeypatch.setattr(drafting, "SHARES", {"multi_hop": 1.0, "unanswerable": 0.0})

    def two_hop(first: str, second: str, link: str, language: str) -> dict[str, Any]:
        return TWO_HOP if "Bergen" in second else TWO_HOP | {"question": f"Where is {link}?"}

    [case], log = play(DraftTwoHop=two_hop)
    assert (case.kind, case.gold_ids, case.answer) == ("multi_hop", ("unit", "site"), ("Bergen",))
    assert check_cases([case], DOCUMENTS) == []
    assert set(log.rejected) <= {"multi_hop: names the link"}


def test_an_unanswerable_draft_is_kept_only_if_no_near_document_answers_it(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "SHARES", {"multi_hop": 0.0, "unanswerable": 1.0})
    absent = {"question": "Who signed for the warehouse of Kestrel?", "absent": "the signature"}
    [case], _ = play(DraftUnanswerable=lambda **_: absent)
    assert not case.answerable
    assert case.gold_ids == case.answer == ()
    assert "site" in case.meta["near"]
    assert case.meta["absent"] == "the signature"
    _, log = play(DraftUnanswerable=lambda **_: absent | {"absent": "Bergen"})
    assert "unanswerable: what should be absent is there" in log.rejected
    read: list[str] = []

    def find(question: str, passages: str) -> dict[str, Any]:
        read.append(passages)
        return {"stated": "warehouse is in Bergen" in passages, "answer": "Bergen"}

    english = {id_: text for id_, text in DOCUMENTS.items() if id_ != "policy"}
    cases, log = play(documents=english, DraftUnanswerable=lambda **_: absent, FindAnswer=find)
    assert cases == []
    assert set(log.rejected) == {"unanswerable: the second reading found an answer"}
    assert all("Bergen" in passages for passages in read)


def test_the_same_question_is_not_drafted_twice(play: Any) -> None:
    cases, log = play(n=2, documents={"unit": DOCUMENTS["unit"]}, DraftQuestion=only_unit)
    assert [case.id for case in cases] == ["draft-001"]
    assert log.rejected["single_hop: asked before"] > 0


@pytest.mark.llm
def test_the_embedded_lm_drafts_cases_that_pass_the_check() -> None:
    from programs.adapter import LeanJSONAdapter
    from programs.lms import make_lm

    facts = {
        "wiring": "NX-220 wiring\nThe NX-220 is supplied with 24 V DC. It needs an external fuse of 2 A, slow-blow.",
        "course": "Course TR-210\nThe course TR-210 takes three days and is held in Trondheim. It costs EUR 540 a day.",
    }
    log = DraftLog()
    with dspy.context(lm=make_lm("local"), adapter=LeanJSONAdapter()):
        cases = list(draft_cases(facts, 2, log_to=log))
    assert log.n_tries == len(cases) + log.rejected.total()
    assert [finding for finding in check_cases(cases, facts) if finding.level == "error"] == []


def test_an_unreadable_output_is_counted_and_any_other_error_is_not_hidden(play: Any) -> None:
    def garbled(**_: str) -> dict[str, Any]:
        raise AdapterParseError("JSONAdapter", drafting.DraftQuestion, "{")

    cases, log = play(documents={"unit": DOCUMENTS["unit"]}, DraftQuestion=garbled)
    assert cases == []
    assert log.rejected == {"single_hop: unreadable LM output": drafting.TRIES_PER_CASE}
    with pytest.raises(ZeroDivisionError):
        play(DraftQuestion=lambda **_: 1 / 0)
