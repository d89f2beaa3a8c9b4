from pathlib import Path

import mlflow
import pytest
from compiled import record, write_records
from mlflow.entities import Trace
from mlflow.tracing.client import TracingClient
from mlflow.tracking import MlflowClient

from programs.tracking.stores import make_experiment
from programs.tracking.traces import log_traces

TAGS = {"program": "compiled"}


@pytest.fixture
def experiment(store: str) -> str:
    return make_experiment(store, "tests")


def logged(store: str, experiment: str, query: str | None = None) -> list[Trace]:
    mlflow.set_tracking_uri(store)
    return mlflow.search_traces(locations=[experiment], filter_string=query, return_type="list")


def log(store: str, experiment: str, path: Path, *records: dict[str, object], run: str = "run-1") -> None:
    log_traces(store, experiment, run, write_records(path / "records.jsonl", list(records)), TAGS)


def test_a_record_is_a_trace_with_a_span_a_hop_tool_and_predictor(store: str, experiment: str, tmp_path: Path) -> None:
    log(store, experiment, tmp_path, record())
    [trace] = logged(store, experiment)
    names = {span.span_id: span.name for span in trace.data.spans}
    tree = [(span.name, span.span_type, names.get(span.parent_id)) for span in trace.data.spans]
    assert sorted(tree) == sorted(
        [
            ("question", "AGENT", None),
            ("hop 1", "CHAIN", "question"),
            ("hybrid search", "RETRIEVER", "hop 1"),
            ("judge", "LLM", "hop 1"),
            ("hop 2", "CHAIN", "question"),
            ("rewrite", "LLM", "hop 2"),
            ("keyword search", "RETRIEVER", "hop 2"),
            ("judge", "LLM", "hop 2"),
            ("answer", "LLM", "question"),
        ]
    )
    root = next(span for span in trace.data.spans if span.parent_id is None)
    assert root.inputs == {"question": "Which fuse?"}
    assert root.outputs["answer"] == "F3"
    assert trace.info.execution_duration == 1000
    assert trace.info.token_usage == {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}


def test_searching_takes_its_measured_time_and_predictors_share_the_rest(
    store: str, experiment: str, tmp_path: Path
) -> None:
    log(store, experiment, tmp_path, record())
    [trace] = logged(store, experiment)
    lengths = {span.name: (span.end_time_ns - span.start_time_ns) / 1e9 for span in trace.data.spans}
    assert lengths["keyword search"] == pytest.approx(0.1)
    assert lengths["answer"] == pytest.approx(0.2)  # a second, two searches, four predictors
    assert lengths["hop 2"] == pytest.approx(0.5)
    root = next(span for span in trace.data.spans if span.parent_id is None)
    for span in trace.data.spans:
        assert root.start_time_ns <= span.start_time_ns <= span.end_time_ns <= root.end_time_ns


def test_a_rule_that_overruled_the_lm_has_the_lms_time_and_one_that_needed_none_has_not(
    store: str, experiment: str, tmp_path: Path
) -> None:
    def judging(n_calls: int) -> list[float]:
        one = record(f"dev-{n_calls}")
        for hop in one["prediction"]["hops"]:
            hop["judged_by"] = "rule"
        one["prediction"]["usage"]["lm_calls"] = n_calls
        log(store, experiment, tmp_path, one)
        trace = next(trace for trace in logged(store, experiment) if trace.info.tags["case_id"] == one["id"])
        return [span.end_time_ns - span.start_time_ns for span in trace.data.spans if span.name == "judge"]

    assert all(judging(4))
    assert not any(judging(2))  # the rewriter and the answerer


