"""YAML files as validated data. All constraint files, settings, adapter cards and options are read here.

Errors are one line: path, line number, place in the file, problem, and the nearest valid name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError, ValidationInfo
from pydantic.errors import PydanticInvalidForJsonSchema

from guardwrap.errors import ForeignFile, SpecError, nearest
from guardwrap.support.formatting import counted
from guardwrap.support.yaml_nodes import NodeReader, compose, one_line, read_text, reading, short

Location = tuple[str | int, ...]
"""The path to a value in plain data: keys of mappings and indices of lists."""

_WANTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dataclass_type", "model_type", "model_attributes_type", "dict_type"), "a mapping of fields"),
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
}
"""What a value must be, by pydantic's type of error."""

_NAMED = {
    "catalogue": "write catalogue:NAME, with a name that guardwrap catalogue lists,",
    "file": "write {file: NAME}, with a path relative to this file,",
}
"""How to name a constraint, by the word that users mistake for a kind."""

_COMBINATIONS = ("all", "any", "not")
"""Kinds that judge nothing themselves."""

MOST_MISTAKES = 10
"""The most mistakes that an error lists."""

_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")


class Mistake(NamedTuple):
    """An error in data: its place, and the problem in one line."""

    location: Location
    problem: str
    brief: str = ""  # the problem without the names that would be valid, if one of them is close


def mistakes_in(error: ValidationError, data: Any, kind: TypeAdapter[Any]) -> list[Mistake]:
    """Return pydantic's errors about some data.

    The most helpful one comes first, and there is one for each place. After ``MOST_MISTAKES`` places, the last entry
    has no place and says how many more there are.
    """
    schema = cache(lambda: _schema(kind))
    errors: list[Any] = list(error.errors(include_url=False, include_input=False))
    mistakes: list[Mistake] = []
    while errors and len(mistakes) < MOST_MISTAKES:
        mistake, errors = _first_complaint(errors, data, lambda at: _fields(schema(), data, at))
        mistakes.append(mistake)
    if errors:
        more = len({_place(each, data) for each in errors})
        mistakes.append(Mistake((), counted(more, "more mistake")))
    return mistakes


def _first_complaint(
    errors: Sequence[Any], data: Any, fields: Callable[[Location], list[str]]
) -> tuple[Mistake, list[Any]]:
    """Choose the most helpful of pydantic's errors. Return it, and the errors about other places.

    ``fields`` returns the valid fields of the mapping at a location.
    """
    # A misspelled required field is reported as unknown and as missing; the unknown name is the cause.
    # Of the errors about the members of a union, the deepest is the most specific.
    first = max(errors, key=lambda e: (e["type"] in _UNKNOWN_FIELD, len(e["loc"])))
    location = _place(first, data)
    key = str(location[-1]) if location else ""
    context = first.get("ctx", {})
    others = [error for error in errors if _is_elsewhere(_place(error, data), location)]
    brief = ""
    match first["type"]:
        case kind if kind in _UNKNOWN_FIELD and (inner := _wanted_inside(errors, location, data)) is not None:
            problem = f"field {key!r} belongs to {_place(inner, data)[-2]!r} above it: indent it like the fields there"
            others = [error for error in others if error is not inner]
        case kind if kind in _UNKNOWN_FIELD and key == "on" and (outer := _combination(data, location)):
            problem = f"kind: {outer} judges no text itself; move 'on' into each rule under its 'of'"
        case kind if kind in _UNKNOWN_FIELD:
            known = fields(location[:-1])
            known_are = f"; known: {', '.join(known)}" if known else "; leave it out"
            close = nearest(key, known)
            siblings = (e for e in errors if "missing" in e["type"] and e["loc"][:-1] == first["loc"][:-1])
            if missing := [str(e["loc"][-1]) for e in siblings]:  # probably a required field under another name
                close = close or f" (did you mean {missing[0]!r}, which is missing?)"
                if repr(missing[0]) in close:
                    others = [e for e in others if _place(e, data) != (*location[:-1], missing[0])]
            brief = f"unknown field {short(key)}{close}" if close else ""
            problem = f"unknown field {short(key)}{close}{known_are}"
        case "missing" | "missing_argument":
            problem, location = f"needs a field {key!r}", location[:-1]
        case "union_tag_invalid":
            tag, known = str(context["tag"]), _listed(context["expected_tags"])
            field = str(context["discriminator"]).strip("'")
            location = (*location, field)
            close = nearest(tag, known)
            brief = f"unknown {field} {short(tag)}{close}" if close else ""
            problem = f"unknown {field} {short(tag)}{close}; known: {', '.join(sorted(known))}"
            if tag in _NAMED:
                problem, brief = f"{short(tag)} is not a kind; {_NAMED[tag]} instead of this mapping", ""
        case "union_tag_not_found":
            problem = f"needs a field {context['discriminator']}"
            value = _value(data, location)
            if isinstance(value, dict) and list(value) == ["catalogue"]:
                problem = f"write {short('catalogue:' + str(value['catalogue']))}, without the space"
        case "value_error":
            cause = context["error"]
            location = (*location, *getattr(cause, "location", ()))
            problem = getattr(cause, "problem", str(cause))
        case "literal_error":
            value, known = _value(data, location), _listed(context["expected"])
            problem = f"{short(value)} is not one of {', '.join(known)}{nearest(value, known)}"
            if len(known) == 1 and not isinstance(value, str):
                problem = f"must be {known[0]}, not {short(value)}"
            if isinstance(value, str) and "{prompt}" in value:
                problem = f"write {{prompt: {short(value)}}} for a hint"
        case "string_type":
            value = _value(data, location)
            problem = f"must be a string, not {type(value).__name__}"
            problem += "" if isinstance(value, list) else "; put it in quotes"
            problem += " if it is a text with ': '" if isinstance(value, dict) else ""
            if value is None:
                problem = "must be a string, but is empty; put it in quotes if it begins with #, which starts a comment"
        case kind if kind in _WANTED:
            value = _value(data, location)
            problem = f"must be {_WANTED[kind].format(**context)}, not {short(value)}"
            if key == "budget":
                problem += "; {max_attempts: 1000} is one"
            elif key == "of" and isinstance(value, list):
                problem += "; combine several with kind: all"
        case _:
            problem = str(first["msg"])
    return Mistake(location, one_line(problem), one_line(brief) if brief else ""), others


