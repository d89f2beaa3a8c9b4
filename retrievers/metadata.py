"""Metadata with one type a key: inferred over the corpus, normalised, dates as ISO and as seconds."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from retrievers.records import Scalar

FieldType = Literal["string", "number", "boolean", "date"]
Schema = Mapping[str, FieldType]

_MONTHS = {
    name: number
    for number, names in enumerate(
        "january february march april may june july august september october november december".split(),
        start=1,
    )
    for name in (names, names[:3])
} | {"sept": 9}
_TIME = r"(?:[T ](?P<hour>\d{2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.\d+)?)?\s*(?P<zone>Z|[+-]\d{2}:?\d{2})?)?"
_DATES = [
    re.compile(rf"(?P<year>\d{{4}})-(?P<month>\d{{1,2}})(?:-(?P<day>\d{{1,2}}){_TIME})?"),
    re.compile(rf"(?P<year>\d{{4}})/(?P<month>\d{{1,2}})/(?P<day>\d{{1,2}}){_TIME}"),
    re.compile(r"(?P<year>\d{4})\.(?P<month>\d{1,2})\.(?P<day>\d{1,2})"),
    re.compile(r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})"),
    re.compile(r"(?P<year>\d{4})\s*年\s*(?P<month>\d{1,2})\s*月(?:\s*(?P<day>\d{1,2})\s*[日号])?"),
    re.compile(r"(?P<day>\d{1,2})\s+(?P<name>[A-Za-z]+)\.?,?\s+(?P<year>\d{4})"),
    re.compile(r"(?P<name>[A-Za-z]+)\.?\s+(?P<day>\d{1,2}),?\s+(?P<year>\d{4})"),
]
_YEAR = re.compile(r"\d{4}")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A date as it was written: its ISO form, and the seconds since 1970 (UTC) it spans, end excluded."""

    iso: str
    start: float
    end: float


def parse_date(text: str) -> DateSpan | None:
    """Parse ISO dates, months, years and times, `2024/01/31`, `31.1.2024`, `2024年1月31日`, `31 Jan 2024`.

    `01/02/2024` is not parsed: it means two things. A time without a zone is UTC.
    """
    text = text.strip()
    if _YEAR.fullmatch(text):
        return _make_span({"year": text})
    for pattern in _DATES:
        if match := pattern.fullmatch(text):
            return _make_span({key: value for key, value in match.groupdict().items() if value is not None})
    return None


def infer_schema(metadatas: Iterable[Mapping[str, Scalar]]) -> dict[str, FieldType]:
    """Give every key the one type that holds all its values; what has no other common type is a string."""
    seen: dict[str, set[str]] = {}
    for metadata in metadatas:
        for key, value in metadata.items():
            seen.setdefault(key, set()).add(classify(value))
    return {key: _resolve(classes) for key, classes in sorted(seen.items())}


def normalise(metadata: Mapping[str, Scalar], schema: Schema) -> dict[str, Scalar]:
    """Bring values to their key's type: numbers as numbers, dates as ISO, the rest as strings."""
    return {key: _normalise_value(value, schema[key]) for key, value in metadata.items()}


def comparable(value: Scalar, field_type: FieldType) -> str | float | bool:
    """Turn a normalised value into what filters compare: dates become the seconds at which they start."""
    if field_type == "date" and (span := parse_date(str(value))):
        return span.start
    return float(value) if field_type == "number" else value


def _make_span(parts: Mapping[str, str]) -> DateSpan | None:
    month = int(parts["month"]) if "month" in parts else _MONTHS.get(parts.get("name", "january").lower(), 0)
    try:
        start = datetime(int(parts["year"]), month, int(parts.get("day", 1)), tzinfo=UTC)
        if "hour" in parts:
            return _make_moment(start, parts)
        if "day" in parts:
            return DateSpan(f"{start:%Y-%m-%d}", start.timestamp(), (start + timedelta(days=1)).timestamp())
        if "month" in parts:
            following = start.replace(year=start.year + month // 12, month=month % 12 + 1)
            return DateSpan(f"{start:%Y-%m}", start.timestamp(), following.timestamp())
        return DateSpan(f"{start:%Y}", start.timestamp(), start.replace(year=start.year + 1).timestamp())
    except (ValueError, OverflowError):
        return None


def _make_moment(day: datetime, parts: Mapping[str, str]) -> DateSpan:
    moment = day.replace(hour=int(parts["hour"]), minute=int(parts["minute"]), second=int(parts.get("second", 0)))
    zone = parts.get("zone", "Z").replace(":", "")
    if zone != "Z":
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[3:5]))
        moment = moment - offset if zone[0] == "+" else moment + offset
    seconds = 1 if "second" in parts else 60
    return DateSpan(f"{moment:%Y-%m-%dT%H:%M:%SZ}", moment.timestamp(), moment.timestamp() + seconds)


def classify(value: Scalar) -> str:
    """Tell what a value looks like: boolean, number, year, numeric (a string), date or string."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if _YEAR.fullmatch(value.strip()):
        return "year"
    if _NUMBER.fullmatch(value.strip()):
        return "numeric" if math.isfinite(float(value)) else "string"
    return "date" if parse_date(value) else "string"


def _resolve(classes: set[str]) -> FieldType:
    if classes == {"boolean"}:
        return "boolean"
    if "number" in classes and classes <= {"number", "numeric", "year"}:
        return "number"
    if "date" in classes and classes <= {"date", "year"}:
        return "date"
    return "string"


def _normalise_value(value: Scalar, field_type: FieldType) -> Scalar:
    if field_type == "date" and (span := parse_date(str(value))):
        return span.iso
    if field_type == "number" and isinstance(value, str):
        number = float(value)
        return int(number) if number.is_integer() else number
    if field_type == "string" and not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value
