import pytest
from hypothesis import given
from hypothesis import strategies as st

from programs.claims import check_claims, lacking_acronyms
from retrievers.records import Hit, Passage


def hit(text: str, name: str = "a", **metadata: str) -> Hit:
    return Hit(Passage(f"{name}#0", name, "title", text, metadata), 1.0, 1)


CABLE = hit("The longest allowed sync cable is 140 m.")
LONG = hit("Orders above 1,250 pieces ship on 14 March 2025, within two years of contract FK-22.", "long")
ZH = hit("保修期为三十六个月，自 2025 年 3 月 14 日起；逾期扣百分之二。FW 4.2.1 之后不再支持。", "zh")


@pytest.mark.parametrize(
    ("answer", "passage"),
    [
        ("140 m", CABLE),
        ("140", CABLE),
        ("1250 pieces", LONG),
        ("2025-03-14", LONG),
        ("14.03.2025", LONG),
        ("March 2025", LONG),
        ("2 years", LONG),
        ("2 年", LONG),
        ("fk-22", LONG),
        ("36 个月", ZH),
        ("三十六个月", ZH),
        ("2025-03-14", ZH),
        ("2%", ZH),
        ("2 percent", ZH),
        ("4.2.1", ZH),
        ("yes", CABLE),
        ("Falk Relais", CABLE),  # words are for the LM
    ],
)
def test_a_claim_holds_in_whatever_form_it_is_written(answer: str, passage: Hit) -> None:
    finding = check_claims("What does it say?", answer, [passage], [passage])
    assert (finding.outcome, finding.citations) == ("holds", (passage,))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("150 m", "150 stands in no passage"),
        ("14", "14 stands in no passage"),
        ("15 March 2025", "2025, day-15, month-03 stands in no passage"),
        ("E-1024", "e-1024 stands in no passage"),
        ("12500", "12500 stands in no passage"),
        ("三天", "3 stands in no passage"),
    ],
)
def test_a_number_or_id_that_stands_in_no_passage_fails_the_answer(answer: str, reason: str) -> None:
    finding = check_claims("What does it say?", answer, [CABLE], [CABLE])
    assert finding.outcome == "fails"
    assert finding.reason == reason


def test_a_number_from_the_question_or_the_metadata_is_no_claim() -> None:
    assert check_claims("Is 150 m too long?", "150 m is too long", [CABLE], [CABLE]).outcome == "holds"
    dated = hit("The list is current.", date="2025-03-14", version="4.2.1")
    assert check_claims("Since when?", "14 March 2025, 4.2.1", [dated], [dated]).outcome == "holds"


@pytest.mark.parametrize(
    "question", ["How many pieces altogether?", "What is the difference?", "三个仓加起来有多少只？", "比去年高出多少？"]
)
def test_a_computed_number_does_not_fail(question: str) -> None:
    assert check_claims(question, "392", [CABLE], [CABLE]).outcome == "computed"


def test_the_passages_that_hold_a_claim_are_cited_instead_of_those_that_do_not() -> None:
    assert check_claims("How long?", "140 m", [], [LONG, CABLE]).citations == (CABLE,)
    assert check_claims("How long?", "140 m", [LONG], [LONG, CABLE]).citations == (LONG, CABLE)
    assert check_claims("How long?", "140 m", [CABLE], [LONG, CABLE]).citations == (CABLE,)


@pytest.mark.parametrize(
    ("question", "lacking"),
    [
        ("What is the MTBF of the cable?", "MTBF"),
        ("KX 的同步线能接 PROFINET 吗", "PROFINET"),
        ("How long is the cable of E-1024?", "e-1024"),
        ("How long was the cable in 2022?", "2022"),
        ("Which cable must not be used?", "a negation"),
        ("哪根线不能用？", "a negation"),
    ],
)
def test_a_term_of_the_question_that_no_cited_passage_mentions_is_doubtful(question: str, lacking: str) -> None:
    finding = check_claims(question, "140 m", [CABLE], [CABLE, LONG])
    assert finding.outcome == "doubtful"
    assert lacking in finding.reason


def test_passages_that_hold_few_words_of_the_question_leave_an_answer_in_doubt() -> None:
    question = "Which colour does the housing of a controller get at the factory?"
    finding = check_claims(question, "as long as it is dry", [CABLE], [CABLE])
    assert finding.outcome == "doubtful"
    assert "of the question's words" in finding.reason
    table = hit("The longest allowed sync cable is 140 m.", "t#sql-1")
    assert check_claims(question, "as long as it is dry", [table], [table]).outcome == "holds"


@pytest.mark.parametrize("question", ["Housing colour?", "控制器的外壳在工厂里刷成什么颜色？"])
def test_a_short_question_or_one_in_another_language_is_not_doubted_for_its_words(question: str) -> None:
    assert check_claims(question, "as long as it is dry", [CABLE], [CABLE]).outcome == "holds"


def test_terms_are_found_in_either_form_and_possessives_are_none() -> None:
    assert (
        check_claims("What happens on 14 March 2025 by FK-22's terms?", "they ship", [LONG], [LONG]).outcome == "holds"
    )
    assert check_claims("2025 年 3 月 14 日怎么了", "they ship", [LONG], [LONG]).outcome == "holds"


def test_acronyms_are_found_whatever_their_case() -> None:
    assert lacking_acronyms("What is the MTBF and the PSU?", "the psu is small") == ("MTBF",)
    assert lacking_acronyms("Which IP has it? NX-200, FW", "") == ()


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_no_text_breaks_the_check_and_only_shown_passages_are_cited(question: str, answer: str, text: str) -> None:
    shown = [hit(text), CABLE]
    finding = check_claims(question, answer, shown[:1], shown)
    assert set(map(id, finding.citations)) <= set(map(id, shown))
    assert finding.outcome == "holds" or finding.reason
