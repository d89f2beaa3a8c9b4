"""How long our own code takes a question, LM and retrieval stubbed: `python tests/measure_own_code.py N`."""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import dspy  # noqa: E402

from programs.rag import AgenticRAG  # noqa: E402
from retrievers.index import MODES  # noqa: E402
from retrievers.records import Hit, Passage  # noqa: E402


class Still:
    """Finds the same at once."""

    def search(self, query: str, k: int = 10, filters: Mapping[str, Any] | None = None) -> list[Hit]:
        texts = [f"Passage {n}: {query} means {'the supply is too low; ' * 20}{n}" for n in range(k)]
        return [
            Hit(Passage(f"d{n}#0", f"d{n}", f"Title {n}", text), 1 / (n + 1), n + 1) for n, text in enumerate(texts)
        ]


def stubbed_program() -> AgenticRAG:
    """A program whose searches, judge and answer cost nothing."""
    program = AgenticRAG(dict.fromkeys(MODES, Still()))
    seen = {"quotes": ("the supply is too low",), "verdict": "sufficient", "missing": ""}
    program.judge = lambda **inputs: dspy.Prediction(**seen)
    program.answer = lambda **inputs: dspy.Prediction(answer="the supply is too low", citations=[1])
    return program


def main() -> None:
    """Ask N times, and print the milliseconds of a question: by the clock, and of the processor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=200, help="questions (200)")
    program, took = stubbed_program(), []
    for _ in range(parser.parse_args().n):
        began = time.perf_counter(), time.process_time()
        program(question="What does the lamp mean?")
        took.append((1000 * (time.perf_counter() - began[0]), 1000 * (time.process_time() - began[1])))
    wall, cpu = zip(*took, strict=True)
    sys.stdout.write(
        f"{len(took)} questions, milliseconds each: {statistics.median(wall):.1f} at P50, {min(wall):.1f} at least; "
        f"{statistics.median(cpu):.1f} of the processor\n"
    )


if __name__ == "__main__":
    main()
