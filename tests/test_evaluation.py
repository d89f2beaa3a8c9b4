import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dspy
import pytest
from predictions import Prediction, hop, ranking

from programs.meter import BudgetExceeded, Usage
from trainsets.cases import Case
from trainsets.evaluation import (
    COLUMNS,
    CaseResult,
    EvaluationError,
    Summary,
    check_scorable,
    compare,
    evaluate_program,
    run_cases,
    summarise,
    table_row,
)
from trainsets.metrics import NoGoldAnswerError


def case(number: int, **fields: Any) -> Case:
    facts = {"id": f"c{number}", "question": f"question {number}", "answer": ("yes",), "gold_ids": (f"d{number}",)}
    return Case(**{**facts, **fields})


CASES = [case(number) for number in range(12)]


def prediction(question: str = "question 0", answer: str = "yes", **fields: Any) -> Prediction:
    number = question.rpartition(" ")[2]
    passages = ranking(f"d{number}#0", text="yes")
    facts = {"answer": answer, "citations": (f"d{number}#0",), "context": passages, "hops": (hop(f"d{number}#0"),)}
    return Prediction(**{**facts, "usage": Usage(lm_calls=2, prompt_tokens=90, completion_tokens=10), **fields})


def right(question: str, history: list[dict[str, str]]) -> Prediction:
    return prediction(question)


def evaluate(program: Callable[..., Any], folder: Path, cases: list[Case] = CASES, **options: Any) -> list[CaseResult]:
    return evaluate_program(program, cases, records=folder / "records.jsonl", describe=describe, **options)


def describe(made: Any) -> dict[str, Any]:
    return {"answer": made.answer, "lm_calls": made.usage.lm_calls}


def records_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()]


def test_records_come_in_the_order_of_the_cases_however_threads_finish(tmp_path: Path) -> None:
    def uneven(question: str, history: list[dict[str, str]]) -> Prediction:
        time.sleep(0.02 if question.endswith(("0", "4")) else 0)
        return prediction(question)

    results = evaluate(uneven, tmp_path, n_threads=4)
    assert [result.case.id for result in results] == [one.id for one in CASES]
    assert [record["id"] for record in records_in(tmp_path)] == [one.id for one in CASES]
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_record_tells_what_was_asked_expected_said_and_scored(tmp_path: Path) -> None:
    chinese = case(3, question="保修期 3", answer=("三年",), kind="lookup", lang="zh")
    evaluate(lambda question, history: prediction(question, "三年"), tmp_path, [chinese])
    [record] = records_in(tmp_path)
    assert "保修期" in (tmp_path / "records.jsonl").read_text(encoding="utf-8")
    assert record.pop("seconds") >= 0
    assert record.pop("scores")["answer_score"] == 1.0
    assert record == {
        "id": "c3",
        "kind": "lookup",
        "lang": "zh",
        "question": "保修期 3",
        "gold": ["三年"],
        "outcome": "right",
        "error": None,
        "prediction": {"answer": "三年", "lm_calls": 2},
    }


def test_earlier_turns_reach_the_program(tmp_path: Path) -> None:
    turns = [{"role": "user", "text": "hi"}]
    seen: list[Any] = []

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        seen.append(history)
        return prediction(question)

    evaluate(
        program,
        tmp_path,
        [Case.model_validate_json(json.dumps({"id": "a", "question": "q 0", "answer": ["yes"], "history": turns}))],
    )
    assert seen == [turns]


def test_a_program_that_raises_is_an_error_of_its_case_and_no_wrong_answer(tmp_path: Path) -> None:
    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        if question.endswith("1"):
            raise ValueError("broken pipe")
        return prediction(question)

    results = evaluate(program, tmp_path)
    summary = summarise(results)
    assert [result.error for result in results if result.error] == ["ValueError: broken pipe"] * 2
    assert (summary.n, summary.n_errors, summary.scores["answer_score"]) == (12, 2, 1.0)
    assert summary.outcomes == {"right": 10, "errored": 2}
    broken = records_in(tmp_path)[1]
    assert (broken["outcome"], broken["prediction"], broken["scores"]) == ("errored", None, {})


def test_a_program_that_raises_on_every_case_is_broken_and_not_bad(tmp_path: Path) -> None:
    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        raise ValueError("no such retriever")

    with pytest.raises(EvaluationError, match=r"the first because of ValueError: no such retriever; see .*records"):
        evaluate(program, tmp_path)
    assert len(records_in(tmp_path)) == 12


def test_an_answer_that_could_not_be_read_is_an_error_too(tmp_path: Path) -> None:
    unread = lambda question, history: prediction(question, "", stop_reason="error", abstained=True)  # noqa: E731
    summary = summarise(evaluate(unread, tmp_path))
    assert (summary.n_errors, summary.lm_calls, summary.scores.get("answer_score")) == (12, 2.0, None)


def test_a_case_that_no_metric_can_score_is_a_defect_of_the_set(tmp_path: Path) -> None:
    with pytest.raises(NoGoldAnswerError, match="case c0: neither a gold answer nor gold evidence"):
        check_scorable([case(1, answer=()), case(2, gold_ids=()), case(0, answer=(), gold_ids=())])
    with pytest.raises(NoGoldAnswerError):
        evaluate(right, tmp_path, [case(0, answer=(), gold_ids=())])
    assert not (tmp_path / "records.jsonl").exists()


