"""The programs: NaiveRAG, HybridRAG and AgenticRAG, each question → cited answer or abstention."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import AdapterParseError

from programs import rules
from programs.bridging import lead_on, pick_linked
from programs.claims import check_claims, lacking_acronyms
from programs.conflicts import disagree, find_points, prefer_current, settle
from programs.conversation import follow_on, format_conversation, keeps_to
from programs.decisions import UndecidedError, decide, make_decider, threshold_of
from programs.ending import Draft, abstain, end, end_small_talk, finish
from programs.planning import Step, find_choices, plan_by_rule, read_plan, split_waves, stands_alone
from programs.prompting import (
    IN_CHINESE,
    NAME_BOTH,
    ask_back,
    format_passages,
    name_sources,
)
from programs.quotes import cited, find_quotes, holding, quotes_of, text_of
from programs.record import Check, StopReason
from programs.relevance import complement
from programs.run import Bounds, Evidence, Run
from programs.sql import has_rows
from programs.tools import NO_TOOLS, SQL, Attempt, Toolbox, ask_api, ask_tables
from retrievers.records import Hit, Retriever
from signatures import (
    AnswerFromPassages,
    CallTool,
    CheckAnswer,
    CondenseQuestion,
    JudgeEvidence,
    PlanSearches,
    RewriteQuery,
    Verdict,
    WriteQuery,
)

Turn = Mapping[str, str]
_FILLED_CHARS = 80
# Train questions of the sample set, 43 with their gold passages and 16 unanswerable ones with what an answer to them
# cites: P(yes) of the 1.5B has an AUC of .91. At .35 it lets 41 of 43 pass and stops 12 of 16; at .15 42 and 3.
CHECK_THRESHOLD = 0.35


class NaiveRAG(dspy.Module):
    """Dense top-k → answer. The first rung of the ladder."""

    tool = "dense"

    def __init__(
        self, retrievers: Mapping[str, Retriever], bounds: Bounds | None = None, toolbox: Toolbox = NO_TOOLS
    ) -> None:
        """Build the program.

        Args:
            retrievers: One for each tool: `hybrid`, `keyword`, `dense`.
            bounds: What one run may spend.
            toolbox: Databases and HTTP tools, and what the index can filter by; only `AgenticRAG` uses them.
        """
        super().__init__()
        self.retrievers = dict(retrievers)
        self.bounds = bounds or Bounds()
        self.toolbox = toolbox
        self.answer = dspy.Predict(AnswerFromPassages)

    def forward(self, question: str, history: Sequence[Turn] = (), today: date | str | None = None) -> dspy.Prediction:
        """Answer `question` from one search; `history` and `today` are not looked at."""
        run = Run(question, self.retrievers, self.bounds)
        with dspy.context(run_meter=run.meter):
            run.search(self.tool, question, decided_by="rule")
            return self._answer(run, run.context(), "sufficient" if run.hops[-1].hits else "no_new_evidence")

    def _answer(self, run: Run, context: tuple[Hit, ...], stop_reason: StopReason) -> dspy.Prediction:
        """Answer from `context`; without passages, or without a readable answer, abstain."""
        if not context:
            return abstain(run, stop_reason, None)
        return finish(run, self._draft(run, Evidence("sufficient", context)), stop_reason, None)

    def _draft(self, run: Run, evidence: Evidence) -> Draft:
        """Write an answer from the evidence, in the language of the question.

        Of sources that disagree the one that holds is shown first; if that stays open, the answer names them all.
        """
        context, is_open = evidence.passages, False
        if evidence.verdict == "conflict":
            context, is_open = settle(context, evidence.quotes)
        hint = NAME_BOTH if is_open else ""
        passages = format_passages(context, run.question, run.bounds)
        output, error = _predict(self.answer, passages=passages, question=run.question + hint)
        if output and rules.is_in_other_language(run.question, str(output.answer)) and run.affords(1):
            again, _ = _predict(self.answer, passages=passages, question=run.question + hint + IN_CHINESE)
            output = again if again and rules.is_chinese(str(again.answer)) else output
        answer = str(output.answer).strip() if output else ""
        sources = cited(output.citations, answer, context) if answer else ()
        if answer and is_open:
            answer, sources = f"{answer}\n{_name_sources(run.question, evidence)}", context
        return Draft(answer, sources, context, None if answer else error or "the LM gave an empty answer")


class HybridRAG(NaiveRAG):
    """Chroma and BM25 fused → answer. The second rung."""

    tool = "hybrid"


class AgenticRAG(NaiveRAG):
    """Plan, search, judge, rewrite and search again, answer, check.

    The names of the predictors (`condense`, `plan`, `judge`, `rewrite`, `answer`, `check`) are the schema of a saved
    program.
    `write_query` and `call_tool` are there only where the toolbox has databases or HTTP tools.
    """

    tool = "hybrid"

    def __init__(
        self, retrievers: Mapping[str, Retriever], bounds: Bounds | None = None, toolbox: Toolbox = NO_TOOLS
    ) -> None:
        """Build the program; see `NaiveRAG`."""
        super().__init__(retrievers, bounds, toolbox)
        self.condense = dspy.Predict(CondenseQuestion)
        self.plan = dspy.Predict(PlanSearches)
        self.judge = dspy.Predict(JudgeEvidence)
        self.rewrite = dspy.Predict(RewriteQuery)
        self.check = make_decider(CheckAnswer, CHECK_THRESHOLD)
        if toolbox.tables:
            self.write_query = dspy.Predict(WriteQuery)
        if toolbox.apis:
            self.call_tool = dspy.Predict(CallTool)

    def forward(self, question: str, history: Sequence[Turn] = (), today: date | str | None = None) -> dspy.Prediction:
        """Answer `question`, ask back, or abstain and say what was searched; `last month` is counted from `today`."""
        run = Run(question, self.retrievers, self.bounds, is_selective=True)
        with dspy.context(run_meter=run.meter):
            if rules.is_small_talk(question):
                return end_small_talk(run)
            run.question = self._standalone(run, history)
            if not history and (choices := find_choices(question, self.toolbox.fields)):
                return end(run, "needs_clarification", None, answer=ask_back(question, choices))
            self._search(run, self._plan(run, _read_day(today)))
            return self._conclude(run)

    def _standalone(self, run: Run, history: Sequence[Turn]) -> str:
        """Make a follow-up stand alone; one that does already is left alone, and what the LM makes up is not taken."""
        if not history or stands_alone(run.question) or not run.affords_preparation():
            return run.question
        conversation = format_conversation(history, self.toolbox.fields)
        output, _ = _decide(self.condense, conversation=conversation, question=run.question)
        standalone = str(output.standalone).strip() if output else ""
        return standalone if keeps_to(standalone, run.question, history) else follow_on(run.question, history)

    def _plan(self, run: Run, today: date) -> list[Step]:
        """Plan by rule where one search or one tool is plainly enough, else by the LM."""
        by_rule = plan_by_rule(run.question, self.toolbox, today)
        if by_rule:
            return by_rule
        output, _ = _decide(self.plan, question=run.question) if run.affords_preparation() else (None, None)
        return read_plan(output.steps if output else [], run.question, self.toolbox.fields, today)

    def _search(self, run: Run, steps: Sequence[Step]) -> None:
        """Take the steps of a plan, those that need a result when it is known; if nothing is found, search plainly."""
        own_tools = frozenset({SQL, *self.toolbox.apis})
        found: dict[int, str] = {}
        for wave in split_waves(steps):
            for number in {number for place in wave for number in steps[place].needs} - set(found):
                found[number] = self._read_result(run, steps, number)
            ready = [steps[place].fill(found) if steps[place].needs else steps[place] for place in wave]
            run.search_all([step for step in ready if step.query], partial(self._use_tool, run), own_tools)
        if not any(hop.hits for hop in run.hops) and not run.is_repeated("hybrid", run.question):
            run.search("hybrid", run.question, decided_by="rule")

    def _read_result(self, run: Run, steps: Sequence[Step], number: int) -> str:
        """Read the short answer to an earlier step from what it found, so that a later step can ask on from it."""
        if not 1 <= number <= len(steps):
            return ""
        hop = next((hop for hop in run.hops if steps[number - 1].query in (hop.goal, hop.query) and hop.hits), None)
        if hop is None:
            return ""
        hits = hop.hits[: run.bounds.n_passages]
        if not run.affords_preparation():
            return hits[0].passage.title
        passages = format_passages(hits, hop.query, run.bounds)
        output, _ = _decide(self.answer, passages=passages, question=hop.query)
        return str(output.answer).strip()[:_FILLED_CHARS] if output else hits[0].passage.title

    def _use_tool(self, run: Run, step: Step) -> list[Attempt]:
        """Ask a tool beyond search; one that is not there, or has nothing to be asked, is an attempt that failed."""
        tables = self.toolbox.choose_tables(step.query) if step.tool == SQL else None
        if tables:
            write = partial(_decide, self.write_query)
            return ask_tables(*tables, step.query, write, run.affords_preparation)
        if apis := [tool for tool in self.toolbox.choose_apis(step.query) if step.tool in self.toolbox.apis]:
            return ask_api(apis, step.query, partial(_decide, self.call_tool), run.affords_preparation)
        return [Attempt(step.tool, step.query, error="no table or tool here is about this")]

    def _judge(self, run: Run) -> Evidence:
        """Judge what was found: by rule where it can't be enough, else by the LM, held to the words it quotes."""
        context = _current(run)
        texts = text_of(context)
        if lacking := rules.lacking_ids(run.question, texts) or lacking_acronyms(run.question, texts):
            return run.note(
                Evidence("insufficient", context, f"a passage about {', '.join(lacking)}", by="rule"), context
            )
        if not context:
            return run.note(Evidence("insufficient", context, run.question, by="rule"), context)
        output, _ = _decide(
            self.judge, passages=format_passages(context, run.question, run.bounds), question=run.question
        )
        if output is None:  # an unreadable judgement is no reason to withhold an answer
            return run.note(Evidence("sufficient", context, by="rule"), context)
        quotes = find_quotes(output.quotes, context)
        enough = quotes and (not rules.asks_for_number(run.question) or any(map(rules.has_number, quotes)))
        if output.verdict != "insufficient" and not enough:  # words that stand in no passage are no evidence
            claimed = Evidence("insufficient", context, run.question, "rule", quotes, is_claimed=not quotes)
            return run.note(claimed, context)
        passages = holding(quotes, context) or context
        verdict: Verdict = (
            "sufficient" if output.verdict == "conflict" and not disagree(quotes, passages) else output.verdict
        )
        if verdict == "sufficient":
            passages = complement(passages, context, run.question)
        return run.note(Evidence(verdict, passages, str(output.missing).strip(), "lm", quotes), context)

    def _conclude(self, run: Run) -> dspy.Prediction:
        """Search until the evidence will do, then answer; an answer that fails its check is worth one more search."""
        evidence, check = self._judge(run), None
        for is_last in (False, True):
            while evidence.verdict == "insufficient":
                stop, before = self._search_again(run, evidence), evidence
                evidence = before if stop else self._judge(run)
                may_decide = threshold_of(self.check, "supported") > 0 and run.affords(2)
                if before.is_claimed and evidence.is_claimed and may_decide:
                    return self._answer_unquoted(run, evidence, stop or "no_new_evidence")
                if stop:
                    return abstain(run, stop, "insufficient", check=check, known=evidence.quotes)
            evidence = self._bridge(run, self._seek_third(run, evidence))
            draft = self._draft(run, evidence)
            check, citations = self._check(run, draft)
            if draft.error or check.outcome != "fails":
                break
            if is_last:
                return abstain(run, "no_new_evidence", "insufficient", check=check, known=evidence.quotes)
            evidence = Evidence("insufficient", evidence.passages, check.reason, "rule", evidence.quotes)
        return finish(run, draft, "sufficient", evidence.verdict, citations, check)

    def _answer_unquoted(self, run: Run, evidence: Evidence, stop: StopReason) -> dspy.Prediction:
        """Answer where the judge claims an answer, quotes none, and no search changes that, if the decider agrees."""
        draft = self._draft(run, replace(evidence, verdict="sufficient"))
        check, citations = self._check(run, draft, is_doubtful=True)
        if not draft.error and check.outcome != "holds":
            return abstain(run, stop, "insufficient", check=check)
        return finish(run, draft, "sufficient", "sufficient", citations, check)

    def _seek_third(self, run: Run, evidence: Evidence) -> Evidence:
        """Search once for a third source where sources disagree and none holds over the others, and judge again.

        What was quoted before stays: a judge that overlooks one side the second time does not settle it.
        """
        if evidence.verdict != "conflict" or not settle(evidence.passages, evidence.quotes)[1] or run.exhausted():
            return evidence
        points = find_points(evidence.quotes, evidence.passages)
        query, goal = f"{run.question} {' '.join(points)}", f"a third source: {' or '.join(points)}"
        if run.is_repeated("hybrid", query) or not run.search("hybrid", query, goal=goal, decided_by="rule"):
            return evidence
        quotes = tuple(dict.fromkeys((*evidence.quotes, *self._judge(run).quotes)))
        known = {hit.passage.passage_id: hit for hit in (*evidence.passages, *_current(run))}
        held = holding(quotes, tuple(known.values()))[: run.bounds.n_passages]
        passages = prefer_current(held, held, run.question)
        verdict: Verdict = "conflict" if disagree(quotes, passages) else "sufficient"
        return run.note(Evidence(verdict, passages, by=run.hops[-1].judged_by or "rule", quotes=quotes), _current(run))

    def _bridge(self, run: Run, evidence: Evidence) -> Evidence:
        """Search once more, by rule, where what was quoted leaves a part of the question open; nothing is judged again.

        A small LM takes the first half of a question that needs two passages for the whole of it.
        """
        is_half = evidence.verdict == "sufficient" and not has_rows(evidence.passages)
        query = lead_on(run.question, evidence.quotes, evidence.passages) if is_half else ""
        if not query or run.exhausted() or run.is_repeated("hybrid", query):
            return evidence
        run.search("hybrid", query, goal="what the words quoted leave open", decided_by="rule")
        linked = pick_linked(run.hops[-1].hits, run.question, evidence.quotes)
        known = {hit.passage.passage_id: hit for hit in (*evidence.passages, *linked)}
        found = tuple(hit for hop in run.hops for hit in hop.hits)
        passages = prefer_current(tuple(known.values()), found, run.question)
        return replace(evidence, passages=passages[: run.bounds.n_passages])

    def _check(self, run: Run, draft: Draft, *, is_doubtful: bool = False) -> tuple[Check, tuple[Hit, ...]]:
        """Check an answer: by rule what a rule can tell, by the LM what is doubtful, if its threshold is above 0.

        Args:
            run: Where its question and bounds are.
            draft: The answer; one that is none is not worth a call.
            is_doubtful: Whether it stays doubtful where the rules would let it pass.

        Returns:
            What was made of it, and the passages that hold what it claims.
        """
        finding = check_claims(run.question, draft.answer, draft.cited, draft.context)
        check = Check(finding.outcome, finding.reason, "rule")
        if is_doubtful and finding.outcome != "fails":
            check = Check("doubtful", "the judge quoted no words of a passage", "rule")
        is_asked = threshold_of(self.check, "supported") > 0 and not draft.error and run.affords(1)
        if check.outcome == "doubtful" and is_asked:
            passages = format_passages(finding.citations or draft.context, run.question, run.bounds)
            check = _ask_check(self.check, check, passages=passages, question=run.question)
        return check, finding.citations

    def _search_again(self, run: Run, evidence: Evidence) -> StopReason | None:
        """Search once more, by rule where words quoted lead on, else rewritten; return why not, if the loop ends."""
        if stop := run.exhausted():
            return stop
        tool, query = _go_on_by_rule(run.question, evidence)
        if query and not run.is_repeated(tool, query):
            if run.search(tool, query, goal=evidence.missing, decided_by="rule"):
                return None
            if stop := run.exhausted():
                return stop
        output, _ = _decide(
            self.rewrite,
            question=run.question,
            known=list(evidence.quotes) or [hit.passage.title for hit in evidence.passages],
            missing=evidence.missing,
            tried=run.queries,
        )
        query, tool = (str(output.query).strip(), str(output.tool)) if output else ("", "hybrid")
        decided_by: Literal["rule", "lm"] = "lm"
        if query and tool not in self.retrievers:  # put on record, and the query is asked all the same
            run.search(tool, query, goal=evidence.missing, decided_by="lm")
            tool, decided_by = "hybrid", "rule"
        if not query or run.is_repeated(tool, query):
            return "repeated_query"
        return None if run.search(tool, query, goal=evidence.missing, decided_by=decided_by) else "no_new_evidence"


