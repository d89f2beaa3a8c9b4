"""MLflow traces made from records: a span a hop, tool and predictor; the scores of an evaluated case attached."""

import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from mlflow.entities import (
    AssessmentSource,
    AssessmentSourceType,
    Expectation,
    Feedback,
    Span,
    SpanType,
    TraceInfo,
    TraceLocation,
    TraceState,
)
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import (
    AssessmentMetadataKey,
    SpanAttributeKey,
    TokenUsageKey,
    TraceMetadataKey,
    TraceTagKey,
)

from programs.tracking.journal import PendingError
from programs.tracking.stores import find_experiment, one_error

_BATCH = 25  # traces whose spans are sent at once; no more of them are in memory
_PREVIEW_CHARS = 1000
_CODE = AssessmentSource(AssessmentSourceType.CODE, "trainsets.metrics")
_PEOPLE = AssessmentSource(AssessmentSourceType.HUMAN, "gold cases")
_NS = 1_000_000_000
_CUT_ELSEWHERE = ("_at_1", "_at_3", "_at_10")  # the run and its records have them; a list of cases shows three scores
_SHARED = "an even share of the time that was not spent searching"


def log_traces(tracking_uri: str, experiment_id: str, run_id: str, records: Path, tags: Mapping[str, str]) -> int:
    """Log every record of a JSONL file of an evaluation as a trace of a run; returns how many there were.

    A trace has the id that its run, its case and `tags` give it, so one that is logged again is the same trace.

    Args:
        tracking_uri: The store.
        experiment_id: Where the traces go.
        run_id: The run that they belong to.
        records: One record a line, as an evaluation writes them.
        tags: Further tags of every trace: program, version.

    Raises:
        PendingError: A line is no record of an evaluation.
    """
    client, n_logged = TracingClient(tracking_uri), 0
    end_ns = records.stat().st_mtime_ns
    clock = end_ns - sum(_duration_ns(record) for record in _read(records))
    lines = _read(records)
    while batch := list(islice(lines, _BATCH)):
        spans: list[Span] = []
        for number, record in enumerate(batch, start=n_logged + 1):
            try:
                info = _describe_trace(record, experiment_id, run_id, clock, tags)
                spans += _Timeline(info.trace_id, clock).spans_of(record)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise _no_record(records, number, error) from None
            client.start_trace(info)
            clock += _duration_ns(record)
        client.log_spans(experiment_id, spans)
        n_logged += len(batch)
    return n_logged


def open_served(tracking_uri: str, program: str) -> str:
    """Open the experiment of the answers that programs of this name give, made if it is new; returns its id.

    Raises:
        TrackingError: The store can't be used.
    """
    with one_error(tracking_uri):
        return find_experiment(tracking_uri, f"{program}-served")


def log_answer(tracking_uri: str, experiment_id: str, prediction: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    """Log an answer that was given just now as a trace of its own; returns the id of the trace.

    Args:
        tracking_uri: The store.
        experiment_id: Where the trace goes, see `open_served`.
        prediction: A run as plain data, see `programs.record.to_json`.
        tags: Further tags: program, LM.

    Raises:
        TrackingError: The store did not take it.
    """
    record = {name: prediction.get(name) for name in ("question", "error")}
    record |= {"prediction": prediction, "seconds": prediction["usage"]["seconds"]}
    trace_id, start_ns = f"tr-{uuid.uuid4().hex}", time.time_ns() - _duration_ns(record)
    abstained = str(prediction["abstained"]).lower()
    told = {TraceTagKey.TRACE_NAME: "answer", "stop_reason": _stop_reason(record), "abstained": abstained, **tags}
    with one_error(tracking_uri):
        client = TracingClient(tracking_uri)
        client.start_trace(_trace_info(record, trace_id, experiment_id, start_ns, told))
        client.log_spans(experiment_id, _Timeline(trace_id, start_ns).spans_of(record))
    return trace_id


def _read(records: Path) -> Iterator[dict[str, Any]]:
    with records.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                _duration_ns(record)
            except (AttributeError, TypeError, ValueError) as error:
                raise _no_record(records, number, error) from None
            yield record


def _no_record(records: Path, number: int, error: Exception) -> PendingError:
    return PendingError(f"{records}:{number}: no record of an evaluation ({type(error).__name__}: {error})")


def _duration_ns(record: Mapping[str, Any]) -> int:
    return max(1, round((record.get("seconds") or 0.0) * _NS))


def _describe_trace(
    record: Mapping[str, Any], experiment_id: str, run_id: str, start_ns: int, tags: Mapping[str, str]
) -> TraceInfo:
    trace_id = "tr-" + _digest(run_id, *tags.values(), record["id"])
    told = {
        TraceTagKey.TRACE_NAME: record["id"],
        "case_id": record["id"],
        "outcome": record["outcome"],
        "stop_reason": _stop_reason(record),
        "kind": record.get("kind") or "",
        "lang": record.get("lang") or "",
        **tags,
    }
    info = _trace_info(record, trace_id, experiment_id, start_ns, told)
    info.client_request_id = record["id"]
    info.trace_metadata[TraceMetadataKey.SOURCE_RUN] = run_id
    info.assessments = _assess(record, run_id, trace_id)
    return info


def _stop_reason(record: Mapping[str, Any]) -> str:
    return (record["prediction"] or {}).get("stop_reason") or "error"


def _trace_info(
    record: Mapping[str, Any], trace_id: str, experiment_id: str, start_ns: int, tags: Mapping[str, str]
) -> TraceInfo:
    prediction = record["prediction"] or {}
    return TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=start_ns // 1_000_000,
        execution_duration=_duration_ns(record) // 1_000_000,
        state=TraceState.ERROR if record["error"] else TraceState.OK,
        request_preview=record["question"][:_PREVIEW_CHARS],
        response_preview=(record["error"] or prediction.get("answer") or "")[:_PREVIEW_CHARS],
        trace_metadata={TraceMetadataKey.TOKEN_USAGE: json.dumps(_tokens(prediction.get("usage") or {}))},
        tags=dict(tags),
    )


