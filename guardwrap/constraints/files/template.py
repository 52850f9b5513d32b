"""Constraints with placeholders, which are filled with the values of a row or a call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from guardwrap.constraints.base import All, AnyOf, Constraint, Not, walk
from guardwrap.constraints.files.constraint_data import constraint_fields, kinds, read_constraint
from guardwrap.constraints.views import MESSAGE
from guardwrap.errors import UsageError, is_number, nearest
from guardwrap.outcomes import Draw
from guardwrap.support.limits import MAX_ITEMS
from guardwrap.support.validation import Document, Invalid
from guardwrap.support.yaml_nodes import reading, short

_Place = tuple[str | int, ...]

_STRUCTURE = frozenset(
    ("kind", "file", "path", "flags", "function", "prefix", "model", "message", "grammar", "type", "format")
)
"""Keys whose strings decide what a rule is, runs or reads. ``on`` and keys that begin with $ belong to them too."""

_OPTIONS = ("constraint", "constraints", "sampler", "budget", "seed", "messages")
"""Names of a row's options, which are no fields of a rule."""

_SYNTAX = re.compile(r"[\\^$.*+?()\[\]{}|]|(?P<blank>[#\s\x00-\x1f])")
"""Characters that mean something in an expression of Python or ECMA, or in a verbose one."""

_COMPILED = 256  # filled constraints that are kept


