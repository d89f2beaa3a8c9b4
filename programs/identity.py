"""What a result depends on besides its case: code, program, LMs, index; as plain data that can be compared."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from programs.export import IndexFacts, describe_predictors
from programs.lms import MeteredLM, identify
from programs.rag import NaiveRAG

_PACKAGES = ("signatures", "retrievers", "programs", "trainsets")


def identify_program(program: NaiveRAG) -> dict[str, Any]:
    """Describe a program by its class, its bounds, its predictors and all they hold: instructions and demos."""
    return {
        "class": type(program).__name__,
        "bounds": asdict(program.bounds),
        "predictors": describe_predictors(program),
        "state": program.dump_state(),
        "tools": program.toolbox.identify(),
    }


def describe_settings(
    program: Mapping[str, Any], lms: Sequence[MeteredLM], grader: MeteredLM | None, index: IndexFacts
) -> dict[str, Any]:
    """Put together what all cases of one evaluation share."""
    return {
        "code": hash_code(),
        "program": dict(program),
        "lms": [identify(lm) for lm in lms],
        "grader": identify(grader) if grader else None,
        "index": index.model_dump(),
    }


@cache
def hash_code() -> str:
    """Digest this project's source files: a result of other code is another result."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for package in _PACKAGES for path in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