def test_the_check_of_an_answer_is_a_span_and_so_is_the_answer_that_failed_it(
    store: str, experiment: str, tmp_path: Path
) -> None:
    one = record()
    check = {"outcome": "fails", "reason": "10 stands in no passage", "by": "rule", "probability": None}
    one["prediction"] |= {"abstained": True, "answer": "The documents do not say.", "check": check}
    log(store, experiment, tmp_path, one)
    [trace] = logged(store, experiment)
    spans = {span.name: span for span in trace.data.spans}
    assert spans["answer"].outputs is None
    assert spans["check"].outputs == {"outcome": "fails", "reason": "10 stands in no passage", "by": "rule"}


def test_what_a_retriever_found_can_be_read(store: str, experiment: str, tmp_path: Path) -> None:
    log(store, experiment, tmp_path, record())
    [trace] = logged(store, experiment)
    found = next(span for span in trace.data.spans if span.name == "hybrid search").outputs
    assert found[0]["page_content"].startswith("E-1024 means")
    assert [one["metadata"]["doc_uri"] for one in found] == ["e1024#0", "cable#0"]


def test_how_relevant_passages_were_and_which_the_judge_did_not_read_is_told(
    store: str, experiment: str, tmp_path: Path
) -> None:
    one = record()
    one["prediction"]["hops"][0] |= {"relevance": [0.75, 0.1], "left_out": ["cable#0"]}
    log(store, experiment, tmp_path, one)
    [trace] = logged(store, experiment)
    searched, judged, *_ = [span for span in trace.data.spans if span.name in ("hybrid search", "judge")]
    assert [hit["metadata"]["relevance"] for hit in searched.outputs] == [0.75, 0.1]
    assert judged.inputs == {"passages": ["e1024#0"], "left_out": ["cable#0"]}


def test_traces_are_found_by_case_outcome_and_stop_reason(store: str, experiment: str, tmp_path: Path) -> None:
    broken = record("dev-1", outcome="errored", error="LMError: gone", prediction=None, scores={})
    log(store, experiment, tmp_path, record(), broken)
    for query in ("tags.case_id = 'dev-1'", "tags.outcome = 'errored'", "tags.stop_reason = 'error'"):
        [trace] = logged(store, experiment, query)
        assert trace.info.client_request_id == "dev-1"
    assert (trace.info.state, trace.info.response_preview) == ("ERROR", "LMError: gone")
    assert [span.status.status_code for span in trace.data.spans] == ["ERROR"]
    assert len(logged(store, experiment, "tags.program = 'compiled'")) == 2


def test_scores_and_gold_answers_are_attached(store: str, experiment: str, tmp_path: Path) -> None:
    log(store, experiment, tmp_path, record())
    [trace] = logged(store, experiment)
    values = {one.name: one.value for one in trace.info.assessments}
    assert values == {"outcome": "right", "combined": 1.0, "accepted_answers": ["F3"]}
    assert {one.metadata["mlflow.assessment.sourceRunId"] for one in trace.info.assessments} == {"run-1"}
    assert trace.info.trace_metadata["mlflow.sourceRun"] == "run-1"


def test_logging_again_makes_no_second_trace_and_another_run_makes_its_own(
    store: str, experiment: str, tmp_path: Path
) -> None:
    for run in ("run-1", "run-1", "run-2"):
        log(store, experiment, tmp_path, record(), run=run)
    assert len(logged(store, experiment)) == 2


def test_a_thousand_records_are_sent_a_few_at_a_time(
    store: str, experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    monkeypatch.setattr(TracingClient, "start_trace", lambda self, info: info)
    monkeypatch.setattr(TracingClient, "log_spans", lambda self, place, spans: at_once.append(len(spans)))
    records = write_records(tmp_path / "records.jsonl", [record(f"c-{n}") for n in range(1000)])
    assert log_traces(store, experiment, "run-1", records, TAGS) == 1000
    assert sum(at_once) == 9000
    assert max(at_once) == 25 * 9


def test_traces_belong_to_their_experiment(store: str, experiment: str, tmp_path: Path) -> None:
    log(store, experiment, tmp_path, record())
    other = MlflowClient(store).create_experiment("other", artifact_location=tmp_path.as_uri())
    assert logged(store, other) == []
