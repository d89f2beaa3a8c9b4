"""Exports as a compile leaves them, and records as an evaluation writes them, without running either."""

import json
from pathlib import Path
from typing import Any

import dspy
import tiny
from commands import facts_of

from programs.export import save_export
from programs.rag import AgenticRAG


def compiled_export(folder: Path, index: Path, instruction: str, **built_by: Any) -> Path:
    """An export whose answer predictor has this instruction and a demo."""
    program = AgenticRAG({})
    program.answer.signature = program.answer.signature.with_instructions(instruction)
    demo = {"passages": "<passage 1>\nF3\n</passage>", "question": "Which fuse?", "answer": "F3", "citations": [1]}
    program.answer.demos = [dspy.Example(**demo).with_inputs("passages", "question")]
    facts = {"optimizer": "bootstrap", "seed_score": 0.5, "compiled_score": 0.75, "model": "agentic-tiny"}
    save_export(program, folder, lm="openai/test", index=facts_of(index), built_by=facts | built_by)
    return folder


def record(id_: str = "dev-0", **fields: Any) -> dict[str, Any]:
    """The record of a case with two hops, a rewrite between them."""
    hits = [{"passage_id": f"{name}#0", "score": 0.5, "rank": rank} for rank, name in enumerate(("e1024", "cable"), 1)]
    hop = {
        "goal": "g", "tool": "hybrid", "query": "E-1024", "filters": None, "decided_by": "rule", "hits": hits,
        "kept": ["e1024#0"], "seconds": 0.1, "verdict": "insufficient", "judged_by": "lm", "missing": "the fuse",
        "quotes": [], "judged": ["e1024#0"], "error": None,
    }  # fmt: skip
    second = hop | {"tool": "keyword", "query": "fuse F3", "decided_by": "lm", "verdict": "sufficient", "missing": ""}
    text = tiny.DOCUMENTS[0]["text"]
    usage = {"lm_calls": 4, "cached_calls": 0, "prompt_tokens": 100, "completion_tokens": 20, "cost_usd": 0.0}
    prediction = {
        "question": "Which fuse?", "answer": "F3", "citations": ["e1024#0"], "abstained": False,
        "verdict": "sufficient", "stop_reason": "sufficient", "hops": [hop, second],
        "context": [hits[0] | {"title": "E-1024", "text": text}], "usage": usage, "error": None,
    }  # fmt: skip
    plain = {
        "id": id_, "kind": "lookup", "lang": "en", "question": "Which fuse?", "gold": ["F3"], "outcome": "right",
        "error": None, "seconds": 1.0, "scores": {"combined": 1.0, "rewriter_gain": None}, "prediction": prediction,
    }  # fmt: skip
    return plain | fields


def write_records(path: Path, records: list[dict[str, Any]]) -> Path:
    """Write records as an evaluation does."""
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    return path
