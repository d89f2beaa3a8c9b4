import csv
import io
import json
import struct
import zipfile
from pathlib import Path

import docx
import openpyxl
import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from retrievers.documents import CorpusError, Reading, read_documents
from retrievers.passages import Chunker, split_document
from retrievers.readers.html import read_html
from retrievers.readers.parsed import UnreadableFile
from retrievers.readers.pdf import drop_repeated_edges, read_pdf
from retrievers.readers.tables import read_csv, read_xlsx
from retrievers.readers.text import decode, read_text
from retrievers.readers.word import read_docx
from retrievers.records import Document


def make_pdf(pages: list[list[str]], password: str | None = None) -> bytes:
    writer = PdfWriter()
    for lines in pages:
        page = writer.add_blank_page(612, 792)
        font = DictionaryObject(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
        page[NameObject("/Resources")] = DictionaryObject(
            {NameObject("/Font"): DictionaryObject({NameObject("/F1"): font})}
        )
        stream = DecodedStreamObject()
        shows = "".join(f"({line}) Tj T* " for line in lines)
        stream.set_data(f"BT /F1 12 Tf 14 TL 50 740 Td {shows}ET".encode())
        page[NameObject("/Contents")] = writer._add_object(stream)
    if password:
        writer.encrypt(password, algorithm="AES-256")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def make_docx() -> bytes:
    document = docx.Document()
    document.add_heading("Pump manual", 1)
    document.add_paragraph("Read this first.")
    document.add_heading("Repair", 2)
    document.add_paragraph("Switch it off.", style="List Bullet")
    table = document.add_table(rows=2, cols=2)
    for row, cells in enumerate((("code", "meaning"), ("E-1024", "too hot"))):
        for column, cell in enumerate(cells):
            table.cell(row, column).text = cell
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def test_pdf_pages_keep_their_numbers_and_lose_what_repeats() -> None:
    pages = [
        ["ACME Confidential", f"Page {n} of 4", f"Body of page number {n} tells about gears.", "acme.example"]
        for n in range(1, 5)
    ]
    parsed = read_pdf(make_pdf(pages))
    assert parsed.text.count("Body of page") == 4
    for gone in ("Confidential", "of 4", "acme.example"):
        assert gone not in parsed.text
    passages = split_document(
        Document("p", "", parsed.text, parsed.metadata), Chunker(16, 0), lambda text: len(text.split())
    )
    assert passages[0].metadata["page"] == 1
    assert max(int(passage.metadata["page"]) for passage in passages) > 1
    assert not any("\f" in passage.text for passage in passages)


@pytest.mark.parametrize(
    "number", ["Page 3 of 12", "3", "- 3 -", "3/12", "第 3 页 共 12 页", "第3页", "Seite 3 von 12"]
)
def test_page_numbers_of_many_forms_are_dropped(number: str) -> None:
    assert drop_repeated_edges([["Text here.", "More text.", number]]) == [["Text here.", "More text."]]


def test_a_number_in_the_middle_of_a_page_stays() -> None:
    lines = ["a", "b", "c", "d", "42", "e", "f", "g", "h"]
    assert drop_repeated_edges([lines]) == [lines]


def test_encrypted_and_scanned_and_broken_pdfs_say_so() -> None:
    with pytest.raises(UnreadableFile, match="encrypted"):
        read_pdf(make_pdf([["secret"]], password="x"))
    with pytest.raises(UnreadableFile, match="has no text"):
        read_pdf(make_pdf([[]]))
    with pytest.raises(UnreadableFile, match="corrupt"):
        read_pdf(b"%PDF-1.7\n" + bytes(range(256)) * 20)
    with pytest.raises(UnreadableFile, match="corrupt"):
        read_pdf(make_pdf([["text"]])[:300])


def test_docx_keeps_headings_lists_and_tables_in_order() -> None:
    parsed = read_docx(make_docx())
    assert parsed.title == "Pump manual"
    assert parsed.text == (
        "# Pump manual\n\nRead this first.\n\n## Repair\n\n- Switch it off.\n\n"
        "| code | meaning |\n| --- | --- |\n| E-1024 | too hot |"
    )


def test_a_zip_bomb_is_refused_before_it_is_unpacked() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b"0" * 400_000_000)
    for read in (read_docx, lambda raw: read_xlsx(raw, "x")):
        with pytest.raises(UnreadableFile, match="zip bomb"):
            read(buffer.getvalue())


@pytest.mark.parametrize("raw", [b"PK\x03\x04garbage", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 100, b"plain"])
def test_broken_and_encrypted_office_files_say_so(raw: bytes) -> None:
    for read in (read_docx, lambda raw: read_xlsx(raw, "x")):
        with pytest.raises(UnreadableFile, match=r"corrupt|encrypted"):
            read(raw)


def test_html_gives_the_main_text_without_menus() -> None:
    body = "<p>The relay opens when the coil is without current, as the manual says in detail.</p>" * 5
    menu = "<nav><a href=/>Home</a><a href=/x>Shop</a></nav>"
    table = "<table><tr><th>code</th><th>meaning</th></tr><tr><td>E-7</td><td>stuck</td></tr></table>"
    main = f"<main><h1>Relays</h1>{body}{table}</main>"
    page = f"<html><head><title>Relays</title></head><body>{menu}{main}<footer>Imprint</footer></body></html>"
    parsed = read_html(page.encode())
    assert parsed.title == "Relays"
    assert "relay opens" in parsed.text
    assert "E-7" in parsed.text
    assert "Shop" not in parsed.text


