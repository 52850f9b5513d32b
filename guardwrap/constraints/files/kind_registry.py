"""The registry of constraint kinds: the built-in ones, which are imported when they are used, and those of plug-ins."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from guardwrap.constraints.base import Constraint
from guardwrap.errors import ConstraintError

_OURS = {
    "all": "constraints.base.All",
    "any": "constraints.base.AnyOf",
    "arithmetic": "rules.arithmetic.Arithmetic",
    "case": "constraints.kinds.text.Case",
    "classifier": "constraints.kinds.classifier.Classifier",
    "code": "rules.code.Code",
    "copy": "rules.copies.Copy",
    "count": "constraints.kinds.count.Count",
    "depth": "rules.layout.Depth",
    "edges": "rules.layout.Edges",
    "entails": "rules.meaning.Entails",
    "finished": "constraints.kinds.text.Finished",
    "grammar": "constraints.grammar.grammar.Grammar",
    "json_schema": "constraints.json.json_schema.JSONSchema",
    "judge": "rules.judge.Judge",
    "keyword": "constraints.kinds.keyword.Keyword",
    "language": "rules.language.Language",
    "length": "constraints.kinds.text.Length",
    "no_copy": "rules.copies.NoCopy",
    "not": "constraints.base.Not",
    "numbers_from": "rules.numbers.NumbersFrom",
    "one_of": "constraints.kinds.text.OneOf",
    "only_from": "rules.only_from.OnlyFrom",
    "order": "rules.order.Order",
    "parses": "rules.parses.Parses",
    "personal_data": "rules.personal_data.PersonalData",
    "python": "constraints.kinds.function.Python",
    "quotes": "rules.copies.Quotes",
    "readability": "rules.readability.Readability",
    "regex": "constraints.kinds.text.Regex",
    "secrets": "rules.secrets.Secrets",
    "similar": "rules.meaning.Similar",
    "split": "rules.layout.Split",
    "tool_calls": "constraints.json.tool_calls.ToolCalls",
    "values": "rules.values.Values",
}
"""The class of each kind. Nothing else in guardwrap names a class of ``guardwrap.rules``."""

RULES = {path.rpartition(".")[2]: kind for kind, path in _OURS.items() if path.startswith("rules.")}
"""The kinds in ``guardwrap.rules``, by the names of their classes."""


def built_in(kind: str) -> type[Constraint]:
    """Import the class of a built-in kind."""
    module, _, name = _OURS[kind].rpartition(".")
    built: type[Constraint] = getattr(import_module(f"guardwrap.{module}"), name)
    return built


@cache
def kinds() -> dict[str, type[Constraint]]:
    """Return all kinds of constraints, as a mapping of names to classes.

    A package adds a kind through the entry point group ``guardwrap.constraints``. The entry's name is the kind, and its
    value is a frozen dataclass that derives from ``Constraint`` and has a field ``kind`` of type ``Literal["<name>"]``.
    A field of type ``Constraint`` accepts a constraint of any kind.
    """
    classes = {name: built_in(name) for name in _OURS}
    for entry in entry_points(group="guardwrap.constraints"):
        if entry.name in classes:
            raise ConstraintError(f"plug-in {entry.value!r} uses the name of another constraint kind, {entry.name!r}")
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, Constraint) and hasattr(kind, "__dataclass_fields__")):
            raise ConstraintError(f"plug-in {entry.value!r} is not a frozen dataclass that derives from Constraint")
        classes[entry.name] = kind
    return classes


def client_kinds() -> list[str]:
    """Return the kinds that the clients of a server may send."""
    return [name for name, kind in kinds().items() if kind.open_to_clients()]


def constraint_fields(kind: type[Constraint]) -> list[str]:
    """Return the fields of a kind that take constraints, or lists or mappings with constraints in them."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return [name for name, field in fields.items() if re.search(r"\bConstraint\b", str(field.type))]
