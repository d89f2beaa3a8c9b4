import json
from dataclasses import replace
from pathlib import Path

import pytest

from programs.journal import Journal, JournalError, Trial
from retrievers.locks import FolderBusy

FACTS = {"optimizer": "mipro", "seed": 3}


def trial(number: int, score: float = 0.5, program: str = "", cost: float = 0.0) -> Trial:
    return Trial(number, "mipro", score, 4, program or f"p{number}", True, 10 * number, cost)


def lines_of(journal: Journal) -> list[dict[str, object]]:
    return [json.loads(line) for line in journal.path.read_text(encoding="utf-8").splitlines()]


def test_a_trial_is_on_disk_when_it_is_added_and_read_by_the_next_attempt(tmp_path: Path) -> None:
    with Journal(tmp_path, FACTS) as journal:
        journal.add(trial(1))
        journal.add(trial(2, cost=0.25))
        assert [line.get("number") for line in lines_of(journal)] == [None, 1, 2]
    with Journal(tmp_path, FACTS) as again:
        assert again.recorded == [trial(1), trial(2, cost=0.25)]
        assert again.spent_before_usd == 0.25


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    with Journal(tmp_path, FACTS) as journal:
        journal.add(trial(1))
        journal.add(trial(2))
    whole = journal.path.read_bytes()
    for cut in (1, 5, 40):
        journal.path.write_bytes(whole[:-cut])
        with Journal(tmp_path, FACTS) as again:
            assert again.recorded == [trial(1)]
            again.add(trial(1))
            again.add(trial(2))
        assert journal.path.read_bytes() == whole


def test_walking_the_same_way_again_writes_nothing_and_going_on_does(tmp_path: Path) -> None:
    with Journal(tmp_path, FACTS) as journal:
        journal.add(trial(1))
    with Journal(tmp_path, FACTS) as again:
        again.add(trial(1))
        assert len(lines_of(again)) == 2
        again.add(trial(2))
        assert len(lines_of(again)) == 3
        assert again.differs_from is None


def test_a_program_that_is_scored_twice_is_two_trials(tmp_path: Path) -> None:
    twice = [trial(1), replace(trial(1), number=2)]
    for _ in range(2):
        with Journal(tmp_path, FACTS) as journal:
            for one in twice:
                journal.add(one)
        assert len(lines_of(journal)) == 3


def test_a_trial_that_comes_out_differently_is_noticed_and_replaces_what_followed(tmp_path: Path) -> None:
    with Journal(tmp_path, FACTS) as journal:
        for number in (1, 2, 3):
            journal.add(trial(number))
    with Journal(tmp_path, FACTS) as again:
        again.add(trial(1))
        again.add(trial(2, score=0.9))
        assert again.differs_from == 2
        assert [line.get("score") for line in lines_of(again)] == [None, 0.5, 0.9]


def test_a_restart_forgets_trials_and_starts_a_new_generation_that_is_kept(tmp_path: Path) -> None:
    with Journal(tmp_path, FACTS) as journal:
        journal.add(trial(1))
        assert journal.generation == 0
    with Journal(tmp_path, FACTS, restart=True) as fresh:
        assert (fresh.generation, fresh.recorded) == (1, [])
    with Journal(tmp_path, FACTS) as again:
        assert again.generation == 1
    with Journal(tmp_path, {"other": 1}, restart=True) as first:
        assert first.generation == 0


def test_other_facts_have_another_journal_and_the_same_one_is_not_written_twice_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path, FACTS) as journal, Journal(tmp_path, {**FACTS, "seed": 4}) as other:
        assert journal.path != other.path
        with pytest.raises(FolderBusy, match=r"process \d+ .* is writing this compile"):
            Journal(tmp_path, FACTS)
    Journal(tmp_path, FACTS).close()


START = '{"generation": 0, "facts": {}}\n'
TRIAL = START + (
    '{"number": 1, "stage": "a", "score": %s, "n_cases": 1, "program": "p", "is_best": true, "lm_calls": 1, '
    '"cost_usd": 0}\n'
)


@pytest.mark.parametrize(
    "text",
    [
        *("", "no json\n", "[]\n", '{"generation": 0}\n{"number": 1}\n', '{"a": 1}\n', "\n", "[" * 100_000 + "\n"),
        '{"generation": "x", "facts": {}}\n',
        *(TRIAL % score for score in ("NaN", '"0.5"', "null")),
    ],
)
def test_a_file_that_is_no_journal_is_one_clear_error(tmp_path: Path, text: str) -> None:
    with Journal(tmp_path, FACTS) as journal:
        pass
    journal.path.write_text(text, encoding="utf-8")
    with pytest.raises(JournalError, match=r"journal.jsonl: not the journal of a compile"):
        Journal(tmp_path, FACTS)
    journal.path.unlink()
    Journal(tmp_path, FACTS).close()  # and nothing is locked
