"""Constraints with placeholders, which are filled with the values of a row or a call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.combinators import All, AnyOf, Not
from guardwrap.constraints.files.constraint_data import read_constraint
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.constraints.text_parts import MESSAGE
from guardwrap.documents.limits import MAX_BYTES, MAX_ITEMS
from guardwrap.documents.validation import Document, Invalid
from guardwrap.documents.yaml_nodes import reading, short
from guardwrap.errors import UsageError, is_number, nearest
from guardwrap.outcomes import Draw

_Place = tuple[str | int, ...]

_STRUCTURE = frozenset(
    ("kind", "file", "path", "flags", "function", "prefix", "model", "message", "grammar", "type", "format")
)
"""Keys whose strings decide what a rule is, runs or reads. ``on`` and keys that begin with $ belong to them too."""

_COMPILED = 256  # filled constraints that are kept


@dataclass(frozen=True, eq=False, repr=False)
class ConstraintTemplate(Constraint):
    """A constraint that is read from its file only when the values of its fields are known."""

    source: Document  # the file
    names: tuple[str, ...]  # names of the fields, which are placeholders between braces
    allow_code: bool = field(default=False, kw_only=True)  # whether the file may name Python functions

    def __post_init__(self) -> None:
        used: set[str] = set()
        for i, name in enumerate(self.names):
            if not name.isidentifier() or name in _OPTIONS or name in self.names[:i]:
                problem = f"{short(name)} is not a name for a field; use a word of letters, digits and _, once"
                raise self.source.error(("fields", i), problem)
        for place, text, structure in _strings(self.data, ("constraint",), constraint=True):
            inside = self._placeholder.findall(text)
            used.update(inside)
            problem = ""
            if inside and structure:
                problem = "a placeholder cannot stand here, where a value could change what the rule is"
            elif _key_of(place) == "file":
                problem = "a file with fields cannot name other files; pass each with its own -c, or in a list"
            elif inside and _is_pattern(place):
                problem = self._misplaced(text, self.data, place)
            if problem:
                raise self.source.error(place, problem)
        for i, name in enumerate(self.names):
            if name not in used:
                raise self.source.error(("fields", i), f'{name!r} is not used: write "{{{name}}}" where its value goes')

    @property
    def data(self) -> Any:
        """The constraint with its placeholders, as plain JSON types."""
        return self.source.data.get("constraint")

    @property
    def path(self) -> str:
        """Path of the file, for messages."""
        return self.source.path

    @cached_property
    def _placeholder(self) -> re.Pattern[str]:
        names = "|".join(map(re.escape, sorted(self.names, key=len, reverse=True)))
        return re.compile(r"\{(" + names + r")\}")

    @property
    def reads_message(self) -> str | None:
        """The first part of messages that its rules judge, or None."""
        if ("kind", "tool_calls") in [(_key_of(at), text) for at, text, _ in _strings(self.data, (), constraint=True)]:
            return "tool_calls"
        views = (
            text for place, text, _ in _strings(self.data, (), constraint=True) if _key_of(place) in ("on", "message")
        )
        parts = [text for text in views if text in MESSAGE]
        return parts[0] if parts else None

    def spec(self) -> dict[str, Any]:
        """Return the fields and the constraint with its placeholders."""
        return {"kind": "template", "fields": list(self.names), "constraint": self.data}

    @property
    def in_memory(self) -> bool:
        """True: only the file itself can hold it."""
        return True

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Raise UsageError: without values, nothing can be judged."""
        raise UsageError(unfilled(self))

    def filled(self, values: Mapping[str, Any]) -> Constraint:
        """Return the constraint with the values of its fields; the same values give the same object while it is kept.

        ``values``: a value for each field: a string, a number, true, false or a list of these. Other names are
        ignored.
        """
        return _filled(_ById(self), json.dumps(self._needed(values), sort_keys=True))

    def inserted(self, values: Mapping[str, Any]) -> Any:
        """Return the constraint as plain JSON types with values in it, without reading it; see ``filled``."""
        try:
            return self._inserted(self.data, self._needed(values))
        except Invalid as invalid:
            raise self.source.error(("constraint", *invalid.location), invalid.problem) from None

    def _needed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        needed = {}
        for name in self.names:
            if name not in values:
                close = nearest(name, list(values))
                raise UsageError(f"has no field {name!r}, which {self.path} requires{close}")
            needed[name] = _require_value(name, values[name])
        return needed

    def read(self, values: Mapping[str, Any]) -> Constraint:
        """Fill the constraint without looking at those that are kept; see ``filled``."""
        with reading(self.path):
            try:
                return read_constraint(self._inserted(self.data, values), allow_code=self.allow_code)
            except Invalid as invalid:
                raise self.source.error(("constraint", *invalid.location), invalid.problem) from None

    def _inserted(self, node: Any, values: Mapping[str, Any], place: _Place = ()) -> Any:
        """Return plain data in which values replace placeholders, in one pass: values are not searched for others."""
        if isinstance(node, dict):
            return {key: self._inserted(value, values, (*place, key)) for key, value in node.items()}
        if isinstance(node, list):
            return [self._inserted(value, values, (*place, i)) for i, value in enumerate(node)]
        if not isinstance(node, str):
            return node
        pattern = _is_pattern(place)
        whole = self._placeholder.fullmatch(node)
        if whole and not pattern and _key_of(place) != "question":
            return values[whole[1]]

        def text(match: re.Match[str]) -> str:
            value = values[match[1]]
            if isinstance(value, list):
                raise Invalid(place, f"{match[1]!r} is a list, which cannot stand inside a text")
            inserted = value if isinstance(value, str) else json.dumps(value)
            return f"(?:{_SYNTAX.sub(_escaped, inserted)})" if pattern else inserted

        filled = self._placeholder.sub(text, node)
        if _key_of(place) == "question" and _judged(filled) != _judged(node):
            raise Invalid(place, "a value contains a placeholder of the question, {text} or {prompt}")
        if len(filled) > MAX_BYTES:
            raise Invalid(place, f"has {len(filled)} characters with its values; at most {MAX_BYTES} are allowed")
        return filled

    def _misplaced(self, pattern: str, data: Any, place: _Place) -> str:
        """Return why a placeholder of a regular expression is not a piece of text there; "" if all are."""
        holder = data
        for step in place[1:-1]:
            holder = holder[step]
        flags = holder.get("flags") or () if isinstance(holder, dict) else ()
        if "verbose" in flags or _VERBOSE.search(pattern):
            return "a verbose expression cannot have placeholders; leave the flag out"
        for match in self._placeholder.finditer(pattern):
            before = _PLAIN.sub("", _CLASS.sub("", _ESCAPE.sub("", pattern[: match.start()])))
            if _OPEN.search(before):
                return f"in an expression, {match[0]} must stand for a text, outside of [...], {{...}} and (?...)"
        return ""


