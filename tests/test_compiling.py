from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from predictions import Prediction, hop, ranking

from trainsets.cases import Case, CaseError, load_sample
from trainsets.compiling import Splits, describe_distance, in_probing_order, load_splits, metric, pick_unseen


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


def case(id_: str, question: str, answer: str, *gold_ids: str) -> Case:
    return Case(id=id_, question=question, answer=(answer,), gold_ids=gold_ids)


def test_cases_are_probed_in_an_order_that_starts_with_a_sample() -> None:
    cases = load_sample("train")
    order = in_probing_order(cases, 6, 20)
    assert len({one.id for one in order}) == len(order) == 20
    assert len({(one.kind, one.lang) for one in order[:6]}) == 6
    assert in_probing_order(cases, 6, 20) == order
    assert len(in_probing_order(cases[:3], 6, 20)) == 3
    assert len(in_probing_order(cases, 0, 20)) == 20


def test_the_distance_of_held_out_cases_is_told() -> None:
    train = [case("t1", "How tall is the red mast?", "9 m", "a"), case("t2", "Who paints it blue?", "Ann", "b#2")]
    same_document = case("d1", "Which colour has the old door?", "green", "b#1")
    apart = case("d2", "When does the harbour open?", "at five", "c")
    splits = Splits(train, [], [same_document, apart], [same_document, apart])
    text = "1 of 2 held-out cases rest on documents that train cases rest on too, for other facts"
    assert describe_distance(splits) == (text, True)
    leak = case("d3", "What is the height of that mast?", "9 m", "a")
    told, is_apart = describe_distance(Splits(train, [], [leak], [leak]))
    assert not is_apart
    assert told.endswith("; 1 leak, such as d3: the fact of t1 in another split: a, 9 m")


def test_demos_are_pruned_on_cases_that_none_of_them_shows_validation_cases_if_there_are_some() -> None:
    train, val = ([case(f"{name}{n}", f"{name} {n}?", "a") for n in range(4)] for name in ("train", "val"))
    assert ids(pick_unseen(Splits(train, val, [], []), {"val 1?", "train 0?"}, 9)) == ["val0", "val2", "val3"]
    assert len(pick_unseen(Splits(train, [], [], []), {"train 0?"}, 2)) == 2
    assert pick_unseen(Splits(train[:1], [], [], []), {"train 0?"}, 2) == []


def test_a_run_is_scored_by_a_number_and_becomes_demos_by_a_verdict() -> None:
    one = case("a", "Which fuse?", "F7", "d")
    example = SimpleNamespace(case=one)
    found = {"citations": ("d#0",), "hops": (hop("d#0"),), "context": ranking("d#0")}
    right, wrong = Prediction("F7", **found), Prediction("F8", **found)
    assert 0.8 < metric(example, right) <= 1.0
    assert metric(example, right, trace=[]) is True
    assert 0 < metric(example, wrong) < 0.8
    assert metric(example, wrong, trace=[]) is False
