"""CSV by the standard library and XLSX by openpyxl: every row a titled text, every sheet a table for SQL."""

import csv
import re
from collections.abc import Iterator
from io import BytesIO, StringIO
from zipfile import BadZipFile

from openpyxl import load_workbook
from openpyxl.utils.exceptions import InvalidFileException

from retrievers.readers.parsed import Parsed, Table, UnreadableFile, check_archive, make_table
from retrievers.readers.text import check_lines, decode

_ID_COLUMN = re.compile(r"(?:.*[ _-])?(?:id|no|number|code|sku)|编号|工单号|订单号|.*(?:编号|代码|单号)", re.IGNORECASE)
_NAME_COLUMN = re.compile(r"(?:.*[ _-])?(?:name|title|subject)|名称|标题|.*(?:名称|标题)", re.IGNORECASE)
_MAX_CELL = 1_000_000
_DELIMITERS = (",", ";", "\t", "|")


def read_csv(raw: bytes, name: str) -> tuple[list[Parsed], list[Table]]:
    """Read a CSV or TSV file with a header row.

    Raises:
        UnreadableFile: It is binary, broken or has no rows.
    """
    text = decode(raw)
    check_lines(text)
    header = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(_DELIMITERS, key=header.count)
    csv.field_size_limit(_MAX_CELL)
    try:
        rows = [row for row in csv.reader(StringIO(text), delimiter=delimiter) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise UnreadableFile(f"corrupt: {error}") from None
    if len(rows) < 2:
        raise UnreadableFile("has no rows below a header")
    table = make_table(name, rows[0], rows[1:])
    return list(_describe_rows(table)), [table]


def read_xlsx(raw: bytes, name: str) -> tuple[list[Parsed], list[Table]]:
    """Read every sheet of an Excel workbook that has a header row.

    Raises:
        UnreadableFile: It is corrupt, encrypted, a zip bomb, or has no rows.
    """
    if raw.startswith(b"\xd0\xcf\x11\xe0"):
        raise UnreadableFile("encrypted, or the old .xls format")
    check_archive(raw)
    try:
        workbook = load_workbook(BytesIO(raw), read_only=True, data_only=True)
        sheets = [(sheet.title, [list(row) for row in sheet.iter_rows(values_only=True)]) for sheet in workbook]
        workbook.close()
    except (InvalidFileException, BadZipFile, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        raise UnreadableFile(f"corrupt: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from None
    parsed: list[Parsed] = []
    tables: list[Table] = []
    for title, cells in sheets:
        rows = [row for row in cells if any(cell not in (None, "") for cell in row)]
        if len(rows) > 1:
            table = make_table(name if len(sheets) == 1 else f"{name} {title}", rows[0], rows[1:])
            tables.append(table)
            parsed.extend(_describe_rows(table, "" if len(sheets) == 1 else f"{title}/"))
    if not tables:
        raise UnreadableFile("has no rows below a header")
    return parsed, tables


def _describe_rows(table: Table, prefix: str = "") -> Iterator[Parsed]:
    """Write every row as lines of `column: value`, titled by its name and id."""
    id_column, name_column = _find_column(table, _ID_COLUMN, unique=True), _find_column(table, _NAME_COLUMN)
    for number, row in enumerate(table.rows, start=1):
        text = "\n".join(
            f"{column}: {cell}" for column, cell in zip(table.columns, row, strict=True) if cell is not None
        )
        parts = [str(row[place]) for place in (id_column, name_column) if place is not None and row[place] is not None]
        title = " ".join(dict.fromkeys(parts)) or f"{table.name} row {number}"
        key = f"{prefix}{row[id_column] if id_column is not None else f'row-{number}'}"
        yield Parsed(title, text, {"type": "row", "table": table.name}, key)


def _find_column(table: Table, pattern: re.Pattern[str], unique: bool = False) -> int | None:
    for place, column in enumerate(table.columns):
        values = [row[place] for row in table.rows]
        if pattern.fullmatch(column) and (not unique or (None not in values and len(set(values)) == len(values))):
            return place
    return None
