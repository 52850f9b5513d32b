"""Constraints: the rules that a text must satisfy, how they combine, and the files that hold them.

Begin with ``base``, which defines ``Constraint``, ``&``, ``|`` and ``~``. ``kinds``, ``json``, ``grammar`` and
``languages`` hold the kinds of constraints, and ``files`` reads and writes them as YAML. ``verdicts``, ``checking`` and
``prefix_reader`` judge a text while it grows.
"""

from guardwrap.constraints.base import All, AnyOf, Constraint, Not
from guardwrap.constraints.detectors.language import Language
from guardwrap.constraints.detectors.personal_data import PersonalData
from guardwrap.constraints.detectors.readability import Readability
from guardwrap.constraints.detectors.secrets import Secrets
from guardwrap.constraints.files.constraint_file import ConstraintFile, catalogue, dump, json_schema, load, parse
from guardwrap.constraints.grammar.grammar import Grammar, csv
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.constraints.judges.entails import Entails
from guardwrap.constraints.judges.judge import Judge
from guardwrap.constraints.judges.similar import Similar
from guardwrap.constraints.kinds.classifier import Classifier
from guardwrap.constraints.kinds.count import Count
from guardwrap.constraints.kinds.function import Python, constraint
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Case, Finished, Length, OneOf, Regex
from guardwrap.constraints.kinds.text_constraint import TextConstraint
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
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import Part, View

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
