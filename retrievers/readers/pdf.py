"""PDF files by pypdf: text of every page, without what repeats on all of them."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from io import BytesIO

from pypdf import PdfReader
from pypdf.errors import DependencyError, PyPdfError

from retrievers.readers.parsed import PAGE_BREAK, Parsed, UnreadableFile
from retrievers.records import Scalar

_EDGE_LINES = 3
_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"(?:page|p\.|seite|pág\.?)?\s*[-–—]?\s*\d{1,4}\s*(?:(?:of|/|von|de)\s*\d{1,4})?\s*[-–—]?"
    r"|第\s*\d+\s*页(?:\s*[,，/]?\s*共\s*\d+\s*页)?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?:;。！？：；…)\]）】”\"]$")
_STARTS_BLOCK = re.compile(r"\s*(?:[-*•·▪]|\d{1,3}[.)、]|[（(]\d+[)）]|#|\||第.{1,4}[章节条])")
_HAN_EDGE = re.compile("[\u3000-\u9fff\uff00-\uffef]")

# pypdf logs every oddity of a file; what matters is whether text comes out.
logging.getLogger("pypdf").setLevel(logging.CRITICAL)


def read_pdf(raw: bytes) -> Parsed:
    """Read a PDF; pages end with `PAGE_BREAK`, wrapped lines are joined.

    Raises:
        UnreadableFile: It is encrypted or corrupt, or has no text (a scan).
    """
    try:
        reader = PdfReader(BytesIO(raw))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableFile("encrypted: needs a password")
        pages = [page.extract_text().splitlines() for page in reader.pages]
        information = reader.metadata
        title = str(information.title or "").strip() if information else ""
    except DependencyError as error:
        raise UnreadableFile(f"encrypted: {error}") from None
    except (PyPdfError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OSError) as error:
        if isinstance(error, UnreadableFile):
            raise
        raise UnreadableFile(f"corrupt: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None
    text = PAGE_BREAK.join(_unwrap(page) for page in drop_repeated_edges(pages))
    if not text.strip(PAGE_BREAK + " \n"):
        raise UnreadableFile("has no text; a scan needs OCR first")
    metadata: dict[str, Scalar] = {"type": "pdf", "pages": len(pages)}
    return Parsed(title, text, metadata)


def drop_repeated_edges(pages: Sequence[Sequence[str]]) -> list[list[str]]:
    """Drop page numbers, and the headers and footers that stand on half of the pages; digits in them may differ."""
    seen: Counter[str] = Counter()
    for page in pages:
        seen.update({_mask(line) for line in _repeatable_edges(page)})
    threshold = max(3, (len(pages) + 1) // 2)
    repeated = {line for line, n in seen.items() if line and n >= threshold}
    return [_clean_edges(page, repeated) for page in pages]


def _edges(page: Sequence[str], n: int) -> list[str]:
    lines = [line for line in page if line.strip()]
    return [*lines[:n], *lines[len(lines) - n :]] if n else []


def _repeatable_edges(page: Sequence[str]) -> list[str]:
    """Take at most a third of a page from either end: the middle of a short page is its text."""
    return _edges(page, min(_EDGE_LINES, sum(bool(line.strip()) for line in page) // 3))


def _clean_edges(page: Sequence[str], repeated: set[str]) -> list[str]:
    edges, numbers = set(_repeatable_edges(page)), set(_edges(page, _EDGE_LINES))
    return [
        line
        for line in page
        if not (line in edges and _mask(line) in repeated)
        and not (line in numbers and _PAGE_NUMBER.fullmatch(line.strip()))
    ]


def _mask(line: str) -> str:
    return _DIGITS.sub("0", line.strip())


def _unwrap(lines: Sequence[str]) -> str:
    """Join lines that were broken for width: nearly full ones without an end of sentence."""
    width = max((len(line.strip()) for line in lines), default=0)
    joined: list[str] = []
    wrapped = False
    for raw in lines:
        line = raw.strip()
        if wrapped and line and not _STARTS_BLOCK.match(line):
            before = joined[-1]
            if before.endswith("-") and line[:1].islower():
                joined[-1] = before[:-1] + line
            else:
                joint = "" if _HAN_EDGE.match(before[-1]) and _HAN_EDGE.match(line) else " "
                joined[-1] = before + joint + line
        else:
            joined.append(line)
        wrapped = bool(line) and len(line) > 0.7 * width and not _SENTENCE_END.search(line)
    return "\n".join(joined)
