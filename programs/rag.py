"""The programs: NaiveRAG, HybridRAG and AgenticRAG, each question → cited answer or abstention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from programs import rules
from programs.prompting import SMALL_TALK, format_conversation, format_passages, say_not_found
from programs.record import StopReason, make_prediction
from programs.run import Bounds, Run
from retrievers.records import Hit, Retriever
from signatures import (
    TOOLS,
    AnswerFromPassages,
    CondenseQuestion,
    JudgeEvidence,
    PlanSearches,
    RewriteQuery,
    SearchStep,
    Verdict,
)

Turn = Mapping[str, str]


class NaiveRAG(dspy.Module):
    """Dense top-k → answer. The first rung of the ladder."""

    tool = "dense"

    def __init__(self, retrievers: Mapping[str, Retriever], bounds: Bounds | None = None) -> None:
        """Build the program.

        Args:
            retrievers: One for each tool: `hybrid`, `keyword`, `dense`.
            bounds: What one run may spend.
        """
        super().__init__()
        self.retrievers = dict(retrievers)
        self.bounds = bounds or Bounds()
        self.answer = dspy.Predict(AnswerFromPassages)

    def forward(self, question: str, history: Sequence[Turn] = ()) -> dspy.Prediction:
        """Answer `question` from one search; `history` is not looked at."""
        run = Run(question, self.retrievers, self.bounds)
        with dspy.context(run_meter=run.meter):
            run.search(self.tool, question, decided_by="rule")
            return self._finish(run, "sufficient" if run.hops[-1].hits else "no_new_evidence")

    def _finish(self, run: Run, stop_reason: StopReason, verdict: Verdict | None = None) -> dspy.Prediction:
        """Answer from the context of the run; without passages, or without a readable answer, abstain."""
        context = run.context()
        if not context:
            return _abstain(run, stop_reason, verdict)
        output, error = _predict(self.answer, question=run.question, passages=format_passages(context, run.bounds))
        if output is None:
            return _abstain(run, "error", verdict, error)
        answer = str(output.answer).strip()
        citations = _citations(output.citations, answer, context)
        return _result(run, stop_reason, verdict, answer=answer, citations=citations, context=context)


class HybridRAG(NaiveRAG):
    """Chroma and BM25 fused → answer. The second rung."""

    tool = "hybrid"


class AgenticRAG(NaiveRAG):
    """Plan, search, judge, rewrite and search again, answer.

    The names of the predictors (`condense`, `plan`, `judge`, `rewrite`, `answer`) are the schema of a saved program.
    """

    tool = "hybrid"

    def __init__(self, retrievers: Mapping[str, Retriever], bounds: Bounds | None = None) -> None:
        """Build the program; see `NaiveRAG`."""
        super().__init__(retrievers, bounds)
        self.condense = dspy.Predict(CondenseQuestion)
        self.plan = dspy.Predict(PlanSearches)
        self.judge = dspy.Predict(JudgeEvidence)
        self.rewrite = dspy.Predict(RewriteQuery)

    def forward(self, question: str, history: Sequence[Turn] = ()) -> dspy.Prediction:
        """Answer `question`, or abstain and say what was searched."""
        run = Run(question, self.retrievers, self.bounds)
        with dspy.context(run_meter=run.meter):
            if rules.is_small_talk(question):
                return _small_talk(run)
            run.question = self._standalone(question, history)
            for step, decided_by in self._steps(run):
                run.search(step.tool, step.query, decided_by=decided_by)
            verdict = self._verdict(run)
            while verdict == "insufficient":
                stop = self._search_again(run)
                if stop:
                    return self._give_up(run, stop)
                verdict = self._verdict(run)
            return self._finish(run, "sufficient", verdict)

    def _standalone(self, question: str, history: Sequence[Turn]) -> str:
        if not history:
            return question
        output, _ = _decide(self.condense, conversation=format_conversation(history), question=question)
        return str(output.standalone).strip() or question if output else question

    def _steps(self, run: Run) -> list[tuple[SearchStep, Any]]:
        """Plan by rule where one search is plainly enough, else by the LM; an unusable plan is the question itself."""
        by_rule = SearchStep(tool="keyword" if rules.find_ids(run.question) else "hybrid", query=run.question)
        if rules.is_plain(run.question):
            return [(by_rule, "rule")]
        output, _ = _decide(self.plan, question=run.question)
        steps = [step for step in (output.steps if output else [])[:3] if step.query.strip() and step.tool in TOOLS]
        return [(step, "lm") for step in steps] or [(by_rule, "rule")]

    def _verdict(self, run: Run) -> Verdict:
        """Judge the evidence: by rule where nothing fits, else by the LM."""
        context = run.context()
        lacking = _lacking_ids(run.question, context)
        if not context or lacking:
            run.note_verdict("insufficient", f"a passage about {', '.join(lacking) or run.question}", "rule")
            return "insufficient"
        passages = format_passages(context, run.bounds)
        output, _ = _decide(self.judge, question=run.question, passages=passages)
        verdict: Verdict = output.verdict if output else "sufficient"
        run.note_verdict(verdict, str(output.missing).strip() if output else "", "lm" if output else "rule")
        return verdict

    def _search_again(self, run: Run) -> StopReason | None:
        """Rewrite and search once more; return why not, if the loop has to end."""
        if stop := run.exhausted():
            return stop
        if len(run.hops) >= run.bounds.max_rounds:
            return "max_rounds"
        output, _ = _decide(
            self.rewrite,
            question=run.question,
            known=format_passages(run.context()[:2], run.bounds, chars=300),
            missing=run.hops[-1].missing,
            tried=run.queries,
        )
        query, tool = (str(output.query).strip(), output.tool) if output else ("", "hybrid")
        if not query or tool not in TOOLS or run.is_repeated(tool, query):
            return "repeated_query"
        found = run.search(tool, query, goal=run.hops[-1].missing, decided_by="lm")
        return None if found else "no_new_evidence"

    def _give_up(self, run: Run, stop: StopReason) -> dspy.Prediction:
        return _abstain(run, stop, "insufficient")


def _predict(predictor: Callable[..., Any], **inputs: Any) -> tuple[Any, str | None]:
    """Call a predictor; an output that can't be parsed is None and the reason, and is counted by the adapter."""
    try:
        return predictor(**inputs), None
    except AdapterParseError as error:
        return None, f"unreadable LM output: {str(error).splitlines()[0]}"


