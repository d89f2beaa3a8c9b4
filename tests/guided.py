"""A corpus on which evidence is found at once, only by a second search, in conflict, or never; and its gold cases."""

import json
from pathlib import Path
from typing import Any

from fake_embedder import HashEmbedder

from programs.rag import AgenticRAG
from programs.run import Bounds
from programs.step_demos import GuidedCase
from retrievers import build_index, open_index
from retrievers.index import MODES
from trainsets.cases import Case, to_example
from trainsets.gold import Gold

DOCUMENTS = {
    "io": ("IO-16R manual", "The IO-16R has sixteen relays. Its spare relay is part P-4471. Mount it on a rail."),
    "supplier": ("Brightwell", "Brightwell makes P-4471. From order to delivery it takes nine weeks."),
    "pay-old": ("Contract FK-22", "Payment for invoices of Brightwell is due after 45 days."),
    "pay-new": ("Amendment to FK-22", "Payment for invoices of Brightwell is due after 60 days."),
    "io-wiring": ("IO-16R wiring", "Every relay of the IO-16R has three screws. The spare screws lie in the lid."),
    "io-lamp": ("IO-16R lamps", "A lamp on the IO-16R shows the last fault of a relay, and how long it took."),
    "zh-fan": ("KX-310 风扇手册", "KX-310 的风扇每两年必须更换一次。更换之前先断电。"),
    "zh-cover": ("KX-310 维护手册", "打开 KX-310 的盖子之前等待五分钟。"),
}
DATES = {"pay-old": "2022-07-01", "pay-new": "2025-10-01"}
CASES: list[dict[str, Any]] = [
    {
        "id": "hop",
        "question": "How long is the delivery of the spare relay of the IO-16R?",
        "answer": ["nine weeks"],
        "gold_ids": ["io", "supplier"],
        "gold_spans": ["spare relay is part P-4471", "it takes nine weeks"],
        "kind": "multi_hop",
        "lang": "en",
    },
    {
        "id": "conflict",
        "question": "After how many days is payment for invoices of Brightwell due?",
        "answer": ["60 days"],
        "wrong_answers": ["45 days"],
        "gold_ids": ["pay-new", "pay-old"],
        "gold_spans": ["due after 60 days"],
        "kind": "conflict",
        "lang": "en",
    },
    {
        "id": "one",
        "question": "How many relays does the IO-16R have?",
        "answer": ["sixteen"],
        "gold_ids": ["io"],
        "kind": "single_hop",
        "lang": "en",
    },
    {
        "id": "zh",
        "question": "KX-310 的风扇多久更换一次？",
        "answer": ["每两年"],
        "gold_ids": ["zh-fan"],
        "gold_spans": ["风扇每两年必须更换一次"],
        "kind": "single_hop",
        "lang": "zh",
    },
    {
        "id": "never",
        "question": "What is the weight of the IO-16R and its relay?",
        "answerable": False,
        "kind": "unanswerable",
        "lang": "en",
    },
    {
        "id": "later",
        "question": "And of the NX-1?",
        "answer": ["sixteen"],
        "gold_ids": ["io"],
        "history": [{"role": "user", "text": "How many relays does the IO-16R have?"}],
        "kind": "follow_up",
        "lang": "en",
    },
]


def gold_case(id_: str) -> Case:
    """One case as the gold set would hold it."""
    return next(Case.model_validate_json(json.dumps(case)) for case in CASES if case["id"] == id_)


def guided_case(id_: str) -> GuidedCase:
    """One case as an optimizer sees it, and its gold."""
    case = gold_case(id_)
    return GuidedCase(to_example(case), Gold(case))


def make_program(folder: Path) -> AgenticRAG:
    """The agentic program over an index of these documents; three passages fit into a prompt."""
    corpus = folder / "corpus.jsonl"
    lines = [
        {"id": id_, "title": title, "text": text, "metadata": {"date": DATES[id_]} if id_ in DATES else {}}
        for id_, (title, text) in DOCUMENTS.items()
    ]
    corpus.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    build_index(corpus, folder / "index", HashEmbedder())
    index = open_index(folder / "index", HashEmbedder())
    return AgenticRAG({mode: index.retriever(mode) for mode in MODES}, Bounds(n_passages=3, k=3))