_OPTIONS = ("constraint", "constraints", "sampler", "budget", "seed", "messages")
_SYNTAX = re.compile(r"[\\^$.*+?()\[\]{}|\x00-\x1f]")
_VERBOSE = re.compile(r"\(\?[a-zA-Z0-9]*x")
# What cannot change the meaning of what follows is removed first: escapes, classes, and heads of groups.
_ESCAPE = re.compile(r"\\(?:[^a-zA-Z0-9]|[wWdDsSbBAZzntrfv])")
_CLASS = re.compile(r"\[\^?+\]?+[^\[\]]*\]|\{[\d,]*\}")
_PLAIN = re.compile(r"\(\?(?:[a-zA-Z-]*[:)]|[=!>|]|<[=!]|P?<\w+>)")
_OPEN = re.compile(r"[\\\[{]|\(\?")


def _judged(question: str) -> tuple[int, int]:
    """Return how often the question of a judge names the text and the prompt."""
    return question.count("{text}"), question.count("{prompt}")


def _escaped(match: re.Match[str]) -> str:
    """Escape a character so that it stands for itself, in Python's and in ECMA's expressions."""
    return f"\\{match[0]}" if match[0] >= " " else f"\\x{ord(match[0]):02x}"


class _ById:
    """A template as a key of the cache. Templates of two files may be equal but read with other permissions."""

    def __init__(self, template: ConstraintTemplate) -> None:
        self.template = template

    def __hash__(self) -> int:
        return hash(self.template.digest)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _ById)
            and self.template.digest == other.template.digest
            and (self.template.path, self.template.allow_code) == (other.template.path, other.template.allow_code)
        )


