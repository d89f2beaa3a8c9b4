import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from predictions import Prediction, hop, numbered_case, numbered_prediction, ranking

from programs.meter import BudgetExceeded
from trainsets import evaluation
from trainsets.cases import Case
from trainsets.evaluation import (
    CaseResult,
    EvaluationError,
    Scoring,
    check_scorable,
    evaluate_program,
    run_cases,
    summarise,
)
from trainsets.metrics import NoGoldAnswerError
from trainsets.records import Finished

CASES = [numbered_case(number) for number in range(12)]
UNSCORABLE = numbered_case(0, answer=(), gold_ids=())


def right(question: str, history: list[dict[str, str]]) -> Prediction:
    return numbered_prediction(question)


def evaluate(program: Callable[..., Any], folder: Path, cases: list[Case] = CASES, **options: Any) -> list[CaseResult]:
    return evaluate_program(program, cases, records=folder / "records.jsonl", describe=describe, **options)


def describe(made: Any) -> dict[str, Any]:
    return {"answer": made.answer, "lm_calls": made.usage.lm_calls}


def records_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()]


def test_records_come_in_the_order_of_the_cases_however_threads_finish(tmp_path: Path) -> None:
    def uneven(question: str, history: list[dict[str, str]]) -> Prediction:
        time.sleep(0.02 if question.endswith(("0", "4")) else 0)
        return numbered_prediction(question)

    results = evaluate(uneven, tmp_path, n_threads=4)
    assert [result.case.id for result in results] == [one.id for one in CASES]
    assert [record["id"] for record in records_in(tmp_path)] == [one.id for one in CASES]
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_record_tells_what_was_asked_expected_said_and_scored(tmp_path: Path) -> None:
    chinese = numbered_case(3, question="保修期 3", answer=("三年",), kind="lookup", lang="zh")
    evaluate(lambda question, history: numbered_prediction(question, "三年"), tmp_path, [chinese])
    [record] = records_in(tmp_path)
    assert "保修期" in (tmp_path / "records.jsonl").read_text(encoding="utf-8")
    assert record.pop("seconds") >= 0
    assert record.pop("scores")["answer_score"] == 1.0
    assert record == {
        "key": "",
        "id": "c3",
        "kind": "lookup",
        "lang": "zh",
        "question": "保修期 3",
        "gold": ["三年"],
        "gold_ids": ["d3"],
        "answerable": True,
        "outcome": "right",
        "rank": None,
        "detail": "",
        "error": None,
        "grading_error": None,
        "prediction": {"answer": "三年", "lm_calls": 2},
    }


def test_earlier_turns_reach_the_program(tmp_path: Path) -> None:
    turns = [{"role": "user", "text": "hi"}]
    seen: list[Any] = []

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        seen.append(history)
        return numbered_prediction(question)

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
        return numbered_prediction(question)

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
    unread = lambda question, history: numbered_prediction(question, "", stop_reason="error", abstained=True)  # noqa: E731
    summary = summarise(evaluate(unread, tmp_path))
    assert (summary.n_errors, summary.lm_calls, summary.scores.get("answer_score")) == (12, 2.0, None)


def test_a_case_that_no_metric_can_score_is_a_defect_of_the_set(tmp_path: Path) -> None:
    with pytest.raises(NoGoldAnswerError, match="case c0: neither a gold answer nor gold evidence"):
        check_scorable(
            [numbered_case(1, answer=()), numbered_case(2, gold_ids=()), numbered_case(0, answer=(), gold_ids=())]
        )
    with pytest.raises(NoGoldAnswerError):
        evaluate(right, tmp_path, [UNSCORABLE])
    assert not (tmp_path / "records.jsonl").exists()


@pytest.mark.parametrize("stop", [BudgetExceeded("spent"), KeyboardInterrupt()], ids=["budget", "interrupt"])
def test_what_is_no_exception_ends_the_evaluation_and_keeps_the_records_before_it(
    tmp_path: Path, stop: BaseException
) -> None:
    (tmp_path / "records.jsonl").write_text("of the last time\n", encoding="utf-8")

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        if question.endswith("3"):
            raise stop
        return numbered_prediction(question)

    with pytest.raises(type(stop)):
        evaluate(program, tmp_path)
    assert (tmp_path / "records.jsonl").read_text(encoding="utf-8") == "of the last time\n"
    assert len((tmp_path / "records.jsonl.part").read_text(encoding="utf-8").splitlines()) >= 3


def test_progress_is_told_after_every_case_with_the_score_so_far(tmp_path: Path) -> None:
    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        if question == "question 2":
            raise ValueError("x")
        return numbered_prediction(question, "yes" if question == "question 0" else "no", citations=())

    remarks: list[str] = []
    evaluate(program, tmp_path, CASES[:3], step=remarks.append)
    assert len(remarks) == 3
    assert float(remarks[0].split()[1]) > float(remarks[1].split()[1])
    assert remarks[2].endswith(" · 1 errors")


@pytest.mark.parametrize("n_threads", [1, 3])
def test_as_many_cases_run_at_once_as_asked_for_with_the_settings_bound_around(n_threads: int) -> None:
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(n_threads, timeout=60)  # breaks where fewer run at once

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1
        return numbered_prediction(question, dspy.settings.get("said"))

    with dspy.context(said="yes"):
        results = list(run_cases(program, CASES, n_threads=n_threads))
    assert most == n_threads
    assert [result.outcome for result in results] == ["right"] * 12


