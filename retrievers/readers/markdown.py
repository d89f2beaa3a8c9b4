"""The lines of Markdown, which all readers write, and its tables for SQL."""

import re
from collections.abc import Iterator, Sequence

from retrievers.readers.parsed import Table, make_table, read_number
from retrievers.records import Scalar

FENCE = re.compile(r"^\s*(```|~~~)")
TABLE_ROW = re.compile(r"^\s*\|.*\|\s*$")
_HEADING = re.compile(r"^(#{1,6})\s+(\S.*)")
_CLOSING_MARKS = re.compile(r"(?:^|(?<=\s))#+$")
_MAX_HEADING = 200  # a longer line is text: it would be repeated before every passage under it
_BORDER = re.compile(r"(?<!\\)\|")
_MARKS = re.compile(r"\*\*|__|`")
_GROUPED = re.compile(r"-?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_EMPTY = frozenset(("", "-", "–", "—", "/", "n/a"))
_MIN_ROWS = 2


def read_heading(line: str) -> tuple[int, str] | None:
    """Read the level and the title of a heading; marks that close it need a space before them."""
    match = _HEADING.match(line) if line.startswith("#") else None
    title = _CLOSING_MARKS.sub("", match[2].rstrip()).rstrip() if match else ""
    return (len(match[1]), title) if match and title and len(title) <= _MAX_HEADING else None


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
        if FENCE.match(line):
            fenced = not fenced
        if not fenced and TABLE_ROW.match(line):
            lines.append(line.strip())
            continue
        if lines:
            yield heading, lines
            lines = []
        if not fenced and (found := read_heading(line)):
            heading = found[1]


def _read_rows(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[Sequence[Scalar | None]]] | None:
    """Cut the lines into a header and rows; None where a rule does not part them, or there are too few."""
    cut = [[_MARKS.sub("", cell).replace("\\|", "|").strip() for cell in _BORDER.split(line[1:-1])] for line in lines]
    if len(cut) < 2 + _MIN_ROWS or not set("".join(cut[1])) <= set("-:") or not all(cut[1]):
        return None
    return cut[0], [[_read_cell(cell) for cell in row] for row in cut[2:]]


def _read_cell(cell: str) -> Scalar | None:
    if cell.casefold() in _EMPTY:
        return None
    return read_number(cell.replace(",", "") if _GROUPED.fullmatch(cell) else cell)


def _is_numeric(column: Sequence[Scalar | None]) -> bool:
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, int | float) for value in values)
