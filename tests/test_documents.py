import json
import os
from pathlib import Path

import pytest
from fake_embedder import HashEmbedder

from retrievers import build_index
from retrievers.documents import CorpusError, Reading, hash_document, read_documents
from retrievers.records import Document


def write_corpus(path: Path, *records: object) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return path


def test_jsonl_lines_become_documents(tmp_path: Path) -> None:
    path = write_corpus(
        tmp_path / "c.jsonl",
        {"id": "a/b c", "title": "T", "text": "正文", "metadata": {"n": 1, "gone": None}},
        "",
        {"id": "d", "text": "x"},
    )
    assert list(read_documents(path)) == [Document("a/b c", "T", "正文", {"n": 1}), Document("d", "", "x", {})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "2: not JSON"),
        ("[1]", "2: expected an object"),
        ({"title": "t", "text": "x"}, "2: id: is missing"),
        ({"id": 7, "text": "x"}, "2: id: expected a string, got a number"),
        ({"id": "b", "text": ""}, "2: text: is missing"),
        ({"id": "b", "text": None}, "2: text: expected a string, got null"),
        ({"id": "b", "text": "x", "txet": 1}, "2: txet: unknown key"),
        (
            {"id": "b", "text": "x", "metadata": {"k": {"deep": 1}}},
            "2: metadata.k: expected a string, number or boolean, got an object",
        ),
        ({"id": "b", "text": "x", "metadata": [1]}, "2: metadata: expected an object, got a list"),
        ({"id": "b", "text": "x", "metadata": {"": 1}}, "2: metadata: '' can't be a key"),
        ({"id": "b", "text": "x", "metadata": {"$and": 1}}, "2: metadata: '$and' can't be a key"),
        ({"id": "b", "text": "x", "metadata": {"chroma:document": 1}}, "2: metadata: 'chroma:document' can't be a key"),
        ({"id": "b", "text": "x", "metadata": {"n": 10**400}}, "2: metadata.n: expected a number below 1e300"),
        ({"id": "b", "text": "x", "title": "t" * 5001}, "2: title: has 5,001 characters (the limit is 5,000)"),
        ({"id": "a", "text": "x"}, "2: id: 'a' is already used at"),
    ],
)
def test_a_broken_line_names_file_line_and_field(tmp_path: Path, line: object, message: str) -> None:
    path = write_corpus(tmp_path / "c.jsonl", {"id": "a", "text": "x"}, line)
    with pytest.raises(CorpusError) as caught:
        list(read_documents(path))
    assert str(caught.value).startswith(f"{path}:{message}")
    assert "\n" not in str(caught.value)


def test_a_folder_is_read_recursively_and_what_is_left_out_is_reported(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c.jsonl", {"id": "a", "text": "x"})
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.md").write_text("intro\n# Heading\ntext", encoding="utf-8")
    (tmp_path / "sub" / "empty.txt").write_text(" \n")
    (tmp_path / "latin.xyz").write_bytes(b"\x00\x01")
    (tmp_path / ".hidden.txt").write_text("no")
    reading = Reading()
    documents = {document.doc_id: document for document in read_documents(tmp_path, reading)}
    assert set(documents) == {"a", "sub/m.md"}
    assert documents["sub/m.md"].title == "Heading"
    assert {Path(skip.path).name for skip in reading.skipped} == {"empty.txt", "latin.xyz"}


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such file"):
        list(read_documents(tmp_path / "none"))
    with pytest.raises(CorpusError, match="no documents"):
        list(read_documents(tmp_path))


def test_the_hash_changes_with_every_field_and_not_with_the_order_of_metadata() -> None:
    base = Document("a", "t", "x", {"k": 1, "l": 2})
    others = [Document("b", "t", "x", {"k": 1, "l": 2}), Document("a", "u", "x", {"k": 1, "l": 2})]
    others += [Document("a", "t", "y", {"k": 1, "l": 2}), Document("a", "t", "x", {"k": 1, "l": "2"})]
    assert len({hash_document(document) for document in (base, *others)}) == 5
    assert hash_document(base) == hash_document(Document("a", "t", "x", {"l": 2, "k": 1}))


def test_a_name_that_is_not_utf_8_and_a_heading_without_end_are_read_all_the_same(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "c")
    for name in (b"\xb5\xe7.md", b"\xfe\xff.csv"):
        Path(os.fsdecode(bytes(tmp_path / "c") + b"/" + name)).write_text(f"# {'t' * 9_000},b\n1,2\n", encoding="utf-8")
    documents = list(read_documents(tmp_path / "c"))
    assert [(document.doc_id, len(document.title) <= 5_000) for document in documents] == [
        ("\ufffd\ufffd.md", True),
        ("\ufffd\ufffd.csv/row-1", True),
    ]
    for _ in range(2):
        report = build_index(tmp_path / "c", tmp_path / "i", HashEmbedder())
    assert (report.unchanged, report.manifest.n_documents) == (True, 2)


def test_front_matter_that_can_not_be_filtered_by_is_left_out(tmp_path: Path) -> None:
    text = f"---\nproduct: A1\n$and: 1\n'': 2\nn: 1{'0' * 400}\n---\ntext\n"
    (tmp_path / "m.md").write_text(text, encoding="utf-8")
    [document] = read_documents(tmp_path / "m.md")
    assert document.metadata == {"source": "m.md", "type": "markdown", "product": "A1"}
