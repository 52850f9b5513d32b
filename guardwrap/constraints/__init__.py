"""How a text is judged: constraints, their algebra, and constraint files."""

from guardwrap.constraints.algebra import All, AnyOf, Not
from guardwrap.constraints.base import Constraint, Verdict
from guardwrap.constraints.callables import Python, constraint
from guardwrap.constraints.classifier import Classifier
from guardwrap.constraints.files import catalogue
from guardwrap.constraints.grammar import Grammar, csv
from guardwrap.constraints.json_schema import JSONSchema
from guardwrap.constraints.keywords import Keyword
from guardwrap.constraints.spec import ConstraintFile, dump, json_schema, load, parse
from guardwrap.constraints.text import Finished, Length, Regex, TextConstraint
from guardwrap.constraints.views import View

__all__ = [
    "All",
    "AnyOf",
    "Classifier",
    "Constraint",
    "ConstraintFile",
    "Finished",
    "Grammar",
    "JSONSchema",
    "Keyword",
    "Length",
    "Not",
    "Python",
    "Regex",
    "TextConstraint",
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
