import guided
from predictions import ranking

from trainsets.cases import Case
from trainsets.gold import Gold, held_out_texts, holds_held_out


def test_the_answer_is_an_accepted_one_or_one_phrasing_of_every_part() -> None:
    assert Gold(guided.gold_case("hop")).answer == "nine weeks"
    parts = Case(id="p", question="q", answer_groups=(("red", "crimson"), ("blue",)))
    assert Gold(parts).answer == "red; blue"
    assert Gold(guided.gold_case("never")).answer == ""


def test_an_answer_is_given_with_its_unit_where_one_is_accepted() -> None:
    def answer(*accepted: str) -> str:
        return Gold(Case(id="u", question="q", answer=accepted)).answer

    assert answer("3", "3 days", "three days") == "3 days"
    assert answer("31.20", "EUR 31.20") == "EUR 31.20"
    assert answer("625.00", "EUR 625") == "625.00"
    assert answer("20.4 V", "20.4V") == "20.4 V"


def test_parts_and_the_whole_are_told_apart() -> None:
    gold = Gold(Case(id="p", question="q", answer_groups=(("red",), ("blue",))))
    assert gold.states_part("a red lamp")
    assert not gold.states_answer("a red lamp")
    assert gold.states_answer("a red and a blue lamp")


def test_only_a_case_on_conflicting_documents_is_misled() -> None:
    text = "It is due after 45 days."
    assert Gold(guided.gold_case("conflict")).misleads(text)
    assert not Gold(guided.gold_case("conflict").model_copy(update={"kind": "lookup"})).misleads(text)


def test_gold_passages_are_known_by_their_document() -> None:
    gold = Gold(guided.gold_case("hop"))
    assert [gold.is_gold(hit) for hit in ranking("io#0", "io-lamp#0")] == [True, False]
    assert gold.missing(ranking("io#0")) == ["supplier"]


def test_held_out_are_questions_and_evidence_but_nothing_too_short_to_tell() -> None:
    held_out = held_out_texts([guided.gold_case("zh"), Case(id="s", question="How long?", gold_spans=("24 V",))])
    assert holds_held_out(["…ＫＸ-310 的风扇多久更换一次？"], held_out)
    assert holds_held_out(["a", "how  LONG?"], held_out)
    assert not holds_held_out(["24 V"], held_out)