def _go_on_by_rule(question: str, evidence: Evidence) -> tuple[str, str]:
    """Return the tool and the query of the next search where no LM named a gap that it could be rewritten from.

    Words that were quoted lead on; where none were, the question is asked of the side that takes words as they are.
    """
    if evidence.by != "rule":
        return "", ""
    if query := lead_on(question, evidence.quotes, holding(evidence.quotes, evidence.passages)):
        return "hybrid", query
    return ("keyword", question) if evidence.missing == question else ("", "")


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


def _ask_check(decider: dspy.Predict, check: Check, **inputs: Any) -> Check:
    """Let the LM decide a doubtful check; no decision is no reason to withhold an answer."""
    try:
        supported = decide(decider, **inputs).supported
    except (UndecidedError, AdapterParseError):
        return check
    return replace(check, outcome="holds" if supported else "fails", by="lm", probability=supported.probability)


def _read_day(today: date | str | None) -> date:
    if today is None:
        return date.today()
    return date.fromisoformat(today) if isinstance(today, str) else today


def _current(run: Run) -> tuple[Hit, ...]:
    """Return what was found, without issues that another one found has superseded."""
    context = run.context()
    return prefer_current(context, context, run.question)


def _name_sources(question: str, evidence: Evidence) -> str:
    said = [(hit.passage.title, words[0]) for hit in evidence.passages if (words := quotes_of(hit, evidence.quotes))]
    return name_sources(question, said)
