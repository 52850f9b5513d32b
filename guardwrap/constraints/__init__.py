"""Constraints: the rules that a text must satisfy, how they combine, and the files that hold them.

Begin with ``base``, which defines ``Constraint``, ``&``, ``|`` and ``~``. ``kinds``, ``json`` and ``grammar`` hold the
kinds of constraints that other folders know by name; the rest are in ``guardwrap.rules``, and imported when they are
used. ``files`` reads and writes constraints as YAML. ``verdicts``, ``checking`` and ``prefix_reader`` judge a text
while it grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guardwrap.constraints.base import All, AnyOf, Constraint, Not
from guardwrap.constraints.files.constraint_data import RULES as _RULES
from guardwrap.constraints.files.constraint_data import built_in as _built_in
from guardwrap.constraints.files.constraint_file import ConstraintFile, catalogue, dump, json_schema, load, parse
from guardwrap.constraints.grammar.grammar import Grammar, csv
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.constraints.kinds.classifier import Classifier
from guardwrap.constraints.kinds.count import Count
from guardwrap.constraints.kinds.function import Python, constraint
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.share import Share
from guardwrap.constraints.kinds.text import Case, Finished, Length, OneOf, Regex
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import Part, View

if TYPE_CHECKING:
    from guardwrap.rules.arithmetic import Arithmetic
    from guardwrap.rules.code import Code
    from guardwrap.rules.copies import Copy, NoCopy, Quotes
    from guardwrap.rules.judge import Judge
    from guardwrap.rules.language import Language
    from guardwrap.rules.layout import Depth, Edges, Split
    from guardwrap.rules.meaning import Entails, Similar
    from guardwrap.rules.numbers import NumbersFrom
    from guardwrap.rules.only_from import OnlyFrom
    from guardwrap.rules.order import Order
    from guardwrap.rules.parses import Parses
    from guardwrap.rules.personal_data import PersonalData
    from guardwrap.rules.readability import Readability
    from guardwrap.rules.secrets import Secrets
    from guardwrap.rules.values import Values

__all__ = [
    "All",
    "AnyOf",
    "Arithmetic",
    "Case",
    "Classifier",
    "Code",
    "Constraint",
    "ConstraintFile",
    "Copy",
    "Count",
    "Depth",
    "Edges",
    "Entails",
    "Finished",
    "Grammar",
    "JSONSchema",
    "Judge",
    "Keyword",
    "Language",
    "Length",
    "NoCopy",
    "Not",
    "NumbersFrom",
    "OneOf",
    "OnlyFrom",
    "Order",
    "Parses",
    "Part",
    "PersonalData",
    "Python",
    "Quotes",
    "Readability",
    "Regex",
    "Secrets",
    "Share",
    "Similar",
    "Split",
    "TextConstraint",
    "ToolCalls",
    "Values",
    "Verdict",
    "View",
    "catalogue",
    "constraint",
    "csv",
    "dump",
    "json_schema",
    "load",
    "parse",
]


def __getattr__(name: str) -> Any:
    if name in _RULES:
        return _built_in(_RULES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_RULES])
