"""Split one gold set into train, dev and test: every kind and language keeps its share, related cases stay together."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from trainsets.cases import SPLITS, Case
from trainsets.checks import evidence_keys, near_duplicates

RATIOS = (0.4, 0.3, 0.3)


def split_cases(cases: Sequence[Case], ratios: Sequence[float] = RATIOS, seed: int = 0) -> dict[str, list[Case]]:
    """Split cases so that no question, near-duplicate, fact or evidence set stands in two splits.

    Cases that share one of these form a group, and a group goes whole to the split that lacks most of its kinds and
    languages; the largest groups go first, while there is still room to balance.

    Args:
        cases: the gold set.
        ratios: the shares of train, dev and test; they are scaled to sum to 1.
        seed: decides the order among groups of one size.

    Returns:
        `train`, `dev` and `test`, each in the order of `cases`.

    Raises:
        ValueError: not three shares, one infinite or below 0, or all 0.
    """
    if len(ratios) != len(SPLITS) or not all(map(math.isfinite, ratios)) or min(ratios) < 0 or not sum(ratios):
        raise ValueError(f"shares {', '.join(map(str, ratios))}, expected three for {', '.join(SPLITS)}, such as 4 3 3")
    shares = {name: ratio / sum(ratios) for name, ratio in zip(SPLITS, ratios, strict=True)}
    groups = related_groups(cases)
    random.Random(seed).shuffle(groups)
    totals = Counter((case.kind, case.lang) for case in cases)
    have: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in SPLITS}
    place: dict[str, str] = {}
    for group in sorted(groups, key=len, reverse=True):
        strata = Counter((case.kind, case.lang) for case in group)
        name = _neediest(strata, shares, totals, have)
        have[name] += strata
        place.update({case.id: name for case in group})
    return {name: [case for case in cases if place[case.id] == name] for name in SPLITS}


def related_groups(cases: Sequence[Case]) -> list[list[Case]]:
    """Group cases that must stay in one split, in the order of their first case."""
    leader = {case.id: case.id for case in cases}

    def find(id_: str) -> str:
        while leader[id_] != id_:
            leader[id_] = leader[leader[id_]]
            id_ = leader[id_]
        return id_

    first_with: dict[tuple[str, ...], str] = {}
    pairs = [(one.id, other.id) for one, other in near_duplicates(cases)]
    pairs += [(first_with.setdefault(key, case.id), case.id) for case in cases for key in evidence_keys(case)]
    for one, other in pairs:
        leader[find(other)] = find(one)
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[find(case.id)].append(case)
    return list(groups.values())


def _neediest(
    strata: Counter[tuple[str, str]],
    shares: Mapping[str, float],
    totals: Mapping[tuple[str, str], int],
    have: Mapping[str, Counter[tuple[str, str]]],
) -> str:
    """Pick the split that is furthest below its share of these strata; on a tie, of the whole set."""
    n = sum(totals.values())

    def lack(name: str) -> tuple[float, float]:
        of_strata = sum(count * (shares[name] * totals[key] - have[name][key]) for key, count in strata.items())
        return of_strata, shares[name] * n - have[name].total()

    return max((name for name in SPLITS if shares[name]), key=lack)
