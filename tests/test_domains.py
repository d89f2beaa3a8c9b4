import pytest

from retrievers.domains import Collections
from retrievers.records import Hit, Passage


class Listed:
    """Ranks the passages it was given."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids

    def search(self, query: str, k: int = 10, filters: object = None) -> list[Hit]:
        return [Hit(Passage(i, i.split("#")[0], "", i), 9.0, rank) for rank, i in enumerate(self.ids[:k], start=1)]


COLLECTIONS = Collections({"hr": Listed("h1#0", "h2#0", "x#0"), "it": Listed("i1#0", "x#0")})


def test_together_the_rankings_are_fused_by_rank() -> None:
    hits = COLLECTIONS.search("q", k=10)
    assert hits[0].passage.passage_id == "x#0"  # in both
    assert {hit.passage.passage_id for hit in hits[1:3]} == {"h1#0", "i1#0"}
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]


def test_apart_only_the_named_ones_are_searched() -> None:
    assert [hit.passage.passage_id for hit in COLLECTIONS.search("q", only=["it"])] == ["i1#0", "x#0"]
    with pytest.raises(ValueError, match="unknown collection 'legal'"):
        COLLECTIONS.search("q", only=["legal"])
