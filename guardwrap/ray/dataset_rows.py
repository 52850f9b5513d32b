"""Rows: prompts with names of their own, to which their randomness belongs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from guardwrap.errors import PromptError
from guardwrap.prompt_files.prompts import Item

__all__ = ["MADE", "PromptRow", "block_size", "id_in", "key_of", "numbered", "randomness_place", "row_digest"]

MADE = ("texts", "ok", "report", "reason")
"""Fields that a record has besides those of its row."""

MOST = 64
"""Rows of a block, at most: what is drawn together, and what is lost when a worker dies."""


@dataclass(frozen=True)
class PromptRow:
    """A prompt with its name.

    Parameters
    ----------
    id
        Its name in the output: its own field ``id``, or its number in the input, from 0.
    item
        The prompt with what came along. ``item.own.number`` is the place of its randomness.
    again
        How many times it was drawn for before.
    """

    id: int | str
    item: Item
    again: int = 0


def key_of(name: int | str) -> int:
    """Return 64 bits that stand for an id. 7 and "7" are two ids."""
    return _bits(name)


def randomness_place(row: PromptRow, *, named: bool) -> int:
    """Return the place of a row's randomness, which nothing but the row decides.

    Parameters
    ----------
    row
        The row.
    named
        Whether the id is the row's own. A number is the place that the prompt has in a call without Ray, which so gives
        the same texts.
    """
    return key_of(row.id) if named or not isinstance(row.id, int) else row.id


def id_in(where: str, fields: Mapping[str, Any]) -> int | str | None:
    """Return a row's own id, or None where it has none.

    Raises
    ------
    PromptError
        If it is neither a whole number nor a string.
    """
    name = fields.get("id")
    if name is None or type(name) in (int, str):
        return name
    raise PromptError(f'{where}: "id" is neither a whole number nor a string')


def numbered(items: Iterable[Item]) -> Iterator[PromptRow]:
    """Give each prompt its id and the place of its randomness.

    Parameters
    ----------
    items
        The prompts, in the order of the input.

    Raises
    ------
    PromptError
        If an id stands there twice, or some rows have one and others not.
    """
    seen: set[int] = set()
    named: bool | None = None
    for number, item in enumerate(items):
        own = id_in(item.where, item.fields)
        if named is None:
            named = own is not None
        if named is not (own is not None):
            what = "has no id, and those before it have one" if named else "has an id, and those before it have none"
            raise PromptError(f'{item.where}: {what}; give each row an "id", or none')
        row = PromptRow(number if own is None else own, item)
        if named:
            key = key_of(row.id)
            if key in seen:
                raise PromptError(f"{item.where}: the id {json.dumps(row.id)} is there already; each row needs its own")
            seen.add(key)
        # One with a seed of its own gets the texts that it gets alone, as in a call without Ray.
        place = None if item.own.seed is not None else randomness_place(row, named=named)
        yield dataclasses.replace(row, item=dataclasses.replace(item, own=dataclasses.replace(item.own, number=place)))


def block_size(rows: int) -> int:
    """Return how many rows make a block.

    It follows from the input alone: half precision rounds a text by what is drawn beside it, so what is drawn together
    must not depend on the number of workers.
    """
    return max(1, min(MOST, rows // 16))


def row_digest(record: Mapping[str, Any]) -> int:
    """Return 64 bits that stand for what a row came with, from the row or from its record."""
    came = {name: value for name, value in record.items() if name not in MADE and name != "id"}
    return _bits(came)


def _bits(value: Any) -> int:
    return int.from_bytes(hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).digest(), "big")
