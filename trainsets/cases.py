"""Gold cases: what one is, how a file of them is read and checked, and how they become DSPy examples."""

import codecs
import json
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from trainsets.normalize import has_chinese
from trainsets.rows import RowsError, read_csv, read_hub, read_table, without_nulls

if TYPE_CHECKING:
    import dspy

SAMPLE_DIR = Path(__file__).parent / "sample"
SPLITS = ("train", "dev", "test")
SUFFIXES = (".jsonl", ".csv", ".parquet")

Text = Annotated[str, StringConstraints(pattern=r"\S")]
Texts = tuple[Text, ...]


class CaseError(ValueError):
    """A case file is not what DESIGN's table of gold-case fields says. One line: `file:line: field: what, expected`."""


class Turn(BaseModel):
    """One earlier turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["user", "assistant"]
    text: Text


class Case(BaseModel):
    """One gold case. Only `id` and `question` are shown in its repr: MIPROv2 puts reprs of examples into prompts."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Text
    question: Text
    answer: Texts = Field(default=(), repr=False)
    key_points: tuple[Texts, ...] = Field(default=(), repr=False)
    answer_groups: tuple[Texts, ...] = Field(default=(), repr=False)
    wrong_answers: Texts = Field(default=(), repr=False)
    gold_ids: Texts = Field(default=(), repr=False)
    qrels: dict[str, int] = Field(default={}, repr=False)
    answerable: bool = Field(default=True, repr=False)
    bad_ids: Texts = Field(default=(), repr=False)
    candidate_ids: Texts = Field(default=(), repr=False)
    gold_spans: Texts = Field(default=(), repr=False)
    meta: dict[str, JsonValue] = Field(default={}, repr=False)
    kind: str = Field(default="", repr=False)
    lang: str = Field(default_factory=lambda fields: _language_of(fields.get("question", "")), repr=False)
    tools: Texts = Field(default=(), repr=False)
    filters: dict[str, JsonValue] | None = Field(default=None, repr=False)
    history: tuple[Turn, ...] = Field(default=(), repr=False)


def _language_of(question: str) -> str:
    """Name the language of a case that does not: without it, Chinese would not be sampled, split and shown apart."""
    return "zh" if has_chinese(question) else "en"


Result = tuple[int, Case | CaseError]


def load_cases(path_or_hub_id: str | Path, split: str | None = None) -> list[Case]:
    """Read and check gold cases from a file, a folder of splits, or a data set on the hub.

    Args:
        path_or_hub_id: a `.jsonl`, `.csv` or `.parquet` file; a folder that holds one such file a split; or a hub id.
        split: which file of the folder, or which split of the hub set. A single file is one split as it stands.

    Returns:
        The cases in the order of the file; never an empty list.

    Raises:
        CaseError: a line that is not a valid case, a repeated id, no case at all, a split that is not there.
        FileNotFoundError: neither a file nor a folder here, nor a set on the hub.
    """
    path = Path(path_or_hub_id)
    if path.is_dir():
        return _read_file(file_of_split(path, split))
    if path.is_file():
        if split is not None:
            raise CaseError(f"{path}: one file is one split, expected a folder with {split}.jsonl or no split")
        return _read_file(path)
    if path.suffix in SUFFIXES or path.is_absolute() or str(path_or_hub_id).startswith(".") or len(path.parts) > 2:
        raise FileNotFoundError(f"{path}: no such file or folder, expected gold cases ({', '.join(SUFFIXES)})")
    return _checked(str(path_or_hub_id), _hub_rows(str(path_or_hub_id), split))


def load_sample(split: str) -> list[Case]:
    """Read one split of the sample gold set that comes with the project."""
    return load_cases(SAMPLE_DIR, split)


def load_splits(path: Path) -> dict[str, list[Case]]:
    """Read every split of a folder in the order of `SPLITS`, then by name; a file is one split named by its stem.

    Raises:
        CaseError: as `load_cases`; or the folder holds no case file.
        FileNotFoundError: nothing is there.
    """
    if not path.is_dir():
        return {path.stem: load_cases(path)}
    names = list_splits(path)
    if not names:
        raise CaseError(f"{path}: no case file in it, expected for example train.jsonl")
    return {name: load_cases(path, name) for name in names}


