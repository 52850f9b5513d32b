"""Reading of rows from Parquet files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from guardwrap.errors import PromptError
from guardwrap.prompt_files.prompts import OPTIONS, Item, ReadOwn, require_prompt


def parquet_items(path: str, read_own: ReadOwn) -> Iterator[Item]:
    """Yield the rows of a file, as ``PromptSource.items`` does for lines."""
    import pyarrow
    import pyarrow.parquet

    files = sorted(Path(path).glob("*.parquet")) if Path(path).is_dir() else [Path(path)]
    if not files:
        raise PromptError(f"{path}: the folder has no .parquet files")
    for each in files:
        try:
            file = pyarrow.parquet.ParquetFile(each)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or "it is not a Parquet file"
            raise PromptError(f"cannot read {str(each)!r}: {problem}") from None
        number = 0
        with file:
            for batch in file.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    where = f"{each}:{number}"
                    fields = fields_of(where, values)
                    yield Item(where, fields, read_own(where, fields))


def fields_of(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a table row in the form of a JSON line.

    A column has the same type in all rows. Therefore null means that a field is missing, and an option may be JSON
    text.
    """
    fields = {name: value for name, value in values.items() if value is not None}
    for name, value in fields.items():
        if name in OPTIONS:
            fields[name] = _option(where, name, value)
        try:
            json.dumps(fields[name], allow_nan=False)
        except (TypeError, ValueError):
            problem = f"the column {name!r} cannot be converted to JSON; use numbers or text"
            raise PromptError(f"{where}: {problem}") from None
    return require_prompt(where, fields)


def _option(where: str, name: str, value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError:
            raise PromptError(f"{where}: {name!r} is neither a name nor JSON") from None
    return _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    """Remove the fields of a struct that only other rows have."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
