"""Rows of a dataset or of Parquet files: prompts with ids, which determine their randomness."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardwrap.calls.prompts import OPTIONS, Item, ReadOwn, require_prompt
from guardwrap.calls.records import MADE
from guardwrap.errors import PromptError

MOST = 64
"""Maximum rows per block. The rows of a block are generated together, and are lost together if a worker dies."""


@dataclass(frozen=True)
class PromptRow:
    """A prompt with its id."""

    id: int | str  # the value of the field ``id``, or the number of the row in the input, from 0
    item: Item  # the prompt with its fields and options. ``item.own.number`` selects its random stream.
    again: int = 0  # how often it was retried before


def key_of(name: int | str) -> int:
    """Return a 64-bit hash of an id. 7 and "7" are different ids."""
    return _bits(name)


def randomness_place(row: PromptRow, *, named: bool) -> int:
    """Return the number that selects a row's random stream. It depends on the row only.

    ``named``: whether the id is a field of the row. Otherwise it is the prompt's number, as in a call without Ray,
    which therefore gives the same texts.
    """
    return key_of(row.id) if named or not isinstance(row.id, int) else row.id


def id_in(where: str, fields: Mapping[str, Any]) -> int | str | None:
    """Return the field ``id`` of a row, or None if it has none."""
    name = fields.get("id")
    if name is None or type(name) in (int, str):
        return name
    raise PromptError(f'{where}: "id" is neither a whole number nor a string')


def numbered(items: Iterable[Item]) -> Iterator[PromptRow]:
    """Yield each prompt with its id and the number of its random stream."""
    seen: set[int] = set()
    named: bool | None = None
    for number, item in enumerate(items):
        own = id_in(item.where, item.fields)
        if named is None:
            named = own is not None
        if named is not (own is not None):
            what = "has no id, but earlier rows have one" if named else "has an id, but earlier rows have none"
            raise PromptError(f'{item.where}: {what}; give all rows an "id", or none')
        row = PromptRow(number if own is None else own, item)
        if named:
            key = key_of(row.id)
            if key in seen:
                raise PromptError(f"{item.where}: the id {json.dumps(row.id)} occurs twice; ids must be unique")
            seen.add(key)
        # A row with its own seed gets the same texts as it would alone, as in a call without Ray.
        place = None if item.own.seed is not None else randomness_place(row, named=named)
        yield dataclasses.replace(row, item=dataclasses.replace(item, own=dataclasses.replace(item.own, number=place)))


def block_size(rows: int) -> int:
    """Return the number of rows per block.

    It depends on the input only, and not on the number of workers: in half precision, the rounding of a text depends
    on the texts that are generated together with it.
    """
    return max(1, min(MOST, rows // 16))


def row_digest(record: Mapping[str, Any]) -> int:
    """Return a 64-bit hash of the input fields of a row, from the row or from its record."""
    input_fields = {name: value for name, value in record.items() if name not in MADE and name != "id"}
    return _bits(input_fields)


def _bits(value: Any) -> int:
    return int.from_bytes(hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).digest(), "big")


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