@dataclass(frozen=True, eq=False, repr=False)
class ConstraintTemplate(Constraint):
    """A constraint that is read from its file only when the values of its fields are known."""

    source: Document  # the file
    names: tuple[str, ...]  # names of the fields; between braces, each is a placeholder for a whole value
    allow_code: bool = field(default=False, kw_only=True)  # whether the file may name Python functions

    def __post_init__(self) -> None:
        for i, name in enumerate(self.names):
            if not name.isidentifier() or name in _OPTIONS or name in self.names[:i]:
                problem = f"{short(name)} is not a name for a field; use a word of letters, digits and _, once"
                raise self.source.error(("fields", i), problem)
        used = set()
        for place, text, decides in _strings(self.data, ("constraint",), constraint=True):
            inside = next((name for name in self.names if f"{{{name}}}" in text), None)
            used.add(self._name_in(text))
            problem = ""
            if inside is not None and decides:
                problem = "a placeholder cannot stand here, where a value could change what the rule is"
            elif inside is not None and self._name_in(text) is None:
                whole = f'write only "{{{inside}}}" here, and give the whole text as {inside!r}'
                problem = f"a placeholder stands for a whole value: {whole}"
            elif _key_of(place) == "file":
                problem = "a file with fields cannot name other files; pass each with its own -c, or in a list"
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

    def _name_in(self, text: str) -> str | None:
        """Return the field for which a text is the placeholder, or None."""
        name = text[1:-1]
        return name if text == f"{{{name}}}" and name in self.names else None

    @cached_property
    def reads_message(self) -> str | None:
        """The first part of messages that its rules judge, or None."""
        texts = [(_key_of(place), text) for place, text, _ in _strings(self.data, (), constraint=True)]
        if ("kind", "tool_calls") in texts:
            return "tool_calls"
        return next((text for key, text in texts if key in ("on", "message") and text in MESSAGE), None)

    @cached_property
    def title(self) -> str:
        """What the file says, with its placeholders, cut to 200 characters."""
        text = json.dumps(self.data, ensure_ascii=False)
        return text if len(text) <= 200 else text[:197] + "..."

    def spec(self) -> dict[str, Any]:
        return {"kind": "template", "fields": list(self.names), "constraint": self.data}

    @property
    def in_memory(self) -> bool:
        """True: only the file itself can hold it."""
        return True

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Raise UsageError: without values, nothing can be judged."""
        raise UsageError(unfilled(self))

    @property
    def _identity(self) -> tuple[str, str, bool]:
        # Templates of two files may be equal but read with other permissions, or have other paths in errors.
        return self.digest, self.path, self.allow_code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstraintTemplate) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def filled(self, values: Mapping[str, Any]) -> Constraint:
        """Return the constraint with the values of its fields; the same values give the same object while it is kept.

        ``values``: a value for each field: a string, a number, true, false or a list of these. Other names are
        ignored.
        """
        return _filled(self, json.dumps(self._needed(values), sort_keys=True))

    def inserted(self, values: Mapping[str, Any]) -> Any:
        """Return the constraint as plain JSON types with values in it, without reading it; see ``filled``."""
        return self._inserted(self.data, self._needed(values))

    def _needed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        needed = {}
        for name in self.names:
            if name not in values:
                close = nearest(name, list(values))
                raise UsageError(f"has no field {name!r}, which {self.path} requires{close}")
            needed[name] = _require_value(name, values[name])
        return needed

    def _inserted(self, node: Any, values: Mapping[str, Any], place: _Place = ()) -> Any:
        """Return plain data in which values replace placeholders, in one pass: values are not searched for others."""
        if isinstance(node, dict):
            return {key: self._inserted(value, values, (*place, key)) for key, value in node.items()}
        if isinstance(node, list):
            return [self._inserted(value, values, (*place, i)) for i, value in enumerate(node)]
        name = self._name_in(node) if isinstance(node, str) else None
        if name is None:
            return node
        value = values[name]
        if not _is_pattern(place) or isinstance(value, list):
            return value
        return _SYNTAX.sub(_escaped, value if isinstance(value, str) else json.dumps(value))


@lru_cache(maxsize=_COMPILED)
def _filled(template: ConstraintTemplate, values: str) -> Constraint:
    """Fill a template with values in JSON, which keeps 1, 1.0, true and "1" apart."""
    with reading(template.path):
        try:
            filled_with = json.loads(values)
            data = template._inserted(template.data, filled_with)
            constraint = read_constraint(data, allow_code=template.allow_code)
        except Invalid as invalid:
            raise template.source.error(("constraint", *invalid.location), invalid.problem) from None
    return _member(constraint, template, filled_with)


def _member(constraint: Constraint, template: Constraint, values: Mapping[str, Any]) -> Constraint:
    """Mark a constraint as filled from a template, or from a combination with templates."""
    object.__setattr__(constraint, "family", template.digest)
    object.__setattr__(constraint, "filled_with", values)
    return constraint


def _escaped(match: re.Match[str]) -> str:
    """Escape a character so that it stands for itself, in Python's and in ECMA's expressions."""
    return f"\\u{ord(match[0]):04x}" if match["blank"] else f"\\{match[0]}"


def _strings(node: Any, place: _Place, *, constraint: bool) -> Iterator[tuple[_Place, str, bool]]:
    """Yield each string with its place, and whether it decides what a rule is.

    ``constraint`` says whether the node stands where a constraint may stand, so that a string is a name of one.
    """
    if isinstance(node, str):
        key = _key_of(place)
        structure = key in _STRUCTURE or key.startswith("$") or (key == "on" and place[-1] == "on")
        yield place, node, constraint or structure
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _strings(value, (*place, i), constraint=constraint)
    elif isinstance(node, dict):
        kind = kinds().get(str(node.get("kind"))) if constraint else None
        inner = [] if kind is None else constraint_fields(kind)
        for key, value in node.items():
            if "{" in key:
                yield (*place, key), key, True
            yield from _strings(value, (*place, key), constraint=key in inner)


def _key_of(place: _Place) -> str:
    """Return the key of the mapping in which a string, or the list that holds it, stands."""
    return next((step for step in reversed(place) if isinstance(step, str)), "")


def _is_pattern(place: _Place) -> bool:
    """Whether a string is a regular expression: a ``pattern``, or the ``match`` of a part."""
    return _key_of(place) == "pattern" or place[-2:] == ("on", "match")


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
    names = names_of_fields(constraint)
    if not isinstance(constraint, All | AnyOf | Not) or not names:
        return constraint
    if isinstance(constraint, Not):
        filled: Constraint = replace(constraint, of=fill(constraint.of, values))
    else:
        filled = replace(constraint, of=tuple(fill(part, values) for part in constraint.of))
    return _member(filled, constraint, {name: (values or {})[name] for name in names})


def unfilled(template: ConstraintTemplate) -> str:
    """Return the error about a template that has no values."""
    listed = ", ".join(map(repr, template.names))
    return f"{template.path} requires the fields {listed}: give them in the rows of --jsonl, or as fields= in Python"


def require_filled(constraint: Constraint) -> None:
    """Raise UsageError if a constraint has placeholders without values."""
    for part in walk(constraint):
        if isinstance(part, ConstraintTemplate):
            raise UsageError(unfilled(part))
