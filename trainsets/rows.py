"""Rows of a table on disk or on the hub, through `datasets`, without its cache, its progress bars or its guesses."""

import csv
import tempfile
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class RowsError(ValueError):
    """A table that `datasets` can't read, or a set or split that is not on the hub; one line."""


def read_csv(path: Path, delimiter: str = ",") -> list[Row]:
    """Read a CSV file with its header; every cell is text, as it stands in the file.

    Raises:
        RowsError: it is not a table.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        columns = next(csv.reader(file, delimiter=delimiter), [])
    if not columns:
        return []
    return _stream(
        "csv", columns, split="train", data_files=str(path), sep=delimiter, keep_default_na=False, encoding="utf-8-sig"
    )


def read_table(path: Path, limit: int | None = None) -> list[Row]:
    """Read a Parquet, JSON or JSON Lines file; keys that a row lacks are null.

    Raises:
        RowsError: it is not a table.
    """
    kind = "parquet" if path.suffix == ".parquet" else "json"
    return _stream(kind, split="train", data_files=str(path), limit=limit)


def read_hub(hub_id: str, split: str, config: str | None = None, limit: int | None = None) -> list[Row]:
    """Read a split of a set on the hub.

    Raises:
        FileNotFoundError: the hub can't be reached, or has no such set.
        RowsError: the set has no such split or configuration.
    """
    return _stream(hub_id, split=split, name=config, limit=limit)


def without_nulls(value: Any) -> Any:
    """Drop the nulls that a table puts where a row lacks a key that another row has."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _stream(path: str, columns: Sequence[str] = (), limit: int | None = None, **options: Any) -> list[Row]:
    import datasets

    features = datasets.Features({column: datasets.Value("string") for column in columns}) if columns else None
    source = options.get("data_files", path)
    # Streaming reads in place: no Arrow copy is made; what little is cached goes with the folder.
    with tempfile.TemporaryDirectory() as cache:
        try:
            rows: Iterable[Row] = datasets.load_dataset(
                path, streaming=True, features=features, cache_dir=cache, **options
            )
            return list(islice(rows, limit))
        except OSError as error:
            reason = str(error).splitlines()[0]
            raise FileNotFoundError(f"{source}: no file or folder here, and not on the hub ({reason})") from None
        except (ValueError, datasets.exceptions.DatasetGenerationError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise RowsError(f"{source}: {reason}") from None