def list_splits(folder: Path) -> list[str]:
    """Name the splits that a folder holds a file for, in the order of `SPLITS`, then by name."""
    found = {path.stem for path in folder.iterdir() if path.suffix in SUFFIXES}
    return [*(name for name in SPLITS if name in found), *sorted(found - set(SPLITS))]


def file_of_split(folder: Path, split: str | None) -> Path:
    """Find the case file of one split of a folder.

    Raises:
        CaseError: no split is named, or the folder has no file for it.
    """
    found = {p.stem: p for p in sorted(folder.iterdir(), reverse=True) if p.suffix in SUFFIXES}
    if split not in found:
        there = ", ".join(sorted(found)) or "no case file at all"
        what = "a folder, so name a split of it (--split)" if split is None else f"split {split} is not there"
        raise CaseError(f"{folder}: {what}, expected one of: {there}")
    return found[split]


def write_cases(path: Path, cases: Iterable[Case]) -> None:
    """Write cases as JSON Lines without their defaults, all or nothing."""
    part = path.with_name(path.name + ".part")
    part.write_text("".join(to_line(case) for case in cases), encoding="utf-8")
    os.replace(part, path)


def to_line(case: Case) -> str:
    """Give the line of a case file that a case came from, or would come from."""
    return (
        json.dumps(case.model_dump(mode="json", exclude_defaults=True, exclude_unset=True), ensure_ascii=False) + "\n"
    )


def iter_results(path: Path) -> Iterator[Result]:
    """Read a case file to its end, bad lines included.

    Returns:
        Pairs of the line (of a table: the row) and the case, or what is wrong with it.

    Raises:
        CaseError: the file is of an unknown kind.
    """
    if path.suffix not in SUFFIXES:
        raise CaseError(f"{path}: unknown kind of file {path.suffix or '(no suffix)'}, expected {', '.join(SUFFIXES)}")
    rows = _jsonl_lines(path) if path.suffix == ".jsonl" else _table_rows(path)
    yield from _parsed(str(path), rows, {".csv": _json_of_csv_row, ".parquet": _json_of_row}.get(path.suffix, _decoded))


def parse_case(text: str, where: str) -> Case:
    """Check one JSON object.

    Args:
        text: the JSON.
        where: `file:line`, put in front of an error.

    Raises:
        CaseError: not JSON, a repeated key, an unknown key, a wrong type, a blank string.
    """
    try:
        json.loads(text, object_pairs_hook=_unique_keys)
        return Case.model_validate_json(text)
    except ValidationError as error:
        raise CaseError(f"{where}: {_explain(error.errors()[0])}") from None
    except ValueError as error:
        raise CaseError(f"{where}: not a JSON object ({error}), expected one gold case a line") from None


def sample(cases: Sequence[Case], n: int, seed: int = 0) -> list[Case]:
    """Pick `n` cases so that every kind and language keeps its share.

    The cases of a stratum are shuffled and spread evenly over 0..1; the `n` lowest places win. So a sample of 20 is
    part of the sample of 40 with the same seed, and a longer run goes on where a shorter one stopped.

    Returns:
        The picked cases in the order of `cases`; all of them if `n` is not smaller.

    Raises:
        ValueError: `n` is below 1.
    """
    if n < 1:
        raise ValueError(f"a sample of {n} cases, expected at least 1")
    strata: dict[tuple[str, str], list[str]] = defaultdict(list)
    for case in cases:
        strata[case.kind, case.lang].append(case.id)
    rng = random.Random(seed)
    places: dict[str, tuple[float, float]] = {}
    for key in sorted(strata):
        ids = sorted(strata[key])
        rng.shuffle(ids)
        places.update({id_: ((i + 0.5) / len(ids), rng.random()) for i, id_ in enumerate(ids)})
    picked = set(sorted(places, key=places.__getitem__)[:n])
    return [case for case in cases if case.id in picked]