def _place(error: Any, data: Any) -> Location:
    return _without_names_of_types(error["loc"], data, "missing" in error["type"])


def _is_elsewhere(place: Location, location: Location) -> bool:
    """Whether a place is another one. Pydantic reports a place once for each type that it could have."""
    return place != location[: len(place)] and location != place[: len(location)]


def _combination(data: Any, location: Location) -> str | None:
    """Return the kind of the mapping that has a field, if it is one that combines rules."""
    outer = _value(data, location[:-1])
    kind = outer.get("kind") if isinstance(outer, dict) else None
    return kind if kind in _COMBINATIONS else None


def _wanted_inside(errors: Sequence[Any], location: Location, data: Any) -> Any:
    """Return the error that a sibling of an unknown field lacks a field of that name; None if there is none."""
    for error in errors:
        if "missing" in error["type"]:
            wanted = _place(error, data)
            if len(wanted) > len(location) and (*wanted[: len(location) - 1], wanted[-1]) == location:
                return error
    return None


def _listed(names: str) -> list[str]:
    """Split a list of names that pydantic writes as ``'a', 'b' or 'c'``."""
    return names.replace(" or ", ", ").replace("'", "").split(", ")


def _without_names_of_types(loc: tuple[int | str, ...], data: Any, missing: bool) -> Location:
    """Remove the names of kinds and types that pydantic adds to a location.

    If the error is about a missing field, the last step does not exist in the data.
    """
    location: list[int | str] = []
    node = data
    named = False  # whether the name of the node's kind was removed
    for i, step in enumerate(loc):
        if isinstance(step, str) and not isinstance(node, dict):
            continue  # a member of a union of plain types
        if isinstance(node, dict):
            if not named and node.get("kind") == step:
                named = True  # only once, because a field may have the same name as the kind
                continue
            if step not in node and not (missing and i == len(loc) - 1):
                continue
        location.append(step)
        named = False
        if isinstance(node, dict):
            node = node.get(str(step))
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            node = None
    return tuple(location)


def _schema(kind: TypeAdapter[Any]) -> Mapping[str, Any] | None:
    """Return the JSON Schema of a type; None if a plug-in has a field that JSON Schema cannot describe."""
    try:
        return kind.json_schema()
    except PydanticInvalidForJsonSchema:
        return None


def _fields(whole: Mapping[str, Any] | None, data: Any, location: Location) -> list[str]:
    """Return the valid fields of the mapping at a location, from the type's JSON Schema; empty if not known."""
    if whole is None:
        return []

    def mapping(schema: Any, value: Any) -> Mapping[str, Any]:
        """Return the schema of the mapping or list among the alternatives for a value."""
        while "$ref" in schema:
            schema = whole["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
        if "discriminator" in schema:
            tag = schema["discriminator"]["propertyName"]
            chosen = schema["discriminator"]["mapping"].get(str(value.get(tag)) if isinstance(value, dict) else None)
            return {} if chosen is None else mapping({"$ref": chosen}, value)
        members = [mapping(member, value) for key in ("anyOf", "oneOf", "allOf") for member in schema.get(key, ())]
        keyword = "items" if isinstance(value, list) else "properties"
        return next((each for each in (schema, *members) if keyword in each), schema)

    schema, value = mapping(whole, data), data
    for step in location:
        inner = schema.get("items") if isinstance(step, int) else schema.get("properties", {}).get(step)
        inner = inner or schema.get("additionalProperties")
        value = value[step]
        schema = mapping(inner if isinstance(inner, dict) else {}, value)
    return list(schema.get("properties", ()))


def _value(data: Any, location: Location) -> Any:
    for step in location:
        data = data[step]
    return data


_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)


