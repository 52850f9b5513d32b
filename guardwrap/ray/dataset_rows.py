"""Rows of a dataset: prompts with ids, which determine their randomness."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from guardwrap.errors import PromptError
from guardwrap.prompt_files.prompts import Item
from guardwrap.prompt_files.records import MADE

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
