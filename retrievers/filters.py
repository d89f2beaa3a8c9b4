"""One filter language for both sides: checked against the schema, then SQL for rows and `where` for Chroma."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrievers.metadata import FieldType, Schema, parse_date

OPERATORS = ("eq", "ne", "in", "not_in", "gt", "gte", "lt", "lte")
_RANGE = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_TO_CHROMA = {"=": "$eq", ">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}

Comparable = str | float | bool
# Comparisons that must all hold, as (operator, value).
Piece = tuple[tuple[str, Comparable], ...]


class FilterError(ValueError):
    """A filter that this index cannot answer: an unknown key, a wrong type, an unknown operator."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The value of `key` meets any of the pieces; or, negated, there is a value and it meets none."""

    key: str
    pieces: tuple[Piece, ...]
    negated: bool = False


def parse_filters(filters: Mapping[str, Any], schema: Schema) -> tuple[Condition, ...]:
    """Check `{"product": "A1", "tag": ["x", "y"], "date": {"gte": "2024-01-01"}}` against the index's schema.

    All keys must hold. A list means any of. A date bound covers what it names: `{"lte": "2024-03"}` includes all of
    March, and `"2024"` equals every day of that year. A document without the key meets no condition on it.

    Raises:
        FilterError: A key is unknown, a value has another type than the key, or an operator is unknown.
    """
    conditions: list[Condition] = []
    for key, wanted in filters.items():
        if key not in schema:
            known = ", ".join(f"{name} ({kind})" for name, kind in schema.items()) or "none"
            raise FilterError(f"filter {key}: no such key in this index; known are: {known}")
        conditions.extend(_parse_key(key, wanted, schema[key]))
    return tuple(conditions)


def to_sql(conditions: Sequence[Condition]) -> tuple[str, list[Comparable]]:
    """Write the query that selects the `doc` of every document that meets all conditions."""
    selects: list[str] = []
    parameters: list[Comparable] = []
    for condition in conditions:
        pieces = " OR ".join(" AND ".join(f"value {operator} ?" for operator, _ in piece) for piece in condition.pieces)
        selects.append(f"SELECT doc FROM fields WHERE key = ? AND {'NOT ' if condition.negated else ''}({pieces})")
        parameters.append(condition.key)
        parameters.extend(value for piece in condition.pieces for _, value in piece)
    return " INTERSECT ".join(selects), parameters


def to_where(conditions: Sequence[Condition]) -> dict[str, Any] | None:
    """Write Chroma's `where`, or None when Chroma cannot say it.

    Its `$ne` and `$nin` also match records without the key, so a negation of strings or booleans is not said with them.
    """
    clauses: list[dict[str, Any]] = []
    for condition in conditions:
        if condition.negated:
            if any(
                operator == "=" and not _is_number(value) for piece in condition.pieces for operator, value in piece
            ):
                return None
            clauses.extend(_join("$or", _negate(condition.key, piece)) for piece in condition.pieces)
        else:
            pieces = [_join("$and", [_compare(condition.key, *part) for part in piece]) for piece in condition.pieces]
            clauses.append(_join("$or", pieces))
    return _join("$and", clauses)


def _parse_key(key: str, wanted: object, kind: FieldType) -> list[Condition]:
    if isinstance(wanted, Mapping):
        return _parse_operators(key, wanted, kind)
    if isinstance(wanted, list | tuple | set | frozenset):
        return [Condition(key, _parse_list(key, wanted, kind))]
    return [Condition(key, (_equal(key, wanted, kind),))]


def _parse_operators(key: str, wanted: Mapping[str, Any], kind: FieldType) -> list[Condition]:
    if not wanted:
        raise FilterError(f"filter {key}: empty; known operators are {', '.join(OPERATORS)}")
    conditions: list[Condition] = []
    bounds: list[tuple[str, Comparable]] = []
    for operator, value in wanted.items():
        if operator in _RANGE:
            bounds.append(_bound(key, operator, value, kind))
        elif operator in ("eq", "ne"):
            conditions.append(Condition(key, (_equal(key, value, kind),), operator == "ne"))
        elif operator in ("in", "not_in"):
            conditions.append(Condition(key, _parse_list(key, value, kind), operator == "not_in"))
        else:
            raise FilterError(f"filter {key}: unknown operator {operator!r}; known are {', '.join(OPERATORS)}")
    if bounds:
        conditions.append(Condition(key, (tuple(bounds),)))
    return conditions


def _parse_list(key: str, values: object, kind: FieldType) -> tuple[Piece, ...]:
    if not isinstance(values, list | tuple | set | frozenset) or not values:
        raise FilterError(f"filter {key}: expected a list of at least one value, got {values!r}")
    return tuple(_equal(key, value, kind) for value in values)


def _equal(key: str, value: object, kind: FieldType) -> Piece:
    if kind == "date":
        start, end = _read_date(key, value)
        return ((">=", start), ("<", end))
    return (("=", _read_value(key, value, kind)),)


def _bound(key: str, operator: str, value: object, kind: FieldType) -> tuple[str, Comparable]:
    if kind == "date":
        start, end = _read_date(key, value)
        return {"gte": (">=", start), "gt": (">=", end), "lt": ("<", start), "lte": ("<", end)}[operator]
    if kind != "number":
        raise FilterError(f"filter {key}: {operator} needs a number or a date, and {key} is a {kind}")
    return _RANGE[operator], _read_value(key, value, kind)


def _read_date(key: str, value: object) -> tuple[float, float]:
    span = parse_date(value) if isinstance(value, str) else None
    if span is None:
        raise FilterError(f"filter {key}: expected a date such as 2024-01-31, got {value!r}")
    return span.start, span.end


def _read_value(key: str, value: object, kind: FieldType) -> Comparable:
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind == "string" and isinstance(value, str):
        return value
    raise FilterError(f"filter {key}: expected a {kind}, got {value!r}")


def _negate(key: str, piece: Piece) -> list[dict[str, Any]]:
    opposites: list[dict[str, Any]] = []
    for operator, value in piece:
        inverse = ("<", ">") if operator == "=" else (_OPPOSITE[operator],)
        opposites.extend(_compare(key, sign, value) for sign in inverse)
    return opposites


def _compare(key: str, operator: str, value: Comparable) -> dict[str, Any]:
    return {key: {_TO_CHROMA[operator]: value}}


def _join(operator: str, clauses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Chroma refuses `$and` and `$or` of one clause."""
    return clauses[0] if len(clauses) == 1 else {operator: list(clauses)}


def _is_number(value: Comparable) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
