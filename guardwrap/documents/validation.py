"""YAML files as validated data. All constraint files, settings, adapter cards and options are read here.

Errors are one line: path, line number, place in the file, problem, and the nearest valid name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from guardwrap.documents.yaml_nodes import NodeReader, compose, one_line, read_text, reading, short
from guardwrap.errors import SpecError, nearest
from guardwrap.formatting import counted

__all__ = ["Document", "Elsewhere", "Invalid", "document_of", "read_as", "read_document", "read_option", "validated"]

Location = tuple[str | int, ...]
"""The path to a value in plain data: keys of mappings and indices of lists."""

_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)


class Invalid(ValueError):
    """Data is not valid. This becomes a GuardwrapError before it reaches the user.

    Parameters
    ----------
    location
        The path to the value in the data.
    problem
        What is wrong with it, in one line.
    """

    def __init__(self, location: Location, problem: str) -> None:
        super().__init__(f"{dotted(location)}: {problem}" if location else problem)
        self.location = location
        self.problem = problem


class Elsewhere(Exception):  # not a ValueError, which pydantic would report as a mistake in this file
    """Another file, which the data names, is not valid.

    Parameters
    ----------
    error
        The error, with the path and line of the other file.
    """

    def __init__(self, error: SpecError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, eq=False)
class Document:
    """A YAML file as plain data, with the line numbers of its values.

    Parameters
    ----------
    path
        Its name in error messages.
    data
        The contents as plain JSON types.
    root
        The YAML nodes, which have line numbers.
    """

    path: str
    data: dict[str, Any]
    root: yaml.Node

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
        """Validate the contents as a type, and return the value. ``context`` is passed to the type's validators.

        Raises
        ------
        SpecError
            If the contents are invalid; the message names path and line.
        """
        try:
            return validated(self.data, kind, **context)
        except Invalid as invalid:
            raise self.error(invalid.location, invalid.problem) from None


def read_document(text: str, path: str, form: str) -> Document:
    """Parse the text of a YAML file that must be a mapping. Call it within ``yaml_nodes.reading``.

    Parameters
    ----------
    text
        The YAML text.
    path
        Its name in error messages.
    form
        A description of the expected file, for the error if it is empty or not a mapping.

    Raises
    ------
    SpecError
        If it is not YAML, not a mapping, or too large.
    """
    root = compose(text, path, form)
    data = NodeReader(path).read(root)
    if not isinstance(data, dict):
        raise SpecError(f"{path}:1: {form}")
    return Document(path, data, root)


def read_as(path: str | Path, model: type[_Model]) -> _Model:
    """Read a YAML file as a pydantic model. No code that it names is imported or run.

    Raises
    ------
    SpecError
        If the file cannot be read or is invalid; the message names path and line.
    """
    with reading(str(path)):
        return document_of(path, model).read(TypeAdapter(model))


def document_of(path: str | Path, model: type[BaseModel]) -> Document:
    """Read a YAML file without validating it. Call it within ``yaml_nodes.reading``.

    Parameters
    ----------
    path
        The file.
    model
        The model whose fields the error about a wrong file lists.

    Raises
    ------
    SpecError
        If the file cannot be read, or is not a mapping.
    """
    form = f"this file must be a mapping with the fields {', '.join(model.model_fields)}"
    return read_document(read_text(path), str(path), form)


def read_option(text: str, option: str) -> Any:
    """Read an option of the command line: a name or, if it contains a colon, YAML such as ``qrs: {pilot: 30}``.

    Raises
    ------
    SpecError
        If it is not YAML; the message names the option.
    """
    if ":" not in text:
        return text
    with reading(option):
        return NodeReader(option).read(compose(text, option, "give a value"))


def validated(data: Any, kind: TypeAdapter[_T], **context: Any) -> _T:
    """Validate plain data as a type, and return the value.

    Parameters
    ----------
    data
        Plain JSON types.
    kind
        Pydantic's adapter for the type.
    **context
        Passed to the type's validators.

    Raises
    ------
    Invalid
        If the data is invalid; the error has the location and suggests the nearest valid name.
    SpecError
        If a file that the data names is invalid.
    """
    try:
        return kind.validate_json(json.dumps(data, default=_refuse), context=context)
    except Elsewhere as elsewhere:
        raise elsewhere.error from None
    except ValidationError as error:
        raise _first_complaint(error, data, lambda at: _fields(kind, data, at)) from None


def _refuse(value: Any) -> Any:
    raise Invalid((), f"{short(value)} has the type {type(value).__name__}, which YAML does not support")


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

_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")


def _first_complaint(error: ValidationError, data: Any, fields: Callable[[Location], list[str]]) -> Invalid:
    """Choose the most helpful of pydantic's errors about some data, and return it as one line about one place.

    ``fields`` returns the valid fields of the mapping at a location.
    """
    errors = error.errors(include_url=False, include_input=False)
    # A misspelled required field is reported as unknown and as missing; the unknown name is the cause.
    # Of the errors about the members of a union, the deepest is the most specific.
    first = max(errors, key=lambda e: (e["type"] in _UNKNOWN_FIELD, len(e["loc"])))
    location = _without_names_of_types(first["loc"], data, "missing" in first["type"])
    key = str(location[-1]) if location else ""
    context = first.get("ctx", {})
    others = len(_other_places(errors, location, data))
    match first["type"]:
        case kind if kind in _UNKNOWN_FIELD and (inner := _wanted_inside(errors, location, data)):
            problem = f"field {key!r} belongs to {inner!r} above it: indent it like the fields there"
            others -= 1
        case kind if kind in _UNKNOWN_FIELD:
            known = fields(location[:-1])
            known_are = f"; known: {', '.join(known)}" if known else "; leave it out"
            close = nearest(key, known)
            siblings = (e for e in errors if "missing" in e["type"] and e["loc"][:-1] == first["loc"][:-1])
            if missing := [str(e["loc"][-1]) for e in siblings]:  # probably a required field under another name
                close = close or f" (did you mean {missing[0]!r}, which is missing?)"
                others -= repr(missing[0]) in close
            problem = f"unknown field {short(key)}{close}{known_are}"
        case "missing" | "missing_argument":
            problem, location = f"needs a field {key!r}", location[:-1]
        case "union_tag_invalid":
            tag, known = str(context["tag"]), _listed(context["expected_tags"])
            field = str(context["discriminator"]).strip("'")
            location = (*location, field)
            problem = f"unknown {field} {short(tag)}{nearest(tag, known)}; known: {', '.join(sorted(known))}"
            if tag in _NAMED:
                problem = f"{short(tag)} is not a kind; {_NAMED[tag]} instead of this mapping"
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
    more = f" (and {counted(others, 'more mistake')})" if others else ""
    return Invalid(location, one_line(problem) + more)


def _other_places(errors: Sequence[Any], location: Location, data: Any) -> set[Location]:
    """Return the other places with mistakes. Pydantic reports a place once for each type that it could have."""
    places = {_without_names_of_types(error["loc"], data, "missing" in error["type"]) for error in errors}
    return {place for place in places if place != location[: len(place)] and location != place[: len(location)]}


def _wanted_inside(errors: Sequence[Any], location: Location, data: Any) -> str | None:
    """Return the sibling of an unknown field in which a field of that name is missing; None if there is none."""
    for error in errors:
        if "missing" in error["type"]:
            wanted = _without_names_of_types(error["loc"], data, missing=True)
            if len(wanted) > len(location) and (*wanted[: len(location) - 1], wanted[-1]) == location:
                return str(wanted[-2])
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


def _fields(kind: TypeAdapter[Any], data: Any, location: Location) -> list[str]:
    """Return the valid fields of the mapping at a location, from the type's JSON Schema; empty if not known."""
    try:
        whole = kind.json_schema()
    except PydanticInvalidForJsonSchema:  # a plug-in has a field that JSON Schema cannot describe
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


def dotted(location: Location) -> str:
    """Return a location in the form ``constraint.of.1.pattern``."""
    plain = [str(step) if isinstance(step, int) or step.isidentifier() else short(step) for step in location]
    return one_line(".".join(plain)) if plain else ""
