"""The cases of a compile: train, validation and dev, apart from each other, and what is wanted of a run."""

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainsets.cases import Case, CaseError, list_splits, load_cases, sample, to_line
from trainsets.checks import check_leaks
from trainsets.evaluation import check_scorable
from trainsets.metrics import combined_score
from trainsets.prediction import doc_of
from trainsets.ranking import gold_of

ACCEPT_DEMO = 0.8
"""Combined score from which a run may become a demo: the answer is right and its evidence was found."""


@dataclass(frozen=True, slots=True)
class Splits:
    """What a compile is made from and measured on; no demo may show anything of the cases in `held_out`."""

    train: list[Case]
    val: list[Case]
    dev: list[Case]
    held_out: list[Case]

    def digest(self, split: str) -> str:
        """Name the cases of a split by a hash of all they hold."""
        return hashlib.sha256("".join(map(to_line, getattr(self, split))).encode()).hexdigest()[:16]


def load_splits(
    source: str | Path,
    *,
    needed_by: str,
    with_val: bool = False,
    n_train: int | None = None,
    n_dev: int | None = None,
    seed: int = 0,
) -> Splits:
    """Read the cases of a compile; validation is every fourth train case, so that dev stays unseen.

    Args:
        source: A folder of splits or a hub id.
        needed_by: The optimizer, for messages.
        with_val: Whether it scores candidates on validation cases.
        n_train: Take a stratified sample of so many train cases.
        n_dev: The same of dev cases.
        seed: Of both samples.

    Raises:
        CaseError: A split is missing or too small, or train and dev share a question.
        NoGoldAnswerError: A case can't be scored.
    """
    train, dev = load_cases(source, "train"), load_cases(source, "dev")
    if leaks := check_leaks({"train": train, "dev": dev}):
        others = f", and {len(leaks) - 1} more" if len(leaks) > 1 else ""
        raise CaseError(
            f"{source}: train and dev are not apart: {leaks[0].case_id} {leaks[0].what}{others}; list them with "
            "`python -m trainsets check`, or let `python -m trainsets split` make splits that are apart"
        )
    check_scorable([*train, *dev])
    held_out = [*dev, *_cases_of_other_splits(source)]
    train = [case for case in train if case.kind != "chitchat"]  # no LM call, nothing to learn
    train = sample(train, n_train, seed) if n_train else train
    n_needed = 2 if with_val else 1
    if len(train) < n_needed:
        raise CaseError(f"{source}: {len(train)} train cases to compile on, {needed_by} needs {n_needed} at least")
    dev = sample(dev, n_dev, seed) if n_dev else dev
    if with_val:
        return Splits([case for n, case in enumerate(train) if n % 4], train[::4], dev, held_out)
    return Splits(train, [], dev, held_out)


def _cases_of_other_splits(source: str | Path) -> list[Case]:
    folder = Path(source)
    names = list_splits(folder) if folder.is_dir() else []
    return [case for name in names if name not in ("train", "dev") for case in load_cases(folder, name)]


def in_probing_order(cases: Sequence[Case], n: int, most: int, seed: int = 0) -> list[Case]:
    """Pick a stratified sample of `most` cases, ordered so that its first `n` are a stratified sample too."""
    first = sample(cases, n, seed) if n else []
    ids = {case.id for case in first}
    return [*first, *(case for case in sample(cases, max(n, most), seed) if case.id not in ids)]


def describe_distance(splits: Splits) -> tuple[str, bool]:
    """Say how far apart the train cases and those held out are, and whether none of these leaks.

    Cases may rest on the same documents and ask for other facts of them; a leak is the same question or the same fact.
    """
    train = [*splits.train, *splits.val]
    known = {doc_of(id_) for case in train for id_ in gold_of(case)}
    evidence = [{doc_of(id_) for id_ in gold_of(case)} for case in splits.held_out]
    n_shared = sum(bool(documents) and documents <= known for documents in evidence)
    text = f"{n_shared} of {len(evidence)} held-out cases rest on documents that train cases rest on too"
    leaks = check_leaks({"train": train, "held out": splits.held_out})
    if not leaks:
        return f"{text}{', for other facts' if n_shared else ''}", True
    return f"{text}; {len(leaks)} leak, such as {leaks[0].case_id}: {leaks[0].what}", False


def pick_unseen(splits: Splits, shown: Container[str | None], n: int, seed: int = 0) -> list[Case]:
    """Pick `n` validation cases (train cases if there are none), a stratified sample; no question that was `shown`."""
    unseen = [case for case in (splits.val or splits.train) if case.question not in shown]
    return sample(unseen, n, seed) if unseen else []


def metric(example: Any, prediction: Any, trace: Any = None) -> float | bool:
    """Score a run 0..1; while demos are collected (a trace is given), say whether it may become one."""
    score = combined_score(example.case, prediction)
    return score if trace is None else score >= ACCEPT_DEMO