def test_a_consumer_that_stops_drops_the_cases_not_begun_and_waits_for_none() -> None:
    begun: dict[str, threading.Thread] = {}
    is_at_work, held = threading.Event(), threading.Event()

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        begun[question] = threading.current_thread()
        if question != CASES[0].question:
            is_at_work.set()
            held.wait(60)
        return numbered_prediction(question)

    with closing(run_cases(program, CASES, n_threads=2)) as results:
        assert next(results).case == CASES[0]
        assert is_at_work.wait(60)
    assert begun[CASES[1].question].is_alive()
    held.set()
    begun[CASES[1].question].join()
    assert begun.keys() == {CASES[0].question, CASES[1].question}


def test_a_document_that_is_not_in_the_index_is_told_apart(tmp_path: Path) -> None:
    lost = lambda question, history: numbered_prediction(question, "no", context=ranking("x#0"), hops=(hop("x#0"),))  # noqa: E731
    assert summarise(evaluate(lost, tmp_path, CASES[:2], scoring=Scoring(indexed_ids={"d0", "x"}))).outcomes == {
        "not_retrieved": 1,
        "not_in_index": 1,
    }


def test_evidence_that_no_search_found_is_looked_for_deeper(tmp_path: Path) -> None:
    def lost(question: str, history: list[dict[str, str]]) -> Prediction:
        return numbered_prediction(question, "no", context=ranking("x#0"), hops=(hop("x#0"),))

    deeper = {"q": ["x#0", *(f"y#{n}" for n in range(20)), "d0#4", "d0#0"]}
    scoring = Scoring(search_deeper=lambda hop: deeper[hop.query])
    found, lost_for_good = evaluate(lost, tmp_path, CASES[:2], scoring=scoring)
    assert (found.outcome, found.rank, found.detail) == ("ranked_too_low", 22, "d0")
    assert (lost_for_good.outcome, lost_for_good.rank) == ("not_retrieved", None)
    assert records_in(tmp_path)[0]["rank"] == 22


def test_a_metric_that_raises_is_an_error_of_its_case_and_no_score_of_0(tmp_path: Path) -> None:
    class Odd:
        def __contains__(self, id_: object) -> bool:
            raise KeyError("index is gone")

    lost = numbered_prediction(answer="no", context=(), hops=(hop("x#0"),))

    def half(question: str, history: list[dict[str, str]]) -> Prediction:
        return numbered_prediction(question) if question.endswith("0") else lost

    results = evaluate(half, tmp_path, CASES[:2], scoring=Scoring(indexed_ids=Odd()))
    assert [one.outcome for one in results] == ["right", "errored"]
    assert (results[1].error, results[1].scores) == ("scoring failed: KeyError: 'index is gone'", {})
    assert records_in(tmp_path)[1]["prediction"]["answer"] == "no"


def test_a_case_that_hangs_is_given_up_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, held, stopped = threading.Event(), threading.Event(), threading.Event()
    # No time passes but in the case that hangs, however slow the others are.
    monkeypatch.setattr(evaluation, "time", SimpleNamespace(monotonic=lambda: 0.5 if hanging.is_set() else 0.0))

    def hangs(question: str, history: list[dict[str, str]]) -> Prediction:
        if question.endswith(" 1"):
            hanging.set()
            held.wait(60)
            if dspy.settings.is_over.is_set():  # what an LM looks at before a call
                stopped.set()
        return numbered_prediction(question)

    results = evaluate(hangs, tmp_path, CASES[:6], timeout_s=0.5)
    assert [one.outcome for one in results] == ["right", "errored", "right", "right", "right", "right"]
    assert (results[1].error, results[1].prediction) == ("timed out after 0.5 s", None)
    held.set()
    assert stopped.wait(60)


def test_an_end_of_the_block_that_bound_the_lm_reaches_the_cases_at_work() -> None:
    over = threading.Event()
    over.set()
    with dspy.context(is_over=over):
        [result] = run_cases(
            lambda question, history: numbered_prediction(str(dspy.settings.is_over.is_set())), CASES[:1]
        )
    assert result.prediction.hops[0].hits[0].passage.passage_id == "dTrue#0"


def test_grades_are_further_scores_and_leave_the_combined_one_alone(tmp_path: Path) -> None:
    [plain] = evaluate(right, tmp_path, CASES[:1])
    [graded] = evaluate(right, tmp_path, CASES[:1], scoring=Scoring(grade=lambda case, made: {"graded_relevancy": 0.5}))
    assert graded.scores == {**plain.scores, "graded_relevancy": 0.5}


def test_an_answer_that_could_not_be_graded_keeps_its_scores_and_says_why(tmp_path: Path) -> None:
    def grade(case: Case, made: Any) -> dict[str, float | None]:
        raise ValueError("unreadable")

    results = evaluate(right, tmp_path, CASES[:2], scoring=Scoring(grade=grade))
    assert summarise(results).n_ungraded == 2
    assert summarise(results).scores["answer_score"] == 1.0
    assert records_in(tmp_path)[0]["grading_error"] == "ValueError: unreadable"


def test_results_that_are_there_are_not_made_again_and_stand_in_their_place(tmp_path: Path) -> None:
    asked: list[str] = []

    def program(question: str, history: list[dict[str, str]]) -> Prediction:
        asked.append(question)
        return numbered_prediction(question)

    old = evaluate(program, tmp_path, CASES[:3])[1]
    line = (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[1]
    asked.clear()
    remarks: list[str] = []
    results = evaluate(program, tmp_path, CASES[:3], earlier={"c1": Finished(old, line)}, step=remarks.append)
    assert asked == ["question 0", "question 2"]
    assert len(remarks) == 2
    assert [one.case.id for one in results] == [record["id"] for record in records_in(tmp_path)] == ["c0", "c1", "c2"]