def test_csv_rows_become_titled_texts_and_a_table() -> None:
    rows, [table] = read_csv("编号,名称,price\nP-1,继电器,3.5\nP-2,电源,\n".encode("gb18030"), "parts")
    assert [(row.title, row.key) for row in rows] == [("P-1 继电器", "P-1"), ("P-2 电源", "P-2")]
    assert rows[0].text == "编号: P-1\n名称: 继电器\nprice: 3.5"
    assert rows[1].text == "编号: P-2\n名称: 电源"
    assert table.columns == ["编号", "名称", "price"]


def test_csv_with_other_separators_and_ragged_rows() -> None:
    rows, [table] = read_csv(b"name;qty\nbelt;2;extra\ngear\n", "stock")
    assert table.columns == ["name", "qty", "column 3"]
    assert [row.key for row in rows] == ["row-1", "row-2"]


def test_xlsx_sheets_become_tables_with_dates_as_iso() -> None:
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.title = "Orders"
    sheet.append(["Order ID", "Due"])
    sheet.append([7, __import__("datetime").datetime(2024, 1, 31)])
    workbook.create_sheet("Empty")
    buffer = io.BytesIO()
    workbook.save(buffer)
    rows, [table] = read_xlsx(buffer.getvalue(), "book")
    assert [(row.key, row.text) for row in rows] == [("Orders/7", "Order ID: 7\nDue: 2024-01-31")]
    assert table.name == "book Orders"


FRONT = """---
title: Valve manual
date: 2025-03-04
status: superseded
version: 2
tags: [valves, 阀门, [deep]]
owner: {name: Ada}
source: elsewhere
draft: null
---
# Heading

Text.
"""


def test_front_matter_is_metadata_and_no_text() -> None:
    parsed = read_text(FRONT.encode(), markdown=True)
    assert (parsed.title, parsed.text) == ("Valve manual", "# Heading\n\nText.\n")
    said = {"date": "2025-03-04", "status": "superseded", "version": 2, "tags": "valves, 阀门"}
    assert parsed.metadata == {"type": "markdown", **said}


@pytest.mark.parametrize(
    "text",
    ["---\n- a list\n---\nText", "---\n{ no: yaml\n---\nText", "Text\n---\nkey: value\n---\n", "---\n\n---\nText"],
)
def test_what_is_no_front_matter_stays_text(text: str) -> None:
    assert read_text(text.encode(), markdown=True).text == text
    assert read_text(FRONT.encode(), markdown=False).text == FRONT


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_chinese_is_decoded_from_every_usual_encoding(encoding: str) -> None:
    text = "控制器的错误代码是什么意思，请先断电并检查接线。" * 3
    assert decode(text.encode(encoding)) == text


def test_lines_of_mixed_encodings_are_decoded_each_by_its_own() -> None:
    raw = "第一行是统一码的文字内容\n".encode() + "第二行是国标的文字内容\n".encode("gb18030")
    assert decode(raw * 3).splitlines()[:2] == ["第一行是统一码的文字内容", "第二行是国标的文字内容"]


def test_binary_garbage_and_endless_lines_are_refused() -> None:
    for raw in (struct.pack("<500I", *range(500)), bytes(range(1, 32)) * 50):
        with pytest.raises(UnreadableFile, match="binary"):
            read_text(raw, markdown=False)
    with pytest.raises(UnreadableFile, match="line of 50,000,000 characters"):
        read_text(b"x" * 50_000_000, markdown=False)


def test_a_folder_of_good_and_bad_files_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "good.docx").write_bytes(make_docx())
    (tmp_path / "good.pdf").write_bytes(make_pdf([["Some text about pumps."]]))
    (tmp_path / "with space").mkdir()
    (tmp_path / "with space" / "ünï.md").write_text("# T\n\ntext", encoding="utf-8")
    with (tmp_path / "rows.csv").open("w", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "name"], ["1", "one"]])
    bad = {
        "empty.md": b"",
        "garbage.txt": bytes(range(256)) * 9,
        "bad.docx": b"PK",
        "bad.pdf": b"%PDF",
        "locked.pdf": make_pdf([["x"]], "p"),
        "line.txt": b"x" * 2_000_000,
        "picture.png": b"\x89PNG",
    }
    for name, raw in bad.items():
        (tmp_path / name).write_bytes(raw)
    reading = Reading()
    found = {document.doc_id for document in read_documents(tmp_path, reading)}
    assert found == {"good.docx", "good.pdf", "with space/ünï.md", "rows.csv/1"}
    assert {Path(skip.path).name for skip in reading.skipped} == set(bad)
    assert all("\n" not in skip.reason and skip.reason for skip in reading.skipped)


def test_an_index_inside_its_corpus_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text", encoding="utf-8")
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "LOCK").touch()
    (tmp_path / "i" / "b.md").write_text("text", encoding="utf-8")
    assert [document.doc_id for document in read_documents(tmp_path)] == ["a.md"]


def test_jsonl_lines_without_end_and_halves_of_surrogates(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"id": "a", "text": "x" * 21_000_000}), encoding="utf-8")
    with pytest.raises(CorpusError, match="1: text: has 21,000,000 characters"):
        list(read_documents(path))
    path.write_text('{"id": "a", "text": "half \\ud83d of a pair"}', encoding="utf-8")
    [document] = read_documents(path)
    document.text.encode("utf-8")
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(CorpusError, match="not JSON"):
        list(read_documents(path))
    path.write_text('{"id": "a", "text": "x", "metadata": {"n": NaN}}', encoding="utf-8")
    with pytest.raises(CorpusError, match="finite"):
        list(read_documents(path))
