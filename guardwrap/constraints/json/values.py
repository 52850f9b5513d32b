"""Which part of a constraint knows what a text says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.json.json_schema import JSONSchema

__all__ = ["parser_of"]


def parser_of(constraint: Constraint) -> Callable[[str], Any] | None:
    """Return what reads a text as JSON: the one JSONSchema that must hold of the completion. None for none or several.

    Under ``|`` and ``~`` none must hold.
    """
    parts = (part for part in _conjuncts(constraint) if isinstance(part, JSONSchema) and part.on == "completion")
    found = list(dict.fromkeys(parts))
    return found[0].parse if len(found) == 1 else None


def _conjuncts(constraint: Constraint) -> Iterator[Constraint]:
    for part in constraint.of if isinstance(constraint, All) else ():
        yield from _conjuncts(part)
    yield constraint
