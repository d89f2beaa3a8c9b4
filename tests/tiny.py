"""A corpus of eight documents and its gold cases, small enough for a test to compile on."""

import json
from pathlib import Path
from typing import Any

DOCUMENTS = [
    {
        "id": "e1024",
        "title": "E-1024 undervoltage",
        "text": "E-1024 means that the supply voltage is below 19.2 V. Check the fuse F3.",
    },
    {
        "id": "e1025",
        "title": "E-1025 module layout",
        "text": "E-1025 means that the module layout differs from the project. Download again.",
    },
    {
        "id": "warranty",
        "title": "Warranty policy",
        "text": "The warranty of every controller is 36 months from delivery.",
    },
    {"id": "relay", "title": "Relay supplier", "text": "The relays of the RX line are supplied by Falk Relais in Ulm."},
    {"id": "cable", "title": "Cable manual", "text": "The longest allowed sync cable is 140 m."},
    {"id": "zh-warranty", "title": "保修政策", "text": "控制器的保修期为三十六个月，自交货之日起计算。"},
    {"id": "zh-fan", "title": "风扇手册", "text": "风扇每两年必须更换一次。"},
    {"id": "zh-cover", "title": "维护手册", "text": "打开盖子之前必须先断电，并等待五分钟。"},
]

ANSWERS = {
    "What does E-1024 mean?": ("supply voltage is below 19.2 V", "e1024", "en"),
    "Which fuse is checked after E-1024?": ("F3", "e1024", "en"),
    "What does E-1025 mean?": ("module layout differs from the project", "e1025", "en"),
    "How long is the warranty of a controller?": ("36 months", "warranty", "en"),
    "Who supplies the relays of the RX line?": ("Falk Relais", "relay", "en"),
    "How long may the sync cable be?": ("140 m", "cable", "en"),
    "控制器的保修期是多久？": ("三十六个月", "zh-warranty", "zh"),
    "风扇多久更换一次？": ("两年", "zh-fan", "zh"),
    "断电之后等待多长时间才能打开盖子？": ("五分钟", "zh-cover", "zh"),
    "In which town is Falk Relais?": ("Ulm", "relay", "en"),
}
_SPLITS = {"train": slice(0, 6), "dev": slice(6, 9), "test": slice(9, 10)}


def cases_of(split: str) -> list[dict[str, Any]]:
    """The cases of a split, as the lines of its file."""
    chosen = list(ANSWERS.items())[_SPLITS[split]]
    return [
        {"id": f"{split}-{n}", "question": q, "answer": [answer], "gold_ids": [gold], "kind": "lookup", "lang": lang}
        for n, (q, (answer, gold, lang)) in enumerate(chosen)
    ]


def line_of(record: dict[str, Any]) -> str:
    """A record as a line of a file."""
    return json.dumps(record, ensure_ascii=False) + "\n"


def answer_json(answer: str) -> str:
    """An answer as an LM gives it, resting on the first passage."""
    return json.dumps({"answer": answer, "citations": [1]}, ensure_ascii=False)


def write_corpus(path: Path) -> Path:
    """Write the documents as a JSONL corpus."""
    return _write(path, DOCUMENTS)


def write_cases(folder: Path) -> Path:
    """Write one case file a split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in _SPLITS:
        _write(folder / f"{split}.jsonl", cases_of(split))
    return folder


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(map(line_of, records)), encoding="utf-8")
    return path