def to_example(case: Case) -> "dspy.Example":
    """Wrap a case for an optimizer: the inputs are `question` and `history`, the gold stays in `case`.

    The gold answer is not a field of its own. An optimizer would show the raw pair as a demo without passages, and so
    teach the program to answer from memory.
    """
    import dspy

    history = [turn.model_dump() for turn in case.history]
    return dspy.Example(id=case.id, question=case.question, history=history, case=case).with_inputs(
        "question", "history"
    )


def _read_file(path: Path) -> list[Case]:
    return _checked(str(path), iter_results(path))


def _checked(name: str, results: Iterable[Result]) -> list[Case]:
    cases: dict[str, tuple[int, Case]] = {}
    for number, case in results:
        if isinstance(case, CaseError):
            raise case
        if case.id in cases:
            first = cases[case.id][0]
            raise CaseError(f'{name}:{number}: id: "{case.id}" stands in line {first} already, expected a new id')
        cases[case.id] = (number, case)
    if not cases:
        raise CaseError(f"{name}: no case in it, expected one JSON object a line")
    return [case for _, case in cases.values()]


def _parsed(name: str, rows: Iterable[tuple[int, Any]], to_json: Callable[[Any], str]) -> Iterator[Result]:
    for number, row in rows:
        where = f"{name}:{number}"
        try:
            yield number, parse_case(to_json(row), where)
        except CaseError as error:
            yield number, error
        except ValueError as error:
            yield number, CaseError(f"{where}: {error}")


def _jsonl_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    # Not through `datasets`: it infers one type per column, which turns a wrong type into a cast and loses the line.
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(codecs.BOM_UTF8).strip() if number == 1 else raw.strip()
            if line:
                yield number, line


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8, expected UTF-8 text") from None


def _table_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        rows = read_csv(path) if path.suffix == ".csv" else read_table(path)
    except RowsError as error:
        raise CaseError(str(error)) from None
    yield from enumerate(rows, start=1)


def _json_of_csv_row(row: dict[str, str]) -> str:
    """Build the JSON of a CSV row: the text columns as they are, every other cell is JSON, an empty cell is absent."""
    cells = {}
    for key, cell in row.items():
        if not cell or key in ("id", "question", "kind", "lang"):
            cells.update({key: cell} if cell else {})
            continue
        try:
            cells[key] = json.loads(cell)
        except ValueError:
            raise ValueError(f'{key}: the text {_shown(cell)}, expected JSON such as ["24 V"]') from None
    return json.dumps(cells, ensure_ascii=False)


def _json_of_row(row: dict[str, Any]) -> str:
    return json.dumps(without_nulls(row), ensure_ascii=False, default=str)


def _hub_rows(hub_id: str, split: str | None) -> Iterator[Result]:
    if split is None:
        raise CaseError(f"{hub_id}: a set on the hub needs a split, expected for example train or test")
    try:
        rows = read_hub(hub_id, split)
    except RowsError as error:
        raise CaseError(str(error)) from None
    yield from _parsed(hub_id, enumerate(rows, start=1), _json_of_row)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f'the key "{twice}" stands there twice')
    return dict(pairs)


_LISTS = {
    "key_points": "a list of lists of strings",
    "answer_groups": "a list of lists of strings",
    "history": 'a list of {"role", "text"}',
}
_EXPECTED = {
    "string_type": "a string",
    "string_pattern_mismatch": "a string that is not blank",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "dict_type": "an object",
    "model_type": "an object",
    "literal_error": '"user" or "assistant"',
}


def _explain(error: ErrorDetails) -> str:
    top, *rest = error["loc"] or ("case",)
    field = str(top) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)
    if error["type"] == "missing":
        return f"{field}: missing, expected a string"
    if error["type"] == "extra_forbidden":
        known = Turn.model_fields if rest else Case.model_fields
        return f"{field}: unknown key, expected one of {', '.join(known)}"
    if error["type"] == "tuple_type":
        expected = "a list of strings" if rest else _LISTS.get(str(top), "a list of strings")
    else:
        expected = _EXPECTED.get(error["type"], error["msg"])
    return f"{field}: {_shown(error['input'])}, expected {expected}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
