"""Public sets in the shapes in which they are published become a corpus and cases that pass the check."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from trainsets.checks import check_cases
from trainsets.importing import FormatError, Imported, import_set

unclosed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HOTPOT = {
    "_id": "5a8b",
    "question": "Where was the founder of Kestrel born?",
    "answer": "Oslo",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Kestrel", 0], ["Anna Berg", 1]],
    "context": [
        ["Kestrel", ["Kestrel was founded by Anna Berg.", " It makes relays."]],
        ["Anna Berg", ["Anna Berg is an engineer.", " She was born in Oslo."]],
        ["Heron", ["Heron is a bird."]],
    ],
}
HOTPOT_ON_HUB = {
    **{key: HOTPOT[key] for key in ("question", "answer", "type", "level")},
    "id": "5a8b",
    "supporting_facts": {"title": ["Kestrel", "Anna Berg"], "sent_id": [0, 1]},
    "context": {
        "title": [title for title, _ in HOTPOT["context"]],
        "sentences": [sentences for _, sentences in HOTPOT["context"]],
    },
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Where was the founder of Kestrel born?",
    "answer": "Oslo",
    "answer_aliases": ["Oslo, Norway", "Oslo"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Heron", "paragraph_text": "Heron is a bird.", "is_supporting": False},
        {"idx": 1, "title": "Kestrel", "paragraph_text": "Founded by Anna Berg.", "is_supporting": True},
        {"idx": 2, "title": "Anna Berg", "paragraph_text": "Born in Oslo.", "is_supporting": True},
    ],
    "question_decomposition": [
        {"id": 1, "question": "founder of Kestrel", "answer": "Anna Berg", "paragraph_support_idx": 1},
        {"id": 2, "question": "where was #1 born", "answer": "Oslo", "paragraph_support_idx": 2},
    ],
}


def texts(imported: Imported) -> dict[str, str]:
    return {d["id"]: f"{d['title']}\n{d['text']}" for d in imported.documents}


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("form", ["authors", "hub", "parquet"])
def test_hotpotqa_in_each_published_form(tmp_path: Path, form: str) -> None:
    path = tmp_path / {"authors": "dev.json", "hub": "rows.jsonl", "parquet": "rows.parquet"}[form]
    if form == "authors":
        path.write_text(json.dumps([HOTPOT]))
    elif form == "hub":
        lines(path, [HOTPOT_ON_HUB])
    else:
        pd.DataFrame([HOTPOT_ON_HUB]).to_parquet(path)
    imported = import_set("hotpotqa", str(path))
    [case] = imported.cases
    assert (case.id, case.answer, case.kind, case.lang) == ("5a8b", ("Oslo",), "multi_hop", "en")
    assert [texts(imported)[id_].split("\n")[0] for id_ in case.gold_ids] == ["Kestrel", "Anna Berg"]
    assert case.gold_spans == ("Kestrel was founded by Anna Berg.", "She was born in Oslo.")
    assert len(case.candidate_ids) == len(imported.documents) == 3
    assert check_cases(imported.cases, texts(imported)) == []


def test_musique_pools_paragraphs_and_leaves_out_what_only_its_own_paragraphs_cannot_answer(tmp_path: Path) -> None:
    twin = MUSIQUE | {"answerable": False}
    other = MUSIQUE | {"id": "2hop__9_9", "question": "And who was it?", "answer": "Anna Berg", "answer_aliases": []}
    imported = import_set("musique", str(lines(tmp_path / "m.jsonl", [MUSIQUE, twin, other])))
    first, second = imported.cases
    assert first.answer == ("Oslo", "Oslo, Norway")
    assert [texts(imported)[id_].split("\n")[0] for id_ in first.gold_ids] == ["Kestrel", "Anna Berg"]
    assert second.gold_ids == first.gold_ids
    assert len(imported.documents) == 3
    assert sum(imported.left_out.values()) == 1
    assert len(import_set("musique", str(tmp_path / "m.jsonl"), limit=1).cases) == 1


@unclosed
def test_beir_brings_grades_and_drops_queries_without_a_relevant_document(tmp_path: Path) -> None:
    lines(tmp_path / "corpus.jsonl", [{"_id": "d1", "title": "T", "text": "x"}, {"_id": "2", "title": "", "text": "y"}])
    lines(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "what"}, {"_id": "q2", "text": "who"}])
    (tmp_path / "qrels").mkdir()
    rows = ["query-id\tcorpus-id\tscore", "q1\td1\t2", "q1\t2\t1", "q1\tgone\t1", "q2\td1\t0", "q3\td1\t1"]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(rows) + "\n")
    imported = import_set("beir", str(tmp_path), lang="zh")
    [case] = imported.cases
    assert (case.id, case.question, case.lang) == ("q1", "what", "zh")
    assert case.qrels == {"d1": 2, "2": 1}
    assert set(case.gold_ids) == {"d1", "2"}
    assert sum(imported.left_out.values()) == 2
    assert [d["id"] for d in imported.documents] == ["d1", "2"]


def test_a_set_on_the_hub_is_read_by_its_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    sets = {
        ("BeIR/tiny", "corpus", "corpus"): [{"_id": "d", "title": "T", "text": "x"}],
        ("BeIR/tiny", "queries", "queries"): [{"_id": "q", "text": "what"}],
        ("BeIR/tiny-qrels", "test", None): [{"query-id": "q", "corpus-id": "d", "score": 1}],
        ("hotpot_qa", "validation", "distractor"): [HOTPOT_ON_HUB],
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda path, split, name, **_: sets[path, split, name])
    assert import_set("beir", "BeIR/tiny").cases[0].gold_ids == ("d",)
    assert import_set("hotpotqa", "hotpot_qa", "validation", "distractor").cases[0].id == "5a8b"


def test_another_format_is_refused_with_the_row(tmp_path: Path) -> None:
    path = lines(tmp_path / "m.jsonl", [MUSIQUE])
    with pytest.raises(FormatError, match="row 1: KeyError 'context', expected a row of hotpotqa"):
        import_set("hotpotqa", str(path))
    with pytest.raises(FormatError, match="a folder, expected one file"):
        import_set("hotpotqa", str(tmp_path))
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(FormatError, match="no case in it"):
        import_set("hotpotqa", str(tmp_path / "none.json"))
