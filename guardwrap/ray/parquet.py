"""Rows of Parquet files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from guardwrap.errors import PromptError
from guardwrap.prompt_files.overrides import OPTIONS, ReadOwn
from guardwrap.prompt_files.prompts import Item, require_prompt

__all__ = ["fields_of", "parquet_items"]


def parquet_items(path: str, read_own: ReadOwn) -> Iterator[Item]:
    """Read the rows of a file one by one, as ``Source.items`` reads lines.

    Parameters
    ----------
    path
        Of the file, or of a folder of them, which are read in the order of their names.
    read_own
        Reads what a row asks for on its own.

    Raises
    ------
    PromptError
        If the file cannot be read, or a row is not well formed; the message names the row, from 1.
    """
    import pyarrow
    import pyarrow.parquet

    files = sorted(Path(path).glob("*.parquet")) if Path(path).is_dir() else [Path(path)]
    if not files:
        raise PromptError(f"{path}: no .parquet file is there")
    for each in files:
        try:
            file = pyarrow.parquet.ParquetFile(each)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or "it is no Parquet file"
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
    """Return the fields of a row of a table as a JSON line has them.

    A column has one type for all rows, so what is null is not there, and an option may be spelt as JSON text.

    Raises
    ------
    PromptError
        If a value is none that JSON can have, or there is no prompt.
    """
    fields = {name: value for name, value in values.items() if value is not None}
    for name, value in fields.items():
        if name in OPTIONS:
            fields[name] = _option(where, name, value)
        try:
            json.dumps(fields[name], allow_nan=False)
        except (TypeError, ValueError):
            raise PromptError(f"{where}: the column {name!r} has what JSON has not; make it numbers or text") from None
    return require_prompt(where, fields)


def _option(where: str, name: str, value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError:
            raise PromptError(f"{where}: {name!r} is neither a name nor JSON") from None
    return _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    """Leave out of a struct what only other rows have."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