@pytest.mark.parametrize("stop", [BudgetExceeded("spent"), KeyboardInterrupt()], ids=["budget", "interrupt"])
def test_what_is_no_exception_ends_the_evaluation_and_keeps_the_records_before_it(
    tmp_path: Path, stop: BaseException
) -> None:
    (tmp_path / "records.jsonl").write_text("of the last time\n", encoding="utf-8")

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        if question.endswith("3"):
            raise stop
        return prediction(question)

    with pytest.raises(type(stop)):
        evaluate(program, tmp_path)
    assert (tmp_path / "records.jsonl").read_text(encoding="utf-8") == "of the last time\n"
    assert len((tmp_path / "records.jsonl.part").read_text(encoding="utf-8").splitlines()) >= 3


def test_progress_is_told_after_every_case_with_the_score_so_far(tmp_path: Path) -> None:
    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        if question == "question 2":
            raise ValueError("x")
        return prediction(question, "yes" if question == "question 0" else "no", citations=())

    remarks: list[str] = []
    evaluate(program, tmp_path, CASES[:3], step=remarks.append)
    assert len(remarks) == 3
    assert float(remarks[0].split()[1]) > float(remarks[1].split()[1])
    assert remarks[2].endswith(" · 1 errors")


@pytest.mark.parametrize("n_threads", [1, 3])
def test_as_many_cases_run_at_once_as_asked_for_with_the_settings_bound_around(n_threads: int) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return prediction(question, dspy.settings.get("said"))

    with dspy.context(said="yes"):
        results = list(run_cases(program, CASES, n_threads=n_threads))
    assert most == n_threads
    assert [result.outcome for result in results] == ["right"] * 12


def test_a_consumer_that_stops_drops_the_cases_not_begun_and_waits_for_none() -> None:
    begun: list[str] = []
    held = threading.Event()

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        begun.append(question)
        if len(begun) > 1:
            held.wait(5)
        return prediction(question)

    with closing(run_cases(program, CASES)) as results:
        next(results)
    assert len(begun) <= 2
    held.set()
    time.sleep(0.05)
    assert len(begun) <= 2


def test_a_document_that_is_not_in_the_index_is_told_apart(tmp_path: Path) -> None:
    lost = lambda question, history: prediction(question, "no", context=ranking("x#0"), hops=(hop("x#0"),))  # noqa: E731
    assert summarise(evaluate(lost, tmp_path, CASES[:2], indexed_ids={"d0", "x"})).outcomes == {
        "not_retrieved": 1,
        "not_in_index": 1,
    }


def test_the_summary_of_nothing_is_empty_not_a_failure() -> None:
    summary = summarise([])
    assert (summary.n, summary.n_errors, summary.lm_calls, summary.seconds_p50) == (0, 0, 0.0, None)
    assert len(table_row("x", summary)) == len(COLUMNS)


def results_with(*scores: float | None, seconds: float = 1.0, cached: int = 0) -> list[CaseResult]:
    usage = Usage(
        lm_calls=2, cached_calls=cached, prompt_tokens=70, completion_tokens=30, cost_usd=0.5, parse_failures=1
    )
    return [
        CaseResult(case(n), None, {}, "errored", "ValueError: x", seconds)
        if score is None
        else CaseResult(case(n), prediction(usage=usage), {"combined": score}, "right", None, seconds)
        for n, score in enumerate(scores)
    ]


def test_totals_are_means_a_case_and_sums_where_they_say_so() -> None:
    summary = summarise(results_with(1.0, 0.5, None))
    assert summary.scores["combined"] == 0.75
    assert (summary.lm_calls, summary.tokens, summary.cost_usd, summary.parse_failures) == (2.0, 100.0, 1.0, 2)
    assert (summary.seconds_p50, summary.seconds_p95) == (1.0, 1.0)


def test_times_are_not_told_when_answers_came_from_the_cache() -> None:
    summary = summarise(results_with(1.0, 0.5, cached=1))
    assert (summary.n_cached_calls, summary.seconds_p50, summary.seconds_p95) == (2, None, None)
    assert "–" in table_row("x", summary)


def test_a_summary_is_plain_data_for_machines() -> None:
    assert Summary(**json.loads(json.dumps(asdict(summarise(results_with(1.0)))))).n == 1


def test_a_row_has_a_cell_for_every_column() -> None:
    row = dict(zip(COLUMNS, table_row("seed", summarise(results_with(1.0, 0.5, None))), strict=True))
    assert (row["program"], row["score"], row["LM calls"], row["tokens"]) == ("seed", "0.750", "2.0", "100")
    assert (row["errors"], row["unparsed"], row["answer"], row["s P50"]) == ("1", "2", "–", "1.0")


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (
            (1.0,) * 10,
            (0.0,) * 10,
            "new − old: +1.000, 95 % interval +1.000 … +1.000 (paired bootstrap, 10 cases) → new is better",
        ),
        ((0.0,) * 10, (1.0,) * 10, "new is WORSE"),
        ((1.0, 0.0) * 5, (0.0, 1.0) * 5, "no difference is proven"),
        ((1.0,) * 3 + (None,), (0.0, None, 0.0, 0.0), "(paired bootstrap, 2 cases; 2 left out)"),
        ((None, 1.0), (1.0, None), "new against old: no case was scored in both"),
    ],
)
def test_a_comparison_says_how_sure_it_is(
    ours: tuple[float | None, ...], theirs: tuple[float | None, ...], verdict: str
) -> None:
    assert verdict in compare("new", results_with(*ours), "old", results_with(*theirs))


def test_a_comparison_is_the_same_each_time() -> None:
    ours, theirs = results_with(0.2, 0.9, 0.4, 1.0), results_with(0.1, 1.0, 0.3, 0.2)
    assert compare("a", ours, "b", theirs) == compare("a", ours, "b", theirs)
