"""DOCX files by python-docx: headings, lists and tables in the order of the document, as Markdown."""

import re
from io import BytesIO
from zipfile import BadZipFile

import docx
from docx.opc.exceptions import PackageNotFoundError
from docx.table import Table as DocxTable
from docx.text.paragraph import Paragraph
from lxml.etree import LxmlError

from retrievers.readers.parsed import Parsed, UnreadableFile, check_archive, format_table
from retrievers.records import Scalar

_HEADING = re.compile(r"heading (\d)|标题 ?(\d)", re.IGNORECASE)


def read_docx(raw: bytes) -> Parsed:
    """Read a Word document.

    Raises:
        UnreadableFile: It is corrupt, encrypted, or a zip bomb.
    """
    if raw.startswith(b"\xd0\xcf\x11\xe0"):
        raise UnreadableFile("encrypted, or the old .doc format")
    check_archive(raw)
    try:
        document = docx.Document(BytesIO(raw))
        blocks = [_format_block(block) for block in document.iter_inner_content()]
        properties = document.core_properties
        title, modified = (properties.title or "").strip(), properties.modified or properties.created
    except (PackageNotFoundError, BadZipFile, LxmlError, KeyError, ValueError, AttributeError) as error:
        raise UnreadableFile(f"corrupt: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None
    text = "\n\n".join(block for block in blocks if block.strip())
    metadata: dict[str, Scalar] = {"type": "docx"}
    if modified is not None:
        metadata["date"] = f"{modified:%Y-%m-%d}"
    return Parsed(title or _find_title(text), text, metadata)


def _format_block(block: Paragraph | DocxTable) -> str:
    if isinstance(block, DocxTable):
        return _format_docx_table(block)
    text = block.text.strip()
    style = (block.style.name if block.style is not None else None) or ""
    if match := _HEADING.match(style):
        return f"{'#' * int(match[1] or match[2])} {text}"
    if style == "Title":
        return f"# {text}"
    return f"- {text}" if style.startswith("List") and text else text


def _format_docx_table(table: DocxTable) -> str:
    rows = [[cell.text for cell in row.cells] for row in table.rows]
    return format_table(rows[0], rows[1:]) if rows else ""


def _find_title(text: str) -> str:
    return next((line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#")), "")