class Invalid(ValueError):
    """Data is not valid. This becomes a GuardwrapError before it reaches the user."""

    def __init__(self, location: Location, first: str, others: Sequence[Mistake] = ()) -> None:
        self.location, self.first, self.others = location, first, others
        self.problem = first + _listing(others)
        super().__init__(f"{dotted(location)}: {self.problem}" if location else self.problem)


_FOR_CODE: ContextVar[str] = ContextVar("for_code", default="; pass allow_code=True if you trust the file")


@contextmanager
def code_needs(way_out: str) -> Iterator[None]:
    """Let errors about code or servers that a document names end with this way out."""
    token = _FOR_CODE.set(way_out)
    try:
        yield
    finally:
        _FOR_CODE.reset(token)


def require_code_allowed(info: ValidationInfo, named: str) -> None:
    """Raise ValueError for a document that names Python code or a server, unless the caller passed ``allow_code``."""
    if not (info.context or {}).get("allow_code"):
        raise ValueError(f"names {named}{_FOR_CODE.get()}")


class Elsewhere(Exception):  # not a ValueError, which pydantic would report as a mistake in this file
    """Another file, which the data names, is not valid."""

    def __init__(self, error: SpecError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, eq=False)
class Document:
    """A YAML file as plain data, with the line numbers of its values."""

    path: str  # its name in error messages
    data: dict[str, Any]  # the contents as plain JSON types
    root: yaml.Node  # the YAML nodes, which have line numbers
    notes: tuple[str, ...] = ()  # remarks on values that YAML reads otherwise than most people

    def error(self, location: Location, problem: str) -> SpecError:
        """Return an error about a place in the file."""
        return SpecError(f"{self.path}:{self.line(location)}: {dotted(location) or 'the file'}: {problem}")

    def line(self, location: Location) -> int:
        """Return the line number, from 1, of a value; if the location does not exist, of the last part that does."""
        node = self.root
        line = node.start_mark.line
        for step in location:
            if isinstance(node, yaml.MappingNode):
                pair = next(((key, value) for key, value in node.value if key.value == step), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line
            else:
                break
        return int(line) + 1

    def read(self, kind: TypeAdapter[_T], **context: Any) -> _T:
        """Validate the contents as a type, and return the value. ``context`` is passed to the type's validators."""
        try:
            return validated(self.data, kind, **context)
        except Invalid as invalid:
            raise self.error(invalid.location, invalid.first + _listing(invalid.others, self.line)) from None


def read_document(text: str, path: str, form: str) -> Document:
    """Parse the text of a YAML file that must be a mapping. Call it within ``yaml_nodes.reading``."""
    root = compose(text, path, form)
    reader = NodeReader(path)
    data = reader.read(root)
    if not isinstance(data, dict):
        raise ForeignFile(f"{path}:1: {form}")
    return Document(path, data, root, tuple(reader.notes))


def read_as(path: str | Path, model: type[_Model]) -> _Model:
    """Read a YAML file as a pydantic model. No code that it names is imported or run."""
    with reading(str(path)):
        return document_of(path, model).read(TypeAdapter(model))


def document_of(path: str | Path, model: type[BaseModel]) -> Document:
    """Read a YAML file without validating it. Call it within ``yaml_nodes.reading``."""
    form = f"this file must be a mapping with the fields {', '.join(model.model_fields)}"
    return read_document(read_text(path), str(path), form)


def read_option(text: str, option: str) -> Any:
    """Read an option of the command line: a name or, if it contains a colon, YAML such as ``qrs: {pilot: 30}``."""
    if ":" not in text:
        return text
    with reading(option):
        return NodeReader(option).read(compose(text, option, "give a value"))


def validated(data: Any, kind: TypeAdapter[_T], **context: Any) -> _T:
    """Validate plain data as a type, and return the value."""
    try:
        return kind.validate_json(json.dumps(data, default=_refuse), context=context)
    except Elsewhere as elsewhere:
        raise elsewhere.error from None
    except ValidationError as error:
        first, *others = mistakes_in(error, data, kind)
        raise Invalid(first.location, first.problem, others) from None


def _refuse(value: Any) -> Any:
    raise Invalid((), f"{short(value)} has the type {type(value).__name__}, which YAML does not support")


def _listing(others: Sequence[Mistake], line: Callable[[Location], int] | None = None) -> str:
    """List further mistakes with their places, and without the names that would be valid if one of them is close."""
    if not others:
        return ""
    mistakes = []
    for location, problem, brief in others:
        where = "" if line is None or not location else f"line {line(location)}: "
        where += f"{dotted(location)}: " if location else ""
        mistakes.append(where + (brief or problem))
    return f"; also {'; '.join(mistakes)}"


def dotted(location: Location) -> str:
    """Return a location in the form ``constraint.of.1.pattern``."""
    plain = [str(step) if isinstance(step, int) or step.isidentifier() else short(step) for step in location]
    return one_line(".".join(plain)) if plain else ""