def _assess(record: Mapping[str, Any], run_id: str, trace_id: str) -> list[Any]:
    """Return the outcome and every score that was measured, and what the gold case expects."""
    metadata = {AssessmentMetadataKey.SOURCE_RUN_ID: run_id}
    common: dict[str, Any] = {"trace_id": trace_id, "metadata": metadata}
    found: list[Any] = [Feedback("outcome", record["outcome"], source=_CODE, rationale=record.get("detail"), **common)]
    for name, value in record["scores"].items():
        if value is not None and not name.endswith(_CUT_ELSEWHERE):
            found.append(Feedback(name, value, source=_CODE, **common))
    if record.get("gold"):
        found.append(Expectation("accepted_answers", record["gold"], source=_PEOPLE, **common))
    return found


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a run; `seconds` is None where only the sum of such steps is known."""

    name: str
    kind: str
    inputs: Any
    outputs: Any
    seconds: float | None = 0.0
    hop: int = 0
    error: str | None = None


class _Timeline:
    """Lays the steps of one record end to end, those of a hop under a span of their own."""

    def __init__(self, trace_id: str, start_ns: int) -> None:
        self._trace_id = trace_id
        self._start = self._clock = start_ns

    def spans_of(self, record: Mapping[str, Any]) -> list[Span]:
        """Return a span for the question, one for every hop, and one for every step, in the order of time."""
        prediction = record["prediction"] or {}
        steps = list(_steps(prediction))
        total = _duration_ns(record)
        searching = sum(round(step.seconds * _NS) for step in steps if step.seconds is not None)
        share = max(0, total - searching) // max(1, sum(step.seconds is None for step in steps))
        spans: list[Span] = []
        for hop, group in groupby(steps, key=lambda step: step.hop):
            spans += self._group(hop, list(group), share)
        root = _Step(
            "question", SpanType.AGENT, {"question": record["question"]}, _outcome(record), error=record["error"]
        )
        usage = {SpanAttributeKey.CHAT_USAGE: _tokens(prediction.get("usage") or {})}
        return [self._span("root", None, root, self._start, max(self._start + total, self._clock), usage), *spans]

    def _group(self, hop: int, steps: Sequence[_Step], share: int) -> list[Span]:
        key, start, spans = f"hop {hop}", self._clock, []
        for number, step in enumerate(steps):
            began = self._clock
            self._clock += share if step.seconds is None else round(step.seconds * _NS)
            timing = {"timing": _SHARED} if step.seconds is None else {}
            spans.append(
                self._span(f"{key}.{number}.{step.name}", key if hop else "root", step, began, self._clock, timing)
            )
        if not hop:
            return spans
        search = next(step for step in steps if step.kind == SpanType.RETRIEVER)
        return [self._span(key, "root", _Step(key, SpanType.CHAIN, search.inputs, None), start, self._clock), *spans]

    def _span(
        self, key: str, parent: str | None, step: _Step, start: int, end: int, more: Mapping[str, Any] | None = None
    ) -> Span:
        attributes = {
            SpanAttributeKey.REQUEST_ID: self._trace_id,
            SpanAttributeKey.SPAN_TYPE: step.kind,
            SpanAttributeKey.INPUTS: step.inputs,
            SpanAttributeKey.OUTPUTS: step.outputs,
            **(more or {}),
        }
        plain: dict[str, Any] = {
            "name": step.name,
            "context": {"trace_id": f"0x{self._trace_id.removeprefix('tr-')}", "span_id": self._id(key)},
            "parent_id": self._id(parent) if parent else None,
            "start_time": start,
            "end_time": end,
            "status_code": "ERROR" if step.error else "OK",
            "status_message": step.error or "",
            "attributes": {name: json.dumps(value, ensure_ascii=False) for name, value in attributes.items()},
            "events": [],
        }
        return Span.from_dict(plain)

    def _id(self, key: str) -> str:
        return f"0x{_digest(self._trace_id, key)[:16]}"


def _steps(prediction: Mapping[str, Any]) -> Iterator[_Step]:
    """Return the steps that a record tells of: plan, then what every hop did, then the answer."""
    hops: list[dict[str, Any]] = prediction.get("hops") or []
    shown = {hit["passage_id"]: hit for hit in prediction.get("context") or []}
    n_planned = next((number for number, hop in enumerate(hops, 1) if hop["verdict"]), len(hops))
    planned = [{"tool": hop["tool"], "query": hop["query"]} for hop in hops[:n_planned]]
    question = {"question": prediction.get("question")}
    overruled = _rules_had_an_lm(prediction)
    if hops and hops[0]["decided_by"] == "lm":
        yield _Step("plan", SpanType.LLM, question, planned, None)
    for number, hop in enumerate(hops, 1):
        if number > n_planned and hop["decided_by"] == "lm":
            asked = {"tool": hop["tool"], "query": hop["query"]}
            yield _Step("rewrite", SpanType.LLM, {"missing": hop["goal"]}, asked, None, number)
        yield _search(hop, shown, number)
        if hop["verdict"]:
            said = {name: hop[name] for name in ("verdict", "judged_by", "missing", "quotes") if hop[name]}
            is_lm = hop["judged_by"] == "lm" or (overruled and bool(hop["judged"]))
            kind, seconds = (SpanType.LLM, None) if is_lm else (SpanType.EVALUATOR, 0.0)
            left_out = {"left_out": hop["left_out"]} if hop.get("left_out") else {}
            yield _Step("judge", kind, {"passages": hop["judged"]} | left_out, said, seconds, number)
    check = prediction.get("check")
    if shown and (check or not prediction["abstained"]):
        given = None if prediction["abstained"] else {name: prediction[name] for name in ("answer", "citations")}
        yield _Step("answer", SpanType.LLM, question | {"passages": list(shown)}, given, None)
    if check:
        kind, seconds = (SpanType.LLM, None) if check["by"] == "lm" else (SpanType.EVALUATOR, 0.0)
        told = {name: value for name, value in check.items() if value not in (None, "")}
        yield _Step("check", kind, {"answer": prediction["answer"]}, told, seconds)


def _rules_had_an_lm(prediction: Mapping[str, Any]) -> bool:
    """Return whether there were more LM calls than the steps that an LM decided: a rule may overrule what it read."""
    hops: list[dict[str, Any]] = prediction.get("hops") or []
    decided = sum((hop["decided_by"] == "lm") + (hop["judged_by"] == "lm") for hop in hops)
    check = prediction.get("check") or {}
    answered = bool(check) or not prediction.get("abstained", True)
    return (prediction.get("usage") or {}).get("lm_calls", 0) > decided + answered + (check.get("by") == "lm")


def _search(hop: Mapping[str, Any], shown: Mapping[str, Mapping[str, Any]], number: int) -> _Step:
    ratings = dict(enumerate(hop.get("relevance") or []))
    documents = [
        {
            "page_content": shown.get(hit["passage_id"], {}).get("text", "(not shown to an LM)"),
            "metadata": {"doc_uri": hit["passage_id"], "score": hit["score"], "rank": hit["rank"]}
            | ({"relevance": ratings[place]} if place in ratings else {}),
        }
        for place, hit in enumerate(hop["hits"])
    ]
    inputs = {"query": hop["query"], "tool": hop["tool"], "filters": hop["filters"], "decided_by": hop["decided_by"]}
    name = f"{hop['tool']} search"
    return _Step(name, SpanType.RETRIEVER, inputs, documents, hop["seconds"], number, hop.get("error"))


def _outcome(record: Mapping[str, Any]) -> dict[str, Any]:
    prediction = record["prediction"] or {}
    said = {name: prediction.get(name) for name in ("answer", "citations", "abstained", "stop_reason")}
    told = {**said, **{name: record.get(name) for name in ("outcome", "detail", "error")}}
    return {name: value for name, value in told.items() if value not in (None, "", [])}


def _tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    asked, replied = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        TokenUsageKey.INPUT_TOKENS: asked,
        TokenUsageKey.OUTPUT_TOKENS: replied,
        TokenUsageKey.TOTAL_TOKENS: asked + replied,
    }


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
