import numpy as np

from retrievers.ranking import Query, rank_candidates, split_clauses


def test_questions_of_several_parts_are_cut_and_others_are_not() -> None:
    assert split_clauses("Who founded the company that made the first pump?") == [
        "Who founded the company",
        "made the first pump",
    ]
    assert split_clauses("控制器离线以后怎么办，备件多久能到？") == ["控制器离线以后怎么办", "备件多久能到"]
    assert split_clauses("how to reset the controller") == []
    assert split_clauses("E-1024") == []


def rank(dense: list[float], lexical: list[float], weight: float) -> list[int]:
    angles = np.arccos(np.clip(dense, -1, 1))
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    query = Query(np.asarray([[1, 0]], np.float32), [["word"]])
    rows = np.arange(len(dense))
    scores = rank_candidates(query, rows, vectors, lambda tokens: np.asarray(lexical, np.float32), weight)
    return np.argsort(-scores).tolist()


def test_a_blind_dense_side_changes_nothing() -> None:
    assert rank([0.1, 0.9, 0.5], [3, 1, 2], 0) == [0, 2, 1]


def test_what_both_sides_like_comes_first() -> None:
    assert rank([0.9, 0.95, 0.1, 0.0], [9, 0, 10, 1], 0.5)[0] == 0


def test_a_side_without_an_opinion_leaves_the_order_to_the_other() -> None:
    assert rank([0.2, 0.9, 0.5], [0, 0, 0], 0.5) == [1, 2, 0]
