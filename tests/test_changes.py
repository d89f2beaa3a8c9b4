import re
from html.parser import HTMLParser
from pathlib import Path

import dspy
import pytest

from programs.changes import (
    changes_html,
    changes_markdown,
    compare_programs,
    estimate_tokens,
    prompt_texts,
    say_changes,
)
from programs.export import load_export, save_export
from programs.load import Tools
from programs.rag import CHECK_THRESHOLD, AgenticRAG, HybridRAG
from signatures import SearchStep

NASTY = "</pre><script>alert(1)</script>"


def demo(question: str, answer: str) -> dspy.Example:
    passages = f"<passage 1> {NASTY}\n{answer}\n</passage>"
    return dspy.Example(augmented=True, passages=passages, question=question, answer=answer, citations=[1])


@pytest.fixture
def seed(tools: Tools) -> AgenticRAG:
    return AgenticRAG(tools.retrievers)


@pytest.fixture
def compiled(tools: Tools) -> AgenticRAG:
    program = AgenticRAG(tools.retrievers)
    words = program.answer.signature.instructions.replace("as briefly as possible", "in the words of the passage")
    program.answer.signature = program.answer.signature.with_instructions(words)
    program.answer.demos = [demo("保修多久？", "三年"), demo("How long?", "two years")]
    program.plan.demos = [dspy.Example(question="q", steps=[SearchStep(tool="keyword", query="E-1")])]
    return program


def test_each_predictor_is_compared(seed: AgenticRAG, compiled: AgenticRAG) -> None:
    changes = {change.predictor: change for change in compare_programs(seed, compiled)}
    assert set(changes) == {"answer", "check", "condense", "judge", "plan", "rewrite"}
    assert [name for name, change in changes.items() if not change.is_none] == ["answer", "plan"]
    answer = changes["answer"]
    assert answer.is_reworded
    assert not changes["plan"].is_reworded
    assert (len(answer.added), answer.removed) == (2, ())
    assert '"answer": "三年"' in answer.added[0]
    assert '"tool": "keyword"' in changes["plan"].added[0]
    assert answer.before.n_tokens < answer.after.n_tokens
    back = {change.predictor: change for change in compare_programs(compiled, seed)}
    assert back["answer"].removed == answer.added


def test_the_terminal_says_what_changed_in_a_line_each(seed: AgenticRAG, compiled: AgenticRAG) -> None:
    scores = {"answer_score": 0.5, "judge_accuracy": 0.7}, {"answer_score": 0.75, "judge_accuracy": 0.7}
    lines = say_changes(compare_programs(seed, compiled), *scores).splitlines()
    assert lines[0] == "changed:"
    assert re.fullmatch(
        r"  answer    instructions rewritten; 2 demos added; prompt ≈ \d+ → \d+ tokens; answer_score 0.500 → 0.750",
        lines[1],
    )
    assert re.fullmatch(r"  plan      1 demo added; prompt ≈ \d+ → \d+ tokens", lines[2])
    assert lines[3:] == ["  as before check, condense, judge, rewrite"]


def test_two_programs_that_say_the_same_have_no_change(
    seed: AgenticRAG, compiled: AgenticRAG, tools: Tools, tmp_path: Path
) -> None:
    nothing = compare_programs(seed, seed.deepcopy())
    assert say_changes(nothing) == "changed:\n  nothing: both programs say the same\n"
    assert "Nothing" in changes_markdown(nothing)
    assert "Nothing" in changes_html(nothing)
    save_export(compiled, tmp_path / "export", lm="openai/test", index=tools.facts)
    loaded = load_export(tmp_path / "export", tools.retrievers)
    assert all(change.is_none for change in compare_programs(compiled, loaded))


def test_demos_in_another_order_are_a_change(compiled: AgenticRAG) -> None:
    other = compiled.deepcopy()
    other.answer.demos = other.answer.demos[::-1]
    [change] = [change for change in compare_programs(compiled, other) if not change.is_none]
    assert (change.added, change.removed) == ((), ())
    assert "demos in another order" in say_changes([change])


def test_a_threshold_that_moved_is_a_change_and_all_of_it(seed: AgenticRAG) -> None:
    fitted = seed.deepcopy()
    fitted.check.fields["supported"]["threshold"] = 0.75
    changes = compare_programs(seed, fitted)
    [check] = [change for change in changes if not change.is_none]
    assert (check.predictor, check.moved) == ("check", (("supported", CHECK_THRESHOLD, 0.75),))
    said = f"supported from a probability of {CHECK_THRESHOLD:g} → 0.75 on"
    assert say_changes(changes).splitlines()[1] == f"  check     {said}"
    assert f"## check\n\n{said}\n" in changes_markdown(changes)
    assert f"<p>{said}</p>" in changes_html(changes)
    fitted.check.demos = [dspy.Example(passages="p", question="q", supported=True)]
    assert re.fullmatch(
        rf"  check     1 demo added; {said}; prompt ≈ \d+ → \d+ tokens",
        say_changes(compare_programs(seed, fitted)).splitlines()[1],
    )


def test_a_predictor_of_one_program_only_is_compared_with_nothing(tools: Tools, seed: AgenticRAG) -> None:
    changes = {change.predictor: change for change in compare_programs(HybridRAG(tools.retrievers), seed)}
    assert changes["answer"].is_none
    assert changes["plan"].before.n_tokens == 0 < changes["plan"].after.n_tokens


class Tags(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


def test_the_page_is_self_contained_and_escaped(seed: AgenticRAG, compiled: AgenticRAG) -> None:
    page = changes_html(compare_programs(seed, compiled), title=f"a {NASTY}")
    tags = Tags(page)
    assert "script" not in tags.names
    assert not {"src", "href"} & {name for name, _ in tags.attributes}
    assert NASTY not in page
    assert "&lt;script&gt;" in page
    assert "三年" in page
    assert tags.names.count("details") == 3


def test_an_instruction_is_compared_word_by_word_in_both_languages(seed: AgenticRAG) -> None:
    def reword(text: str) -> AgenticRAG:
        program = seed.deepcopy()
        program.answer.signature = program.answer.signature.with_instructions(text)
        return program

    page = changes_html(compare_programs(reword("Answer briefly. 用中文回答"), reword("Answer fully. 用英文回答")))
    assert "Answer <del>briefly</del><ins>fully</ins>. 用<del>中</del><ins>英</ins>文回答" in page
    text = changes_markdown(compare_programs(reword("Old.\nSame."), reword("New.\nSame.")))
    assert "~~~~diff\n- Old.\n+ New.\n  Same.\n~~~~" in text


def test_texts_for_a_leak_scan_hold_what_the_optimizer_wrote_and_no_text_of_the_corpus(compiled: AgenticRAG) -> None:
    texts = prompt_texts(compiled)
    assert texts["answer demo 1"] == "保修多久？\n三年"
    assert texts["plan demo 1"].startswith('q\n[{"tool": "keyword"')
    assert "in the words of the passage" in texts["answer instructions"]
    assert set(texts) >= {"judge instructions", "rewrite instructions", "answer demo 2"}


def test_tokens_are_estimated_for_both_languages() -> None:
    assert estimate_tokens("the supply voltage is low") == 6
    assert estimate_tokens("控制器的保修期") == 5
    assert estimate_tokens("") == 0
