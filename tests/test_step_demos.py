from pathlib import Path
from typing import Any

import dspy
import guided
import pytest

from programs.export import IndexFacts, load_export, render_prompts, save_export
from programs.rag import AgenticRAG, HybridRAG
from programs.step_demos import StepDemoError, build_step_demos, choose_demos, with_demos
from trainsets.gold import held_out_texts, holds_held_out
from trainsets.metrics import combined_score

ALL = [case["id"] for case in guided.CASES]
Demos = dict[str, list[dspy.Example]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> AgenticRAG:
    return guided.make_program(tmp_path_factory.mktemp("guided"))


def accept(example: Any, prediction: Any) -> bool:
    return combined_score(example.case, prediction) >= 0.8


def demos_of(program: Any, *ids: str, **more: Any) -> Demos:
    return build_step_demos(program, [guided.guided_case(id_) for id_ in ids], accept, **more)


def test_a_run_with_two_searches_gives_the_judge_both_verdicts_and_the_rewriter_its_query(program: AgenticRAG) -> None:
    demos = demos_of(program, "hop")
    verdicts = {demo.verdict: demo for demo in demos["judge"]}
    assert set(verdicts) == {"insufficient", "sufficient"}
    assert verdicts["insufficient"].quotes == ["spare relay is part P-4471"]
    assert verdicts["insufficient"].missing == "P-4471 delivery"
    assert "nine weeks" not in verdicts["insufficient"].passages
    assert set(verdicts["sufficient"].quotes) == {"spare relay is part P-4471", "it takes nine weeks"}
    [rewrite] = demos["rewrite"]
    assert (rewrite.query, rewrite.tool) == ("P-4471 delivery", "keyword")
    assert rewrite.known == ["spare relay is part P-4471"]  # where the name in the query comes from
    [answer] = demos["answer"]
    assert (answer.answer, sorted(answer.citations)) == ("nine weeks", [1, 2])


def test_a_near_miss_is_insufficient_and_gold_that_disagrees_a_conflict(program: AgenticRAG) -> None:
    demos = demos_of(program, "never", "conflict")
    assert [(demo.verdict, demo.quotes) for demo in demos["judge"] if demo.from_case == "never"] == [
        ("insufficient", [])
    ]
    [conflict] = [demo for demo in demos["judge"] if demo.from_case == "conflict"]
    assert conflict.verdict == "conflict"
    assert conflict.quotes == ["due after 60 days", "Payment for invoices of Brightwell is due after 45 days."]
    assert [demo.from_case for demo in demos["answer"]] == ["conflict"]  # nothing answers the other


def test_a_demo_reads_like_a_live_call_and_shows_no_more_passages_than_it_needs(program: AgenticRAG) -> None:
    [answer] = demos_of(program, "zh")["answer"]
    assert (
        answer.passages == "<passage 1> KX-310 风扇手册\nKX-310 的风扇每两年必须更换一次。更换之前先断电。\n</passage>"
    )
    assert list(answer.citations) == [1]
    for name, demos in demos_of(program, *ALL).items():
        fields = set(getattr(program, name).signature.fields)
        assert all(set(demo.keys()) == fields | {"augmented", "from_case"} for demo in demos)
        assert all(quote in demo.passages for demo in demos for quote in demo.get("quotes", ()))


def test_only_runs_that_the_metric_accepts_give_demos_and_follow_ups_never_do(program: AgenticRAG) -> None:
    cases = [guided.guided_case(id_) for id_ in ALL]
    assert build_step_demos(program, cases, lambda example, prediction: False) == {}
    assert demos_of(program, "later") == {}


def test_what_is_held_out_stands_in_no_demo(program: AgenticRAG) -> None:
    held_out = held_out_texts([guided.gold_case("hop")])
    demos = demos_of(program, *ALL, is_allowed=lambda texts: not holds_held_out(texts, held_out))
    shown = str(demos)
    assert "nine weeks" not in shown
    assert "spare relay is part P-4471" not in shown
    assert {demo.from_case for demo in demos["judge"]} == {"conflict", "zh"}


def test_the_same_cases_give_the_same_demos_and_leave_the_program_alone(program: AgenticRAG) -> None:
    before = render_prompts(program)
    assert demos_of(program, *ALL) == demos_of(program, *ALL)
    assert render_prompts(program) == before
    assert isinstance(program.judge, dspy.Predict)


def test_a_program_without_a_judge_gets_demos_for_its_answer_from_evidence_it_was_shown(program: AgenticRAG) -> None:
    demos = demos_of(HybridRAG(program.retrievers, program.bounds), *ALL)
    assert set(demos) == {"answer"}
    assert {demo.from_case for demo in demos["answer"]} == {"conflict", "one", "zh"}  # "hop" lacks half of it


def test_an_output_that_the_gold_says_nothing_about_is_an_error(program: AgenticRAG) -> None:
    other = program.deepcopy()
    other.judge = dspy.Predict(program.judge.signature.append("doubt", dspy.OutputField(), str))
    with pytest.raises(StepDemoError, match=r"predictor judge: the gold says nothing about its output doubt"):
        demos_of(other, "one")


def demo(verdict: str, question: str) -> dspy.Example:
    return dspy.Example(verdict=verdict, question=question)


def test_kinds_and_languages_take_turns() -> None:
    many = [demo("sufficient", f"which {n}?") for n in range(5)]
    few = [demo("sufficient", "哪一个开关"), demo("insufficient", "哪一个灯"), demo("insufficient", "where?")]
    chosen = choose_demos([*many, *few], 4)
    assert [(one.verdict, one.question) for one in chosen] == [
        ("sufficient", "which 0?"),
        ("insufficient", "哪一个灯"),
        ("sufficient", "哪一个开关"),
        ("insufficient", "where?"),
    ]
    assert len(choose_demos([*many, *few], 20)) == 8
    assert choose_demos([], 3) == []


def test_a_seed_picks_others_and_always_the_same() -> None:
    many = [demo("sufficient", f"which {n}?") for n in range(9)]
    assert choose_demos(many, 3, seed=1) == choose_demos(many, 3, seed=1)
    assert choose_demos(many, 3, seed=1) != choose_demos(many, 3)


def test_a_program_with_step_demos_renders_the_same_after_an_export(program: AgenticRAG, tmp_path: Path) -> None:
    filled = with_demos(program, demos_of(program, *ALL), 4)
    facts = IndexFacts(embedder="e", embedder_fingerprint="f", corpus_version="c", n_documents=1, n_passages=1)
    save_export(filled, tmp_path / "export", lm="test", index=facts)
    loaded = load_export(tmp_path / "export", program.retrievers)
    assert render_prompts(loaded) == render_prompts(filled)
    assert render_prompts(filled) != render_prompts(program)
    assert [one["from_case"] for one in loaded.rewrite.demos] == ["hop"]
