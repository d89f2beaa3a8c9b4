from pathlib import Path

import numpy as np

from retrievers.bench import SyntheticEmbedder, format_measurements, run_bench, write_corpus


def test_every_side_is_measured_next_to_the_bare_libraries(tmp_path: Path) -> None:
    done: list[str] = []
    results = run_bench(300, tmp_path, lambda result: done.append(result.what), dimension=16)
    assert done == ["build", "lexical", "dense", "hybrid", "Chroma bare", "rank-bm25 bare"]
    assert all(result.memory_mib > 10 for result in results)
    assert all(result.p50_ms is not None and 0 < result.p50_ms <= (result.p95_ms or 0) for result in results[1:])
    assert len(format_measurements(results).splitlines()) == 7


def test_words_follow_zipfs_law(tmp_path: Path) -> None:
    queries = write_corpus(tmp_path / "c.jsonl", 500)
    words = (tmp_path / "c.jsonl").read_text(encoding="utf-8").split()
    counts = np.sort(np.unique(words, return_counts=True)[1])[::-1]
    assert 3 < counts[2] / counts[29] < 30
    assert all(3 <= len(query.split()) <= 6 for query in queries)


def test_synthetic_vectors_are_of_length_one_and_repeat() -> None:
    first, again = (SyntheticEmbedder(8).embed_documents(["a", "b"]) for _ in range(2))
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(first, again)
