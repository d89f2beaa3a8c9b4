"""What a question says of its documents, as filters that the index really has: values it names, periods it names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from programs.periods import find_period
from programs.rules import fold
from retrievers.index import Index

# What people call kinds of documents. A word counts only where the index has such a value.
_KINDS = {
    "ticket": r"tickets?|incidents?|工单|单子|报修",
    "meeting": r"meetings?|minutes|会议|例会|会上|经营会|董事会|周会|月会",
    "notice": r"notices?|notifications?|announcements?|通知|公告|通告",
    "firmware": r"firmware|software (?:version|release)s?|固件",
    "release": r"releases?|发布",
    "contract": r"contracts?|合同",
    "invoice": r"invoices?|发票",
    "report": r"reports?|报告|报表",
    "email": r"e-?mails?|邮件",
}
_MAX_VALUES = 200


@dataclass(frozen=True, slots=True)
class Fields:
    """The metadata that an index can filter by: its schema, and the values of keys that have few."""

    schema: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, index: Index) -> "Fields":
        """Read the fields of an index."""
        schema = index.manifest.schema
        found = {key: index.field_values(key, _MAX_VALUES + 1) for key, kind in schema.items() if kind == "string"}
        values = {key: tuple(map(str, some)) for key, some in found.items() if len(some) <= _MAX_VALUES}
        return cls(schema, values)

    @property
    def date_key(self) -> str | None:
        """The key that says when a document is from: `date`, or the only one of that type."""
        keys = [key for key, kind in self.schema.items() if kind == "date"]
        return "date" if "date" in keys else keys[0] if len(keys) == 1 else None


def find_filters(question: str, fields: Fields, today: date) -> dict[str, Any] | None:
    """Return what the question says of the document it asks about, where it says enough to search by.

    A value alone is no filter: most documents on a product do not carry it as metadata. A kind of document with a
    period is one ("the ticket of last November"), and every other value that the question names narrows it further.
    """
    named = name_values(question, fields)
    period = find_period(question, today)
    kinds = [key for key, values in named.items() if set(values) & set(_KINDS)]
    if not kinds or period is None or fields.date_key is None:
        return None
    single = {key: values[0] for key, values in named.items() if len(values) == 1 and not _is_year(values[0])}
    return {**single, fields.date_key: period.as_filter()} if set(kinds) <= set(single) else None


def name_values(question: str, fields: Fields) -> dict[str, list[str]]:
    """Return the metadata values that a question names, by key; a kind of document also by what people call it."""
    text = fold(question)
    named = {key: [value for value in values if _names(text, value)] for key, values in fields.values.items()}
    return {key: values for key, values in named.items() if values}


def _names(text: str, value: str) -> bool:
    if len(value) < 2:
        return False
    plain = fold(value).replace("_", " ")
    if value not in _KINDS and plain not in text:
        return False
    words = _KINDS.get(value) or re.escape(plain)
    return re.search(rf"(?<![a-z0-9.])(?:{words})(?![a-z0-9]|[.-][a-z0-9])", text) is not None


def _is_year(value: str) -> bool:
    """A year in a question is a period; as a version of something it would shut out most of what is meant."""
    return re.fullmatch(r"(?:19|20)\d\d", value) is not None
