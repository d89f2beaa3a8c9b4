"""Tables in Markdown, in which all readers write the tables of their documents, for SQL."""

import re
from collections.abc import Iterator, Sequence

from retrievers.readers.parsed import Table, make_table
from retrievers.records import Scalar

_ROW = re.compile(r"\s*\|.*\|\s*")
_FENCE = re.compile(r"\s*(```|~~~)")
_HEADING = re.compile(r"#{1,6}\s+(.+?)\s*#*\s*")
_BORDER = re.compile(r"(?<!\\)\|")
_MARKS = re.compile(r"\*\*|__|`")
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?(?:0|[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,17})\.\d+")
_EMPTY = frozenset(("", "-", "–", "—", "/", "n/a"))
_MIN_ROWS = 2


def find_tables(text: str, title: str) -> list[Table]:
    """Find the tables of a document that have rows to add up or compare: at least two, and a column of numbers.

    Each is named after its document and, where there are several, the heading it stands under.
    """
    if "\n|" not in text and not text.startswith("|"):
        return []
    found = [(heading, *cells) for heading, lines in _find_rows(text) if (cells := _read_rows(lines))]
    tables = [
        make_table(f"{title} {heading}".strip() if len(found) > 1 or not title else title, header, rows)
        for heading, header, rows in found
    ]
    return [table for table in tables if any(map(_is_numeric, zip(*table.rows, strict=True)))]


def _find_rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """Give the lines of each table with the last heading before it; code is left alone."""
    heading, lines, fenced = "", list[str](), False
    for line in [*text.splitlines(), ""]:
        if _FENCE.match(line):
            fenced = not fenced
        if not fenced and _ROW.fullmatch(line):
            lines.append(line.strip())
            continue
        if lines:
            yield heading, lines
            lines = []
        if not fenced and (match := _HEADING.fullmatch(line)):
            heading = match[1]


def _read_rows(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[Sequence[Scalar | None]]] | None:
    """Cut the lines into a header and rows; None where a rule does not part them, or there are too few."""
    cut = [[_MARKS.sub("", cell).replace("\\|", "|").strip() for cell in _BORDER.split(line[1:-1])] for line in lines]
    if len(cut) < 2 + _MIN_ROWS or not set("".join(cut[1])) <= set("-:") or not all(cut[1]):
        return None
    return cut[0], [[_read_cell(cell) for cell in row] for row in cut[2:]]


def _read_cell(cell: str) -> Scalar | None:
    if cell.casefold() in _EMPTY:
        return None
    if _INTEGER.fullmatch(cell):
        return int(cell.replace(",", ""))
    return float(cell.replace(",", "")) if _DECIMAL.fullmatch(cell) else cell


def _is_numeric(column: Sequence[Scalar | None]) -> bool:
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, int | float) for value in values)
