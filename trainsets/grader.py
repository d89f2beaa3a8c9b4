"""The LM half of evaluation: faithfulness claim by claim and answer relevancy. Optional; rules come first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy

from signatures.grade import GradeFaithfulness, GradeRelevancy
from trainsets.cases import Case
from trainsets.prediction import PredictionLike

_RELEVANCY = {"full": 1.0, "partial": 0.5, "none": 0.0}
_PASSAGE_CHARS = 1500


@dataclass(frozen=True, slots=True)
class Grades:
    """What a grader says of one answer; None where there was nothing to grade."""

    faithfulness: float | None
    relevancy: float | None
    unsupported: tuple[str, ...] = ()


class Grader(dspy.Module):
    """Grades answers with the LM and adapter that are bound around the call (`dspy.context(lm=…, adapter=…)`).

    The grader should be another, stronger LM than the one that answered: an LM prefers its own text.

    Source: Es et al. 2023, arXiv:2309.15217 (statements, then one verdict each). Relevancy is asked for directly, not
    by embedding questions made from the answer, so that it needs no embedder.
    """

    def __init__(self) -> None:
        """Build the two predictors."""
        super().__init__()
        self.faithfulness = dspy.Predict(GradeFaithfulness)
        self.relevancy = dspy.Predict(GradeRelevancy)

    def forward(self, case: Case, prediction: PredictionLike) -> Grades:
        """Grade one prediction.

        Returns:
            `faithfulness`: supported claims ÷ claims; 0 if passages were shown and none was cited; None if the program
            abstained or showed no passages.
            `relevancy`: 1, 0.5 or 0; None if the program abstained.

        Raises:
            AdapterParseError: the LM's output can't be read; that is no grade of 0.
        """
        if prediction.abstained or not prediction.answer.strip():
            return Grades(None, None)
        question = getattr(prediction, "question", None) or case.question
        relevancy = _RELEVANCY[self.relevancy(question=question, answer=prediction.answer).relevancy]
        faithfulness, unsupported = self._grade_claims(question, prediction)
        return Grades(faithfulness, relevancy, unsupported)

    def _grade_claims(self, question: str, prediction: PredictionLike) -> tuple[float | None, tuple[str, ...]]:
        passages = _cited_passages(prediction)
        if not prediction.context:
            return None, ()
        if not passages:
            return 0.0, (prediction.answer,)
        claims: list[Any] = self.faithfulness(question=question, passages=passages, answer=prediction.answer).claims
        if not claims:
            return None, ()
        unsupported = tuple(claim.statement for claim in claims if not claim.supported)
        return 1 - len(unsupported) / len(claims), unsupported


def grade_with(lm: dspy.BaseLM) -> Callable[[Case, PredictionLike], dict[str, float | None]]:
    """Make the function that grades with this LM, for scores beside those of the rules.

    Returns:
        `graded_faithfulness` and `graded_relevancy` of a case and its prediction.
    """
    grader = Grader()

    def grade(case: Case, prediction: PredictionLike) -> dict[str, float | None]:
        with dspy.context(lm=lm):
            grades = grader(case, prediction)
        return {"graded_faithfulness": grades.faithfulness, "graded_relevancy": grades.relevancy}

    return grade


def _cited_passages(prediction: PredictionLike) -> str:
    cited = set(prediction.citations)
    shown = [hit.passage for hit in prediction.context if hit.passage.passage_id in cited]
    return "\n\n".join(f"[{p.passage_id}] {p.title}\n{p.text[:_PASSAGE_CHARS]}" for p in shown)
