"""Grades come from the LM claim by claim; what there is nothing to grade in is None, what can't be read raises."""

import dspy
import pytest
from dspy.utils import DummyLM
from dspy.utils.exceptions import AdapterParseError
from predictions import Hit, Passage, Prediction, ranking

from programs.adapter import LeanJSONAdapter
from trainsets.cases import Case
from trainsets.grader import Grader, Grades

CASE = Case(id="c", question="What does it need?", answer=("24 V",))
SHOWN = (Hit(Passage("a#0", "It needs 24 V.")), Hit(Passage("b#0", "It needs 5 A.")))


def grade(prediction: Prediction, *replies: dict[str, object]) -> tuple[Grades, DummyLM]:
    lm = DummyLM(list(map(dict, replies)), adapter=LeanJSONAdapter())
    with dspy.context(lm=lm, adapter=LeanJSONAdapter()):
        return Grader()(CASE, prediction), lm


def test_faithfulness_is_the_share_of_supported_claims_and_names_the_others() -> None:
    answer = Prediction("It needs 24 V and 5 A.", ("a#0",), context=SHOWN)
    claims = [{"statement": "It needs 24 V.", "supported": True}, {"statement": "It needs 5 A.", "supported": False}]
    grades, lm = grade(answer, {"relevancy": "partial"}, {"claims": claims})
    assert grades == Grades(0.5, 0.5, ("It needs 5 A.",))
    prompt = str(lm.history[-1]["messages"])
    assert "It needs 24 V." in prompt
    assert "It needs 5 A.\n" not in prompt.replace("and 5 A.", "")  # only what was cited is shown


def test_an_answer_that_cites_nothing_it_was_shown_is_not_faithful() -> None:
    grades, _ = grade(Prediction("24 V", context=SHOWN), {"relevancy": "full"})
    assert grades == Grades(0.0, 1.0, ("24 V",))


def test_nothing_to_grade_is_none() -> None:
    assert grade(Prediction("not found", abstained=True, context=SHOWN))[0] == Grades(None, None)
    assert grade(Prediction("Hello!"), {"relevancy": "full"})[0] == Grades(None, 1.0)
    cited = Prediction("Hm.", ("a#0",), context=ranking("a#0"))
    assert grade(cited, {"relevancy": "none"}, {"claims": []})[0] == Grades(None, 0.0)


def test_an_unreadable_grade_raises() -> None:
    with pytest.raises(AdapterParseError):
        grade(Prediction("24 V", context=SHOWN), {"relevancy": "splendid"})
