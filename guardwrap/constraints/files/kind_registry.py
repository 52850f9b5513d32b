"""The registry of constraint kinds: the built-in ones and those of plug-ins."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All, AnyOf, Not
from guardwrap.constraints.detectors.language import Language
from guardwrap.constraints.detectors.personal_data import PersonalData
from guardwrap.constraints.detectors.readability import Readability
from guardwrap.constraints.detectors.secrets import Secrets
from guardwrap.constraints.grammar.grammar import Grammar
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.constraints.judges.entails import Entails
from guardwrap.constraints.judges.judge import Judge
from guardwrap.constraints.judges.similar import Similar
from guardwrap.constraints.kinds.classifier import Classifier
from guardwrap.constraints.kinds.count import Count
from guardwrap.constraints.kinds.function import Python
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Finished, Length, Regex
from guardwrap.constraints.kinds.wording import Case, OneOf
from guardwrap.constraints.languages.code_rules import Code
from guardwrap.constraints.languages.parses import Parses
from guardwrap.constraints.layout.copies import Copy
from guardwrap.constraints.layout.depth import Depth
from guardwrap.constraints.layout.edges import Edges
from guardwrap.constraints.layout.order import Order
from guardwrap.constraints.layout.split import Split
from guardwrap.constraints.quantities.arithmetic import Arithmetic
from guardwrap.constraints.quantities.source_numbers import NumbersFrom
from guardwrap.constraints.quantities.value_ranges import Values
from guardwrap.constraints.sources.no_copy import NoCopy
from guardwrap.constraints.sources.only_from import OnlyFrom
from guardwrap.constraints.sources.quotes import Quotes
from guardwrap.errors import ConstraintError

_OURS: dict[str, type[Constraint]] = {
    "all": All,
    "any": AnyOf,
    "arithmetic": Arithmetic,
    "case": Case,
    "classifier": Classifier,
    "code": Code,
    "copy": Copy,
    "count": Count,
    "depth": Depth,
    "edges": Edges,
    "entails": Entails,
    "finished": Finished,
    "grammar": Grammar,
    "json_schema": JSONSchema,
    "judge": Judge,
    "keyword": Keyword,
    "language": Language,
    "length": Length,
    "no_copy": NoCopy,
    "not": Not,
    "numbers_from": NumbersFrom,
    "one_of": OneOf,
    "only_from": OnlyFrom,
    "order": Order,
    "parses": Parses,
    "personal_data": PersonalData,
    "python": Python,
    "quotes": Quotes,
    "readability": Readability,
    "regex": Regex,
    "secrets": Secrets,
    "similar": Similar,
    "split": Split,
    "tool_calls": ToolCalls,
    "values": Values,
}


@cache
def kinds() -> dict[str, type[Constraint]]:
    """Return all kinds of constraints, as a mapping of names to classes.

    A package adds a kind through the entry point group ``guardwrap.constraints``. The entry's name is the kind, and its
    value is a frozen dataclass that derives from ``Constraint`` and has a field ``kind`` of type ``Literal["<name>"]``.
    A field of type ``Constraint`` accepts a constraint of any kind.
    """
    classes = dict(_OURS)
    for entry in entry_points(group="guardwrap.constraints"):
        if entry.name in classes:
            raise ConstraintError(f"plug-in {entry.value!r} uses the name of another constraint kind, {entry.name!r}")
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, Constraint) and hasattr(kind, "__dataclass_fields__")):
            raise ConstraintError(f"plug-in {entry.value!r} is not a frozen dataclass that derives from Constraint")
        classes[entry.name] = kind
    return classes
