"""The registry of constraint kinds: the built-in ones and those of plug-ins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from guardwrap.constraints.base import Constraint, Wrapper, is_built_in
from guardwrap.errors import ConstraintError


@cache
def kinds() -> dict[str, type[Constraint]]:
    """Return all kinds of constraints, as a mapping of names to classes.

    A package adds a kind through the entry point group ``guardwrap.constraints``. The entry's name is the kind, and its
    value is a frozen dataclass that derives from ``Constraint`` and has a field ``kind`` of type ``Literal["<name>"]``.
    A field of type ``Constraint`` accepts a constraint of any kind.
    """
    classes: dict[str, type[Constraint]] = {kind.kind: kind for kind in _built_in(Constraint)}
    classes = dict(sorted(classes.items()))
    for entry in entry_points(group="guardwrap.constraints"):
        if entry.name in classes:
            raise ConstraintError(f"plug-in {entry.value!r} uses the name of another constraint kind, {entry.name!r}")
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, Constraint) and hasattr(kind, "__dataclass_fields__")):
            raise ConstraintError(f"plug-in {entry.value!r} is not a frozen dataclass that derives from Constraint")
        classes[entry.name] = kind
    return classes


def _built_in(base: Any) -> Iterator[Any]:
    """Yield the classes that define a ``kind``. ``guardwrap.constraints`` has imported all of them by now."""
    for subclass in base.__subclasses__():
        if "kind" in vars(subclass) and is_built_in(subclass) and not issubclass(subclass, Wrapper):
            yield subclass
        yield from _built_in(subclass)


def client_kinds() -> list[str]:
    """Return the kinds that the clients of a server may send."""
    return [name for name, kind in kinds().items() if kind.open_to_clients()]


def constraint_fields(kind: type[Constraint]) -> list[str]:
    """Return the fields of a kind that take constraints, or lists or mappings with constraints in them."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return [name for name, field in fields.items() if re.search(r"\bConstraint\b", str(field.type))]
