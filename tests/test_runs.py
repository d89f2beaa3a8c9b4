from retrievers.records import Hit, Passage
from retrievers.runs import format_ranking, rank_documents


def search(query: str, k: int) -> list[Hit]:
    """40 passages of `a` before one of `b` and one of `c`."""
    ids = [*(f"a#{n}" for n in range(40)), "b#0", "c#0"]
    return [Hit(Passage(i, i.split("#")[0], "", ""), 1 / rank, rank) for rank, i in enumerate(ids[:k], start=1)]


def test_documents_rank_by_their_best_passage_however_deep_they_are() -> None:
    assert [doc_id for doc_id, _ in rank_documents(search, "q", 2)] == ["a", "b"]
    assert [doc_id for doc_id, _ in rank_documents(search, "q", 10)] == ["a", "b", "c"]


def test_trec_lines_have_six_fields_and_ranks_from_one() -> None:
    lines = list(format_ranking("q 1", [("d/1", 0.5), ("d 2", 0.25)], "hybrid"))
    assert lines == ["q%201 Q0 d/1 1 0.500000 hybrid", "q%201 Q0 d%202 2 0.250000 hybrid"]
