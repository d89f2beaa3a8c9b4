from datetime import date
from typing import Any

import pytest

from programs.narrowing import Fields, find_filters, name_values
from retrievers import build_index, open_index

FIELDS = Fields(
    {"date": "date", "type": "string", "product": "string", "region": "string", "version": "string"},
    {
        "type": ("ticket", "meeting", "price_list"),
        "product": ("NX-200", "NX-220", "KX-330"),
        "region": ("Europe", "华东区"),
        "version": ("2025", "v1"),
    },
)
TODAY = date(2026, 5, 14)
NOVEMBER = {"gte": "2025-11-01", "lte": "2025-11-30"}


@pytest.mark.parametrize(
    ("question", "filters"),
    [
        ("Which NX-220 ticket came in November 2025?", {"type": "ticket", "product": "NX-220", "date": NOVEMBER}),
        ("2025 年 11 月华东区的工单是谁报的？", {"type": "ticket", "region": "华东区", "date": NOVEMBER}),
        ("tickets of last quarter", {"type": "ticket", "date": {"gte": "2026-01-01", "lte": "2026-03-31"}}),
        ("NX-200 or NX-220 tickets in November 2025", {"type": "ticket", "date": NOVEMBER}),  # which one is open
        ("tickets about NX-2201 in November 2025", {"type": "ticket", "date": NOVEMBER}),
    ],
)
def test_a_kind_of_document_and_a_period_are_a_filter(question: str, filters: dict[str, Any]) -> None:
    assert find_filters(question, FIELDS, TODAY) == filters


@pytest.mark.parametrize(
    "question",
    [
        "How heavy is the NX-220?",  # most documents on a product do not carry it as metadata
        "price of the NX-220 in November 2025",  # no kind of document
        "Which tickets are open?",  # no period
        "meetings and tickets in November 2025",  # two kinds
        "what notice came in November 2025?",  # a kind that this index does not have
    ],
)
def test_what_says_too_little_of_the_document_is_no_filter(question: str) -> None:
    assert find_filters(question, FIELDS, TODAY) is None


def test_an_index_without_a_date_has_no_filters_of_dates() -> None:
    bare = Fields({"type": "string"}, {"type": ("ticket",)})
    assert find_filters("the ticket of November 2025", bare, TODAY) is None
    assert Fields({"opened": "date", "closed": "date"}).date_key is None
    assert Fields({"opened": "date"}).date_key == "opened"


def test_values_are_named_whole() -> None:
    assert name_values("nx-220 and KX-330B in europe", FIELDS) == {"product": ["NX-220"], "region": ["Europe"]}


def test_the_fields_of_an_index_are_its_schema_and_its_few_values(tmp_path: Any) -> None:
    from fake_embedder import HashEmbedder
    from tiny import line_of

    lines = [
        {"id": f"d{n}", "title": "t", "text": f"text {n}", "metadata": {"type": "ab"[n % 2], "key": f"k{n}", "n": n}}
        for n in range(250)
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(map(line_of, lines)))
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index", HashEmbedder())
    index = open_index(tmp_path / "index", HashEmbedder())
    fields = Fields.of(index)
    assert fields.schema.items() >= {"type": "string", "key": "string", "n": "number"}.items()
    assert {key: values for key, values in fields.values.items() if key != "lang"} == {
        "type": ("a", "b")
    }  # a key with more values than one can choose from has none
    assert index.field_values("none") == []
