"""HTML files by trafilatura: the main text without menus and footers, headings and tables as Markdown."""

import logging

from trafilatura import extract, extract_metadata

from retrievers.readers.parsed import Parsed, UnreadableFile
from retrievers.readers.text import check_lines, decode
from retrievers.records import Scalar

logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
logging.getLogger("htmldate").setLevel(logging.CRITICAL)


def read_html(raw: bytes) -> Parsed:
    """Read a web page.

    Raises:
        UnreadableFile: It is binary, or has no text.
    """
    page = decode(raw)
    check_lines(page)
    text = extract(page, output_format="markdown", include_tables=True, include_comments=False, favor_recall=True)
    if not text or not text.strip():
        raise UnreadableFile("has no text")
    metadata: dict[str, Scalar] = {"type": "html"}
    found = extract_metadata(page)
    if found is not None:
        metadata |= {key: value for key in ("author", "date", "url") if (value := getattr(found, key, None))}
    return Parsed(str(found.title or "") if found is not None else "", text, metadata)
