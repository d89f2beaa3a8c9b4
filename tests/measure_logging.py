"""How much MLflow adds to an evaluation: `python tests/measure_logging.py N`, with an LM that takes 200 ms a call."""

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

import tiny  # noqa: E402
from scripted_server import ScriptedServer  # noqa: E402


def main() -> None:
    """Evaluate N cases, log them, and print how long both took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, help="cases")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ScriptedServer(ANSWERS, seconds=0.2) as server:
        measure(Path(scratch), args.n, args.threads, server.url)


ANSWERS = {question: answer for question, (answer, _, _) in tiny.ANSWERS.items()}


def measure(folder: Path, n: int, n_threads: int, url: str) -> None:
    """Print seconds and peak memory without and with logging."""
    import os

    os.environ["COMPILED_RAG_CACHE"] = str(folder / "cache")
    from programs.lms import bind, make_roles
    from programs.load import load_program, open_tools
    from programs.record import to_json
    from programs.tracking import track
    from retrievers import build_index
    from trainsets.cases import Case
    from trainsets.evaluation import evaluate_program
    from trainsets.results import summarise

    build_index(tiny.write_corpus(folder / "corpus.jsonl"), folder / "index")
    tools = open_tools(folder / "index")
    first = {"kind": "lookup", "lang": "en", "answer": ("140 m",), "gold_ids": ("cable",)}
    cases = [Case(id=f"c-{i}", question=f"How long may sync cable {i} be?", **first) for i in range(n)]
    records, program = folder / "records.jsonl", load_program("agentic", tools)
    with track(f"sqlite:///{folder}/mlflow.db", "measure", "evaluation") as tracked:
        began = time.monotonic()
        with bind(make_roles("openai/test", api_base=url)):
            results = evaluate_program(program, cases, records=records, describe=to_json, n_threads=n_threads)
        evaluated, peak = time.monotonic() - began, _peak_mb()
        tracked.log_data({"eval": cases}, tools.facts, "measure")
        tracked.log_evaluation("eval", results, summarise, records, {"program": "agentic"})
        logged = time.monotonic() - began - evaluated
    sys.stdout.write(
        f"{n} cases: evaluated in {evaluated:.1f} s, logged in {logged:.1f} s ({logged / evaluated:.1%}, "
        f"{logged / n * 1000:.0f} ms a case); {_peak_mb() - peak:.0f} MB more at the peak\n"
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
