import json
from pathlib import Path

import pytest

from retrievers.__main__ import main


def test_the_overhead_of_a_build_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(f'{{"id": "d{n}", "text": "text number {n}"}}\n' for n in range(30)), encoding="utf-8")
    work = tmp_path / "w"
    assert main(["bench", "overhead", str(corpus), "--work", str(work), "--documents", "20", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["n_passages"] == 20
    assert row["overhead"] == pytest.approx(row["build_s"] / row["bare_s"] - 1)
    assert row["cpu_overhead"] == pytest.approx(row["build_cpu_s"] / row["bare_cpu_s"] - 1)
    assert min(row[name] for name in ("bare_s", "build_s", "bare_cpu_s", "build_cpu_s")) > 0
    assert not list(work.iterdir())
