import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retrievers.bench import BenchError, format_measurements, name_left_out, run_apart, run_bench
from retrievers.bench_synthetic import SyntheticEmbedder, prepare_corpus

ROOT = Path(__file__).parents[1]


def test_every_side_is_measured_next_to_the_bare_libraries_and_nothing_is_built_twice(tmp_path: Path) -> None:
    told: list[str] = []
    results = run_bench(300, tmp_path, told.append, dimension=16)
    names = [
        "build of BM25 alone",
        "BM25 alone",
        "build",
        "keyword",
        "dense",
        "hybrid",
        "Chroma bare",
        "rank-bm25 bare",
    ]
    assert [result.what for result in results] == names
    assert all(result.memory_mib > 10 for result in results)
    timed = [result for result in results if not result.what.startswith("build")]
    assert all(result.p50_ms is not None and 0 < result.p50_ms <= (result.p95_ms or 0) for result in timed)
    assert all((result.build_s or 0) > 0 < (result.cpu_s or 0) for result in (results[0], results[2], results[6]))
    assert all((result.import_s or 0) > 0 < (result.open_s or 0) for result in timed[:4])
    assert len(format_measurements(results).splitlines()) == 9
    built = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").glob("g*/*.f32")}
    again = run_bench(300, tmp_path, told.append, dimension=16, sides=["bm25", "keyword"])
    assert [result.what for result in again] == names[:4]
    assert (again[0], again[2]) == (results[0], results[2])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "index").glob("g*/*.f32")} == built
    assert sum("measured before" in line for line in told) == 2


def test_only_the_sides_asked_for_are_built_and_the_others_are_named(tmp_path: Path) -> None:
    results = run_bench(50, tmp_path, lambda _: None, sides=["bm25"])
    assert [result.what for result in results] == ["build of BM25 alone", "BM25 alone"]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"bm25"}
    assert name_left_out(50, ["bm25"]) == "not measured (--sides): keyword, dense, hybrid, chroma, rank-bm25"
    assert name_left_out(50, None) == ""
    assert "rank-bm25" in name_left_out(1_000_000, None)


def test_a_process_that_is_killed_is_an_error_not_a_hang() -> None:
    with pytest.raises(BenchError, match="killed"):
        run_apart(os._exit, (9,))


STEP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def test_a_step_ends_with_the_process_that_started_it() -> None:
    script = f"from retrievers.bench import run_apart; run_apart(exec, ({STEP!r},))"
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        step = int(started.stdout.readline())
        started.kill()
        # The step holds the other end of the pipe, which closes when it has ended; by itself it would take 600 s.
        has_ended, _, _ = select.select([started.stdout], [], [], 30)
        if not has_ended:
            os.kill(step, signal.SIGKILL)
        assert has_ended


def test_words_follow_zipfs_law_and_a_corpus_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    queries = prepare_corpus(path, 500)
    words = path.read_text(encoding="utf-8").split()
    counts = np.sort(np.unique(words, return_counts=True)[1])[::-1]
    assert 3 < counts[2] / counts[29] < 30
    assert all(3 <= len(query.split()) <= 6 for query in queries)
    before = path.stat().st_mtime_ns
    assert prepare_corpus(path, 500) == queries
    assert path.stat().st_mtime_ns == before


def test_synthetic_vectors_are_of_length_one_and_repeat() -> None:
    first, again = (SyntheticEmbedder(8).embed_documents(["a", "b"]) for _ in range(2))
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(first, again)


def test_synthetic_vectors_vary_as_real_ones_do() -> None:
    rows = SyntheticEmbedder().embed_documents([f"text {n}" for n in range(1_500)])
    variance = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    assert 0.35 < variance[:50].sum() / variance.sum() < 0.55
