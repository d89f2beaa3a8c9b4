from pathlib import Path

import pytest
import tiny

from trainsets.cases import CaseError
from trainsets.compiling import load_splits


def ids(cases: list[object]) -> list[str]:
    return [case.id for case in cases]  # type: ignore[attr-defined]


def test_validation_is_every_fourth_train_case_and_nothing_is_in_both(tmp_path: Path) -> None:
    folder = tiny.write_cases(tmp_path)
    splits = load_splits(folder, needed_by="mipro", with_val=True)
    assert ids(splits.val) == ["train-0", "train-4"]
    assert ids(splits.train) == ["train-1", "train-2", "train-3", "train-5"]
    whole = load_splits(folder, needed_by="bootstrap")
    assert (len(whole.train), whole.val) == (6, [])


def test_everything_but_train_is_held_out_whatever_is_sampled(tmp_path: Path) -> None:
    splits = load_splits(tiny.write_cases(tmp_path), needed_by="bootstrap", n_train=2, n_dev=1)
    assert (len(splits.train), len(splits.dev)) == (2, 1)
    assert ids(splits.held_out) == ["dev-0", "dev-1", "dev-2", "test-0"]


def test_small_talk_is_not_trained_on_and_too_few_cases_are_an_error(tmp_path: Path) -> None:
    folder = tiny.write_cases(tmp_path)
    lines = [{**case, "kind": "chitchat"} for case in tiny.cases_of("train")[:5]] + tiny.cases_of("train")[5:]
    (folder / "train.jsonl").write_text("".join(map(tiny.line_of, lines)), encoding="utf-8")
    assert ids(load_splits(folder, needed_by="bootstrap").train) == ["train-5"]
    with pytest.raises(CaseError, match="1 train cases to compile on, gepa needs 2 at least"):
        load_splits(folder, needed_by="gepa", with_val=True)
