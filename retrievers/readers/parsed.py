"""What a reader makes of a file, and how it refuses one."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from io import BytesIO

from retrievers.records import Scalar

# Ends a page in the text of a paged document; passages read their page from it.
PAGE_BREAK = "\f"

_MAX_UNZIPPED = 300_000_000
_MAX_RATIO = 200


class UnreadableFile(ValueError):  # noqa: N818
    """A file that cannot be read, and why: it is skipped and reported, the others go on."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """One document of a file. `key` tells several apart, such as the rows of a table."""

    title: str
    text: str
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a file as it stands, for SQL. Empty cells are None."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Scalar | None]]


def make_table(name: str, header: Sequence[object], rows: Sequence[Sequence[object]]) -> Table:
    """Make a table of cells as they were read: columns get different names, short rows are filled with None."""
    width = max(len(header), *(len(row) for row in rows))
    names: list[str] = []
    for place in range(width):
        column = str(header[place] if place < len(header) and header[place] is not None else "").strip()
        column = column or f"column {place + 1}"
        names.append(column if column.casefold() not in {n.casefold() for n in names} else f"{column} {place + 1}")
    padded = [[_read_cell(row[i]) if i < len(row) else None for i in range(width)] for row in rows]
    return Table(name, names, padded)


def _read_cell(cell: object) -> Scalar | None:
    if isinstance(cell, datetime):
        return cell.date().isoformat() if cell.time() == time() else cell.isoformat(timespec="seconds")
    if isinstance(cell, date | time):
        return cell.isoformat()
    if cell is None or isinstance(cell, bool | int | float):
        return cell
    return str(cell).strip() or None


def read_number(text: str) -> Scalar:
    """Read a number that stands as text, but leave codes such as `007` alone."""
    if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})\.\d+", text) else text


def check_archive(raw: bytes) -> None:
    """Refuse a zip file (DOCX, XLSX) that unpacks to far more than it holds.

    Raises:
        UnreadableFile: It does, or it is no zip file.
    """
    try:
        with zipfile.ZipFile(BytesIO(raw)) as archive:
            size = sum(info.file_size for info in archive.infolist())
    except zipfile.BadZipFile:
        raise UnreadableFile("corrupt: not a zip file") from None
    if size > _MAX_UNZIPPED or (size > 10_000_000 and size > _MAX_RATIO * len(raw)):
        raise UnreadableFile(f"unpacks from {len(raw):,} to {size:,} bytes, which looks like a zip bomb")


def format_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(_format_cell(cell) for cell in line) + " |" for line in lines)


def _format_cell(cell: object) -> str:
    return " ".join(str(cell if cell is not None else "").replace("|", "\\|").split())
