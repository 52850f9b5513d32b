"""Finds the part of a constraint that can parse a text to a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from guardwrap.constraints.base import All, Constraint
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.outcomes import Draw


def parser_of(constraint: Constraint) -> Callable[[Draw], Any] | None:
    """Return ``value_of`` of the only JSONSchema that attempts must satisfy; None if there is none, or several.

    A JSONSchema under ``|`` or ``~`` does not count, because an attempt may violate it.
    """
    parts = (part for part in _conjuncts(constraint) if isinstance(part, JSONSchema) and part.parses)
    schemas = list(dict.fromkeys(parts))
    return schemas[0].value_of if len(schemas) == 1 else None


def _conjuncts(constraint: Constraint) -> Iterator[Constraint]:
    for part in constraint.of if isinstance(constraint, All) else ():
        yield from _conjuncts(part)
    yield constraint