@lru_cache(maxsize=_COMPILED)
def _filled(template: _ById, values: str) -> Constraint:
    """Fill a template with values in JSON, which keeps 1, 1.0, true and "1" apart."""
    return template.template.read(json.loads(values))


def _strings(node: Any, place: _Place, *, constraint: bool) -> Iterator[tuple[_Place, str, bool]]:
    """Yield each string with its place, and whether it belongs to the structure of a rule.

    ``constraint`` says whether the node stands where a constraint may stand, so that a string is a name of one.
    """
    if isinstance(node, str):
        yield place, node, constraint or _decides(_key_of(place), place)
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _strings(value, (*place, i), constraint=constraint)
    elif isinstance(node, dict):
        kind = kinds().get(str(node.get("kind"))) if constraint else None
        fields = getattr(kind, "__dataclass_fields__", {})
        for key, value in node.items():
            of_constraints = key in fields and re.search(r"\bConstraint\b", str(fields[key].type)) is not None
            yield from _strings(value, (*place, key), constraint=of_constraints)


def _key_of(place: _Place) -> str:
    """Return the key of the mapping in which a string, or the list that holds it, stands."""
    return next((step for step in reversed(place) if isinstance(step, str)), "")


def _decides(key: str, place: _Place) -> bool:
    return key in _STRUCTURE or key.startswith("$") or (key == "on" and place[-1] == "on")


def _is_pattern(place: _Place) -> bool:
    """Whether a string is a regular expression: a ``pattern``, or the ``match`` of a part."""
    key = _key_of(place)
    return key == "pattern" or (key == "match" and len(place) > 1 and place[-2] == "on")


def _require_value(name: str, value: Any) -> Any:
    """Return the value of a field as plain JSON types."""
    several = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, str | bool) or is_number(one) for one in several):
        raise UsageError(f"the field {name!r} must be a text, a number, true, false or a list of these")
    if any("\ud800" <= char <= "\udfff" for one in several if isinstance(one, str) for char in one):
        raise UsageError(f"the field {name!r} has half of a surrogate pair, which is not a character")
    size = sum(len(one) if isinstance(one, str) else 1 for one in several)
    if size > MAX_ITEMS:
        raise UsageError(f"the field {name!r} has {size} characters; at most {MAX_ITEMS} are allowed")
    return several if isinstance(value, list | tuple) else value


def names_of_fields(constraint: Constraint) -> tuple[str, ...]:
    """Return the names of the fields that a constraint requires, in order."""
    templates = (part for part in walk(constraint) if isinstance(part, ConstraintTemplate))
    return tuple(dict.fromkeys(name for template in templates for name in template.names))


def fill(constraint: Constraint, values: Mapping[str, Any] | None) -> Constraint:
    """Return a constraint whose templates are filled; the constraint itself if it has none."""
    if isinstance(constraint, ConstraintTemplate):
        return constraint.filled(values or {})
    if not isinstance(constraint, All | AnyOf | Not) or not names_of_fields(constraint):
        return constraint
    if isinstance(constraint, Not):
        return replace(constraint, of=fill(constraint.of, values))
    return replace(constraint, of=tuple(fill(part, values) for part in constraint.of))


def unfilled(template: ConstraintTemplate) -> str:
    """Return the error about a template that has no values."""
    listed = ", ".join(map(repr, template.names))
    return f"{template.path} requires the fields {listed}: give them in the rows of --jsonl, or as fields= in Python"


def require_filled(constraint: Constraint) -> None:
    """Raise UsageError if a constraint has placeholders without values."""
    for part in walk(constraint):
        if isinstance(part, ConstraintTemplate):
            raise UsageError(unfilled(part))
