"""Finds the part of a constraint that can parse a text to a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.json.json_schema import JSONSchema

__all__ = ["parser_of"]


def parser_of(constraint: Constraint) -> Callable[[str], Any] | None:
    """Return ``parse`` of the only JSONSchema that the completion must satisfy; None if there is none, or several.

    A JSONSchema under ``|`` or ``~`` does not count, because the completion need not satisfy it.
    """
    parts = (part for part in _conjuncts(constraint) if isinstance(part, JSONSchema) and part.parses)
    schemas = list(dict.fromkeys(parts))
    return schemas[0].parse if len(schemas) == 1 else None


def _conjuncts(constraint: Constraint) -> Iterator[Constraint]:
    for part in constraint.of if isinstance(constraint, All) else ():
        yield from _conjuncts(part)
    yield constraint
