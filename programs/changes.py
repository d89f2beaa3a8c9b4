"""What a compile changed, by predictor: instructions, demos, thresholds; for the terminal, Markdown and HTML."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, ndiff
from html import escape
from pathlib import Path
from typing import Any

import dspy

from programs.adapter import LeanJSONAdapter

Scores = Mapping[str, float | None]

# What tells whether a predictor got better, of the scores that an evaluation measures.
SCORES_OF = {
    "plan": ("plan_size", "tool_f1", "filter_f1"),
    "judge": ("judge_accuracy",),
    "rewrite": ("rewriter_gain",),
    "answer": ("answer_score", "citation_precision", "citation_recall", "faithfulness"),
}
_FROM_THE_CORPUS = ("passages", "known", "quotes", "citations")
_CJK = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3000-\u303f\uff00-\uffef"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a predictor says before the inputs of a call; `demos` are JSON, `n_tokens` is estimated.

    `thresholds` are of the outputs that it decides by a probability.
    """

    instructions: str = ""
    demos: tuple[str, ...] = ()
    n_tokens: int = 0
    thresholds: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One predictor before and after; a predictor that only one program has is an empty prompt in the other."""

    predictor: str
    before: Prompt
    after: Prompt

    @property
    def is_reworded(self) -> bool:
        """Whether the instructions differ."""
        return self.before.instructions != self.after.instructions

    @property
    def added(self) -> tuple[str, ...]:
        """The demos that only the prompt after has."""
        return tuple(demo for demo in self.after.demos if demo not in self.before.demos)

    @property
    def removed(self) -> tuple[str, ...]:
        """The demos that only the prompt before has."""
        return tuple(demo for demo in self.before.demos if demo not in self.after.demos)

    @property
    def moved(self) -> tuple[tuple[str, float, float], ...]:
        """The thresholds that both have and that differ: output, before, after."""
        before = dict(self.before.thresholds)
        return tuple((name, before[name], at) for name, at in self.after.thresholds if before.get(name, at) != at)

    @property
    def is_none(self) -> bool:
        """Whether the two are the same, down to the order of the demos."""
        return self.before == self.after


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens an LM reads in a text: a word part is about 4 characters, a Chinese one about 1.5."""
    n_chinese = len(re.findall(rf"[{_CJK}]", text))
    return round(n_chinese / 1.5 + (len(text) - n_chinese) / 4)


def prompts_of(program: dspy.Module) -> dict[str, Prompt]:
    """Return the prompt of every predictor."""
    return {name: _prompt(predictor) for name, predictor in sorted(program.named_predictors())}


def compare_programs(before: dspy.Module, after: dspy.Module) -> tuple[Change, ...]:
    """Compare two programs; every predictor of either is one change, also where there is none."""
    mine, theirs = prompts_of(before), prompts_of(after)
    names = sorted(mine.keys() | theirs.keys())
    return tuple(Change(name, mine.get(name, Prompt()), theirs.get(name, Prompt())) for name in names)


def prompt_texts(program: dspy.Module) -> dict[str, str]:
    """Return what an optimizer put into the prompts, by place: instructions, and demos without text of the corpus."""
    texts = {}
    for name, predictor in sorted(program.named_predictors()):
        texts[f"{name} instructions"] = predictor.signature.instructions
        for number, demo in enumerate(predictor.demos, start=1):
            own = [field for field in predictor.signature.fields if field in demo and field not in _FROM_THE_CORPUS]
            texts[f"{name} demo {number}"] = "\n".join(_plain(demo[field]) for field in own)
    return texts


def _prompt(predictor: dspy.Predict) -> Prompt:
    signature = predictor.signature
    blanks = dict.fromkeys(signature.input_fields, "")
    messages = LeanJSONAdapter().format(signature, predictor.demos, blanks)
    fields = (*signature.input_fields, *signature.output_fields)
    demos = tuple(_demo_json(demo, fields) for demo in predictor.demos)
    text = "".join(str(message["content"]) for message in messages)
    thresholds = tuple((name, float(state["threshold"])) for name, state in predictor.fields.items())
    return Prompt(signature.instructions, demos, estimate_tokens(text), thresholds)


def _demo_json(demo: Any, fields: Sequence[str]) -> str:
    shown = {name: value for name, value in dict(demo).items() if name in fields}
    return json.dumps(shown, ensure_ascii=False, indent=2, default=_as_data)


