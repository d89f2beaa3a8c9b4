import json
from typing import Any

import pytest
from fake_embedder import HashEmbedder
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievers import build_index, open_index
from retrievers import index as index_module
from retrievers.filters import FilterError, parse_filters, to_where
from retrievers.index import Index
from retrievers.metadata import parse_date

DOCUMENTS = [
    {"product": "A1", "pages": 2, "date": "2024-01-15", "open": True},
    {"product": "A1", "pages": 2.5, "date": "2024-02-29T10:00:00Z", "open": False},
    {"product": "B2", "pages": "3", "date": "2024年3月1日", "open": True},
    {"product": "B2", "pages": 4, "date": "15.04.2024"},
    {"product": "C3", "date": "2023/12/31"},
    {"pages": 5, "date": "2025"},
    {},
]
SCHEMA = {"product": "string", "pages": "number", "date": "date", "open": "boolean", "lang": "string"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("filters")
    lines = [json.dumps({"id": f"d{n}", "text": f"word{n} shared", "metadata": m}) for n, m in enumerate(DOCUMENTS)]
    (folder / "c.jsonl").write_text("\n".join(lines), encoding="utf-8")
    build_index(folder / "c.jsonl", folder / "i", HashEmbedder())
    return open_index(folder / "i", HashEmbedder())


CASES: list[tuple[dict[str, Any], set[int]]] = [
    ({"product": "A1"}, {0, 1}),
    ({"product": ["A1", "C3"]}, {0, 1, 4}),
    ({"product": {"ne": "A1"}}, {2, 3, 4}),
    ({"product": {"not_in": ["A1", "B2"]}}, {4}),
    ({"pages": 2}, {0}),
    ({"pages": {"gte": 2.5}}, {1, 2, 3, 5}),
    ({"pages": {"gt": 2, "lt": 4}}, {1, 2}),
    ({"pages": {"ne": 2}}, {1, 2, 3, 5}),
    ({"open": True}, {0, 2}),
    ({"open": {"ne": True}}, {1}),
    ({"date": {"gte": "2024-01-01"}}, {0, 1, 2, 3, 5}),
    ({"date": {"lte": "2024-02-29"}}, {0, 1, 4}),
    ({"date": {"lt": "2024-02-29"}}, {0, 4}),
    ({"date": {"gt": "2024-02"}}, {2, 3, 5}),
    ({"date": "2024"}, {0, 1, 2, 3}),
    ({"date": ["2024-01", "2023"]}, {0, 4}),
    ({"product": "B2", "date": {"gte": "2024-04-01"}}, {3}),
    ({"product": "none"}, set()),
]


@pytest.mark.parametrize(("filters", "expected"), CASES)
@pytest.mark.parametrize("mode", ["keyword", "dense", "hybrid"])
def test_both_sides_rank_only_what_meets_the_filter(index: Index, mode, filters, expected: set[int]) -> None:
    found = {hit.passage.doc_id for hit in index.search("shared", k=20, mode=mode, filters=filters)}
    assert found == {f"d{n}" for n in expected}


@pytest.mark.parametrize(("filters", "expected"), CASES)
def test_chroma_filters_as_sql_does(index: Index, monkeypatch, filters, expected: set[int]) -> None:
    monkeypatch.setattr(index_module, "N_EXACT", 0)
    fresh = open_index(index.path, HashEmbedder())
    found = {hit.passage.doc_id for hit in fresh.search("shared", k=20, mode="dense", filters=filters)}
    assert found == {f"d{n}" for n in expected}
    where = to_where(parse_filters(filters, fresh.manifest.schema))
    if where is not None:
        vector = HashEmbedder().embed_queries(["shared"])[0]
        assert set(fresh._dense.query(vector, 20, where)) == {f"d{n}#0" for n in expected}


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"produkt": "A1"}, "no such key in this index; known are: date (date), lang (string), open (boolean)"),
        ({"pages": "2"}, "expected a number, got '2'"),
        ({"pages": True}, "expected a number, got True"),
        ({"product": 7}, "expected a string, got 7"),
        ({"product": None}, "expected a string, got None"),
        ({"open": "true"}, "expected a boolean"),
        ({"date": "soon"}, "expected a date such as 2024-01-31"),
        ({"date": 2024}, "expected a date"),
        ({"product": {"gte": "A"}}, "gte needs a number or a date"),
        ({"product": {"like": "A"}}, "unknown operator 'like'"),
        ({"product": []}, "at least one value"),
        ({"product": {}}, "empty"),
        ({"product": ["A1", 3]}, "expected a string, got 3"),
    ],
)
@pytest.mark.parametrize("mode", ["keyword", "dense", "hybrid"])
def test_a_wrong_filter_is_an_error_not_an_empty_result(
    index: Index, mode, filters: dict[str, Any], message: str
) -> None:
    with pytest.raises(FilterError) as caught:
        index.search("shared", mode=mode, filters=filters)
    assert message in str(caught.value)


def test_dates_are_shown_as_iso(index: Index) -> None:
    dates = {index.passage(f"d{n}#0").metadata.get("date") for n in range(6)}
    assert dates == {"2024-01-15", "2024-02-29T10:00:00Z", "2024-03-01", "2024-04-15", "2023-12-31", "2025"}


@settings(max_examples=60)
@given(st.dates(), st.dates(), st.sampled_from(["gt", "gte", "lt", "lte"]))
def test_day_ranges_compare_like_days(day, bound, operator: str) -> None:
    [condition] = parse_filters({"date": {operator: bound.isoformat()}}, SCHEMA)  # type: ignore[arg-type]
    [[(sign, value)]] = condition.pieces
    span = parse_date(day.isoformat())
    assert span is not None
    holds = {"<": span.start < value, ">=": span.start >= value}[sign]
    assert holds == {"gt": day > bound, "gte": day >= bound, "lt": day < bound, "lte": day <= bound}[operator]