def _decide(predictor: Callable[..., Any], **inputs: Any) -> tuple[Any, str | None]:
    """Call a predictor with the LM for decisions, where one is bound."""
    with dspy.context(lm=dspy.settings.get("decision_lm") or dspy.settings.lm):
        return _predict(predictor, **inputs)


def _lacking_ids(question: str, context: tuple[Hit, ...]) -> list[str]:
    texts = " ".join(f"{hit.passage.title} {hit.passage.text}" for hit in context)
    return [one for one in rules.find_ids(question) if not rules.holds_id(one, texts)]


def _citations(numbers: Sequence[int], answer: str, context: tuple[Hit, ...]) -> tuple[str, ...]:
    """Turn passage numbers into passage ids; where none is valid, cite the passages that hold the answer's words."""
    valid = [context[number - 1] for number in dict.fromkeys(numbers) if 1 <= number <= len(context)]
    if not valid:
        valid = [hit for hit in context if rules.fold(answer) and rules.fold(answer) in rules.fold(hit.passage.text)]
    return tuple(hit.passage.passage_id for hit in valid)


def _small_talk(run: Run) -> dspy.Prediction:
    text = SMALL_TALK["zh" if rules.is_chinese(run.question) else "en"]
    return _result(run, "no_search_needed", None, answer=text)


def _abstain(run: Run, stop_reason: StopReason, verdict: Verdict | None, error: str | None = None) -> dspy.Prediction:
    text = say_not_found(run.question, run.queries)
    return _result(run, stop_reason, verdict, answer=text, abstained=True, context=run.context(), error=error)


def _result(
    run: Run,
    stop_reason: StopReason,
    verdict: Verdict | None,
    *,
    answer: str,
    citations: tuple[str, ...] = (),
    context: tuple[Hit, ...] = (),
    abstained: bool = False,
    error: str | None = None,
) -> dspy.Prediction:
    return make_prediction(
        question=run.question,
        answer=answer,
        citations=citations,
        abstained=abstained,
        verdict=verdict,
        stop_reason=stop_reason,
        hops=tuple(run.hops),
        context=context,
        usage=run.meter.taken(round(run.seconds, 3)),
        error=error,
    )
