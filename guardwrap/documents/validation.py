"""YAML files as validated data. All constraint files, settings, adapter cards and options are read here.

Errors are one line: path, line number, place in the file, problem, and the nearest valid name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError, ValidationInfo

from guardwrap.documents.complaints import Location, Mistake, mistakes_in
from guardwrap.documents.yaml_nodes import NodeReader, compose, one_line, read_text, reading, short
from guardwrap.errors import ForeignFile, SpecError

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
