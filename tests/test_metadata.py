import pytest

from retrievers.metadata import comparable, infer_schema, normalise, parse_date


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2024-01-31", "2024-01-31"),
        ("2024/1/31", "2024-01-31"),
        ("31.01.2024", "2024-01-31"),
        ("2024年1月31日", "2024-01-31"),
        ("2024年1月", "2024-01"),
        ("31 January 2024", "2024-01-31"),
        ("Jan 31, 2024", "2024-01-31"),
        ("2024-01", "2024-01"),
        ("2024-01-31T23:30:00+01:00", "2024-01-31T22:30:00Z"),
        ("2023-09-26T17:01:22.123Z", "2023-09-26T17:01:22Z"),
    ],
)
def test_dates_of_many_forms_become_iso(text: str, iso: str) -> None:
    span = parse_date(text)
    assert span is not None
    assert span.iso == iso


@pytest.mark.parametrize(
    "text", ["01/02/2024", "2024-13-01", "2024-02-30", "0000-01-01", "yesterday", "", "Foo 3, 2024"]
)
def test_what_is_no_date_or_means_two_things_is_not_parsed(text: str) -> None:
    assert parse_date(text) is None


def test_a_span_covers_what_was_written() -> None:
    year, month, day = (parse_date(text) for text in ("2024", "2024-02", "2024-02-29"))
    assert year is not None
    assert month is not None
    assert day is not None
    assert (day.end - day.start, month.end - month.start) == (86_400, 29 * 86_400)
    assert year.start < month.start < day.start < day.end == month.end < year.end


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.5], "number"),
        ([1, "2"], "number"),
        (["1", "2"], "string"),
        ([True, False], "boolean"),
        ([True, 1], "string"),
        (["2024-01-01", "2024"], "date"),
        (["2024", "2025"], "string"),
        (["2024-01-01", "soon"], "string"),
        ([2024, "2024-01-01"], "string"),
        ([1, "1e999"], "string"),
    ],
)
def test_a_key_gets_the_one_type_that_holds_its_values(values: list, kind: str) -> None:
    assert infer_schema([{"key": value} for value in values]) == {"key": kind}


def test_values_are_brought_to_the_type_of_their_key() -> None:
    schema = {"n": "number", "d": "date", "s": "string"}
    assert normalise({"n": "3", "d": "31.1.2024", "s": True}, schema) == {"n": 3, "d": "2024-01-31", "s": "true"}
    assert normalise({"n": "2.5", "s": 7}, schema) == {"n": 2.5, "s": "7"}


def test_dates_compare_as_seconds_and_numbers_as_floats() -> None:
    assert comparable("1970-01-02", "date") == 86_400.0
    assert comparable(3, "number") == 3.0
    assert isinstance(comparable(3, "number"), float)
