"""Splits keep shares and keep related cases together, whatever the set looks like."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainsets.cases import SPLITS, Case
from trainsets.checks import check_leaks
from trainsets.splitting import related_groups, split_cases


def make(i: int, kind: str, lang: str, gold: tuple[str, ...], answer: str) -> Case:
    return Case(id=f"c{i}", question=f"q{i} w{i} v{i}", kind=kind, lang=lang, gold_ids=gold, answer=(answer,))


cases = st.lists(
    st.tuples(
        st.sampled_from(["lookup", "multi_hop"]),
        st.sampled_from(["en", "zh"]),
        st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=2, unique=True).map(tuple),
        st.sampled_from(["x", "y", "z"]),
    ),
    min_size=1,
    max_size=25,
).map(lambda rows: [make(i, *row) for i, row in enumerate(rows)])


@settings(max_examples=60)
@given(cases, st.integers(0, 3))
def test_every_case_lands_in_one_split_and_nothing_leaks(cases: list[Case], seed: int) -> None:
    splits = split_cases(cases, seed=seed)
    assert list(splits) == list(SPLITS)
    assert sorted(case.id for split in splits.values() for case in split) == sorted(case.id for case in cases)
    assert check_leaks(splits) == []
    for split in splits.values():
        assert split == [case for case in cases if case in split]


def test_shares_hold_for_every_kind_and_language() -> None:
    unrelated = [
        make(i, kind, lang, (f"d{i}",), f"a{i}")
        for i, (kind, lang) in enumerate([("lookup", "en"), ("lookup", "zh"), ("temporal", "en")] * 10)
    ]
    splits = split_cases(unrelated, (4, 3, 3))
    assert [len(splits[name]) for name in SPLITS] == [12, 9, 9]
    for name, share in zip(SPLITS, (4, 3, 3), strict=True):
        counts = Counter((case.kind, case.lang) for case in splits[name])
        assert set(counts.values()) == {share}
    assert split_cases(unrelated, seed=1) == split_cases(unrelated, seed=1)
    assert split_cases(unrelated, seed=1) != split_cases(unrelated, seed=2)


def test_related_cases_are_chained() -> None:
    chain = [make(1, "multi_hop", "en", ("a", "b"), "x"), make(2, "multi_hop", "en", ("b", "a"), "y")]
    chain += [Case(id="c3", question="q2 w2 v2"), make(4, "lookup", "en", ("z",), "x")]
    assert [[case.id for case in group] for group in related_groups(chain)] == [["c1", "c2", "c3"], ["c4"]]


def test_a_share_of_nought_stays_empty_and_nonsense_is_refused() -> None:
    some = [make(i, "lookup", "en", (f"d{i}",), "x") for i in range(6)]
    assert not split_cases(some, (1, 0, 1))["dev"]
    for ratios in ((1, 1), (0, 0, 0), (1, -1, 1), (1, float("nan"), 1), (1, float("inf"), 1)):
        with pytest.raises(ValueError, match="expected three for train, dev, test"):
            split_cases(some, ratios)
