"""The kinds of constraints that exist: ours and those that other packages register."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from guardwrap.constraints.algebra import All, AnyOf, Not
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.callables import Python
from guardwrap.constraints.classifier import Classifier
from guardwrap.constraints.grammar import Grammar
from guardwrap.constraints.json_schema import JSONSchema
from guardwrap.constraints.keywords import Keyword
from guardwrap.constraints.text import Finished, Length, Regex
from guardwrap.errors import ConstraintError

__all__ = ["COMPOSITES", "kinds"]

COMPOSITES: dict[str, type[Constraint]] = {"all": All, "any": AnyOf, "not": Not}
_LEAVES: dict[str, type[Constraint]] = {
    "classifier": Classifier,
    "finished": Finished,
    "grammar": Grammar,
    "json_schema": JSONSchema,
    "keyword": Keyword,
    "length": Length,
    "python": Python,
    "regex": Regex,
}


@cache
def kinds() -> dict[str, type[Constraint]]:
    """Return the kinds that are not made of others: name to class.

    Other packages add theirs through the entry point group ``guardwrap.constraints``; each names a frozen
    dataclass that derives from Constraint and has a field ``kind`` of type ``Literal["<name>"]``.

    Raises
    ------
    ConstraintError
        If a plug-in takes a name that exists or is no such class.
    """
    found = dict(_LEAVES)
    for entry in entry_points(group="guardwrap.constraints"):
        if entry.name in found or entry.name in COMPOSITES:
            raise ConstraintError(f"plug-in {entry.value!r} takes the constraint kind {entry.name!r}, which exists")
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, Constraint) and hasattr(kind, "__dataclass_fields__")):
            raise ConstraintError(f"plug-in {entry.value!r} is not a frozen dataclass that derives from Constraint")
        found[entry.name] = kind
    return found