def _as_data(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else str(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_as_data)


def say_changes(changes: Sequence[Change], before: Scores | None = None, after: Scores | None = None) -> str:
    """Say what changed, one line a predictor, with those of its scores that moved from one evaluation to the other."""
    lines = [f"  {change.predictor:<10}{'; '.join(_facts(change, before, after))}" for change in _changed(changes)]
    same = [change.predictor for change in changes if change.is_none]
    if same:
        lines.append(f"  {'as before':<10}{', '.join(same)}" if lines else "  nothing: both programs say the same")
    return "\n".join(["changed:", *lines]) + "\n"


def changes_markdown(changes: Sequence[Change], before: Scores | None = None, after: Scores | None = None) -> str:
    """Return what changed as a section of Markdown."""
    parts = ["# What compiling changed\n"]
    for change in _changed(changes):
        parts.append(f"## {change.predictor}\n\n{'; '.join(_facts(change, before, after))}\n")
        if change.is_reworded:
            parts.append(_fenced("diff", _line_diff(change.before.instructions, change.after.instructions)))
        for title, demos in (("demo added", change.added), ("demo removed", change.removed)):
            parts += [f"### {title}\n\n{_fenced('json', demo)}" for demo in demos]
    return "\n".join(parts if len(parts) > 1 else [*parts, "Nothing: both programs say the same.\n"])


def changes_html(
    changes: Sequence[Change], before: Scores | None = None, after: Scores | None = None, title: str = ""
) -> str:
    """Return what changed as one page that needs nothing else; everything in it is escaped."""
    title = escape(title or "What compiling changed")
    body = "".join(_section(change, before, after) for change in _changed(changes))
    body = body or "<p>Nothing: both programs say the same.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}</body></html>\n"
    )


def write_changes(before: dspy.Module, after: dspy.Module, old: Scores, new: Scores, page: Path) -> tuple[str, str]:
    """Compare two programs, write the page, and return what changed for the terminal and as Markdown."""
    changes = compare_programs(before, after)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(changes_html(changes, old, new), encoding="utf-8")
    return say_changes(changes, old, new), changes_markdown(changes, old, new)


_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
    "padding:0 1rem}pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #8886;border-radius:4px;"
    "padding:.6rem}ins{background:#2da44e40;text-decoration:none}del{background:#cf222e40}"
    ".added{border-left:4px solid #2da44e}.removed{border-left:4px solid #cf222e}"
)


def _section(change: Change, before: Scores | None, after: Scores | None) -> str:
    parts = [f"<h2>{escape(change.predictor)}</h2>\n<p>{escape('; '.join(_facts(change, before, after)))}</p>\n"]
    if change.is_reworded:
        parts.append(f"<pre>{_word_diff(change.before.instructions, change.after.instructions)}</pre>\n")
    for kind, demos in (("added", change.added), ("removed", change.removed)):
        parts += [
            f'<details><summary>demo {kind}</summary><pre class="{kind}">{escape(d)}</pre></details>\n' for d in demos
        ]
    return "".join(parts)


def _changed(changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if not change.is_none]


def _facts(change: Change, before: Scores | None, after: Scores | None) -> Iterator[str]:
    if change.is_reworded:
        yield "instructions rewritten"
    for what, demos in (("added", change.added), ("removed", change.removed)):
        if demos:
            yield f"{len(demos)} demo{'s' * (len(demos) > 1)} {what}"
    for output, old_at, new_at in change.moved:
        yield f"{output} from a probability of {old_at:g} → {new_at:g} on"
    if change.before.demos != change.after.demos and not (change.added or change.removed):
        yield "demos in another order"
    if replace(change.before, thresholds=()) != replace(change.after, thresholds=()):
        yield f"prompt ≈ {change.before.n_tokens:,} → {change.after.n_tokens:,} tokens"
    for name in SCORES_OF.get(change.predictor, ()):
        old, new = (before or {}).get(name), (after or {}).get(name)
        if old is not None and new is not None and round(old, 3) != round(new, 3):
            yield f"{name} {old:.3f} → {new:.3f}"


def _line_diff(old: str, new: str) -> str:
    return "\n".join(line for line in ndiff(old.splitlines(), new.splitlines()) if not line.startswith("?"))


def _word_diff(old: str, new: str) -> str:
    mine, theirs = _WORD.findall(old), _WORD.findall(new)
    parts = []
    for what, start, end, other_start, other_end in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        gone, come = escape("".join(mine[start:end])), escape("".join(theirs[other_start:other_end]))
        if what == "equal":
            parts.append(gone)
        else:
            parts += [f"<del>{gone}</del>"] * bool(gone) + [f"<ins>{come}</ins>"] * bool(come)
    return "".join(parts)


def _fenced(language: str, text: str) -> str:
    return f"~~~~{language}\n{text}\n~~~~\n"
