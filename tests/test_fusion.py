import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievers.fusion import combine_scores, fuse_ranks


def test_reciprocal_ranks_count_from_one() -> None:
    assert fuse_ranks([[7, 8], [8]]) == pytest.approx({7: 1 / 61, 8: 1 / 62 + 1 / 61})


def test_a_side_that_cannot_tell_candidates_apart_changes_nothing() -> None:
    side = np.array([3, 1, 2], np.float32)
    fused = combine_scores([side, np.full(3, 5, np.float32)], [0.5, 0.5])
    assert np.argsort(-fused).tolist() == [0, 2, 1]


def test_a_weight_of_zero_leaves_the_other_ranking() -> None:
    good, bad = np.array([3, 1, 2], np.float32), np.array([0, 9, 1], np.float32)
    assert np.argsort(-combine_scores([good, bad], [1, 0])).tolist() == [0, 2, 1]


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=20))
def test_combined_scores_stay_between_zero_and_the_sum_of_weights(values: list[float]) -> None:
    side = np.array(values, np.float32)
    fused = combine_scores([side, -side], [0.5, 0.5])
    assert (fused >= -1e-6).all()
    assert (fused <= 1 + 1e-6).all()


def test_no_candidates_fuse_to_nothing() -> None:
    empty = np.empty(0, np.float32)
    assert combine_scores([empty, empty], [0.5, 0.5]).tolist() == []
