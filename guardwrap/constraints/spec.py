"""Constraint files: the one place where YAML is read.

A file says ``guardwrap: 1`` (the version of the format), a ``constraint``, and optionally ``name``, ``description``,
``sampler``, ``budget`` and ``examples``. It is data: code it names (``kind: python``) is refused unless the caller
allows it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from guardwrap.constraints.base import All, AnyOf, Constraint, Not, walk
from guardwrap.constraints.callables import Python
from guardwrap.constraints.registry import COMPOSITES, kinds
from guardwrap.draws import Budget
from guardwrap.errors import ConstraintError, SpecError, nearest

__all__ = ["ConstraintFile", "dump", "json_schema", "load", "parse"]

MAX_BYTES = 1_000_000
MAX_DEPTH = 60
MAX_NODES = 50_000

_Path = tuple[str | int, ...]


@dataclass(frozen=True)
class ConstraintFile:
    """A constraint with what its file says about it.

    Parameters
    ----------
    constraint
        The constraint.
    name, description
        For people.
    sampler
        Name of the sampler to use, or None for the caller's.
    budget
        The budget to use, or None for the caller's.
    accepts, rejects
        Texts that show, and test, what the constraint means.
    """

    constraint: Constraint
    name: str | None = None
    description: str | None = None
    sampler: str | None = None
    budget: Budget | None = None
    accepts: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _All(_Strict):
    kind: Literal["all"]
    of: list[_Node] = Field(min_length=1)
    name: str | None = None


class _Any(_Strict):
    kind: Literal["any"]
    of: list[_Node] = Field(min_length=1)
    name: str | None = None


class _Not(_Strict):
    kind: Literal["not"]
    of: _Node
    name: str | None = None


class _Examples(_Strict):
    accepts: list[str] = []
    rejects: list[str] = []


class _File(_Strict):
    guardwrap: Literal[1] = Field(description="Version of the format")
    name: str | None = None
    description: str | None = None
    constraint: _Node
    sampler: str | None = None
    budget: Budget | None = None
    examples: _Examples = _Examples()


_COMPOSITE_MODELS: dict[str, type[BaseModel]] = {"all": _All, "any": _Any, "not": _Not}


_Node: Any = None  # bound in _adapter, when the kinds are known


@cache
def _adapter() -> TypeAdapter[_File]:
    leaves: tuple[type, ...] = tuple(kinds().values())
    union: Any = Annotated[Union[(*leaves, _All, _Any, _Not)], Field(discriminator="kind")]
    for model in (_All, _Any, _Not, _File):
        model.model_rebuild(force=True, _types_namespace={**globals(), "_Node": union})
    return TypeAdapter(_File)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of constraint files, for editors."""
    return _adapter().json_schema()


def load(path: str | Path, *, allow_code: bool = False) -> ConstraintFile:
    """Read a constraint file.

    Parameters
    ----------
    path
        Path of the YAML file.
    allow_code
        Whether the file may name Python functions (``kind: python``), which are then imported and run.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw[:MAX_BYTES].decode("utf-8") if len(raw) > MAX_BYTES else raw.decode("utf-8")
    except UnicodeDecodeError:
        # Where the limit cut a character in two, the size is the error to report.
        if len(raw) > MAX_BYTES:
            raise SpecError(f"{path}: larger than {MAX_BYTES} bytes") from None
        raise SpecError(f"{path}: not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise SpecError(f"{path}: larger than {MAX_BYTES} bytes")
    return parse(text, path=str(path), allow_code=allow_code)


def parse(text: str, *, path: str = "<string>", allow_code: bool = False) -> ConstraintFile:
    """Read the text of a constraint file.

    Parameters
    ----------
    text
        YAML.
    path
        What error messages call it.
    allow_code
        As in ``load``.

    Raises
    ------
    SpecError
        If it is not well formed; the message names path and line.
    """
    if len(text) > MAX_BYTES:
        raise SpecError(f"{path}: larger than {MAX_BYTES} bytes")
    root = _compose(text, path)
    try:
        data = yaml.safe_load(text)
    except Exception as error:  # PyYAML's constructors raise ValueError, AttributeError … on hostile scalars
        raise SpecError(f"{path}: malformed YAML: {_first_line(error)}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}:1: a constraint file is a mapping that begins with 'guardwrap: 1'")
    _require_json(data, root, path)
    try:
        file = _adapter().validate_json(json.dumps(data))
    except ValidationError as error:
        raise _translate(error, data, root, path) from None
    constraint = _build(file.constraint, ("constraint",), root, path)
    for part in walk(constraint):
        if isinstance(part, Python) and not allow_code:
            raise SpecError(
                f"{path}: names Python code ({part.spec()['function']!r}); pass allow_code=True if you trust the file"
            )
    return ConstraintFile(
        constraint,
        file.name,
        file.description,
        file.sampler,
        file.budget,
        tuple(file.examples.accepts),
        tuple(file.examples.rejects),
    )


def dump(constraint: Constraint | ConstraintFile) -> str:
    """Write a constraint as the text of a constraint file; ``parse`` reads it back with the same digest.

    Raises
    ------
    ConstraintError
        If a part was made of an object in memory, such as a lambda or a loaded pipeline.
    """
    file = constraint if isinstance(constraint, ConstraintFile) else ConstraintFile(constraint)
    for part in walk(file.constraint):
        if part.in_memory:
            raise ConstraintError(
                f"{part.title} was made of an object in memory; a constraint file needs a name for it "
                "('module:function', a Hub id or a path)"
            )
    data: dict[str, Any] = {"guardwrap": 1}
    for key in ("name", "description"):
        if getattr(file, key) is not None:
            data[key] = getattr(file, key)
    data["constraint"] = file.constraint.spec()
    if file.sampler is not None:
        data["sampler"] = file.sampler
    if file.budget is not None:
        data["budget"] = asdict(file.budget)
    examples = {key: list(getattr(file, key)) for key in ("accepts", "rejects") if getattr(file, key)}
    if examples:
        data["examples"] = examples
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)


def _compose(text: str, path: str) -> yaml.Node:
    """Parse to nodes, with limits on depth, aliases and size; they carry the line numbers."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_DEPTH:
                raise SpecError(f"{path}:{_mark(event.start_mark)}: nested deeper than {MAX_DEPTH} levels")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark else ""
        raise SpecError(f"{path}{where}: malformed YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"{path}: malformed YAML: {_first_line(error)}") from None
    if root is None:
        raise SpecError(f"{path}: empty file; a constraint file begins with 'guardwrap: 1'")
    _check_nodes(root, path)
    return root


def _mark(mark: Any) -> int:
    return int(mark.line) + 1


def _check_nodes(root: yaml.Node, path: str) -> None:
    """Refuse alias bombs, cycles, duplicate keys, merge keys and keys that are not strings."""
    seen = 0
    stack: list[tuple[yaml.Node, frozenset[int]]] = [(root, frozenset())]
    while stack:
        node, ancestors = stack.pop()
        seen += 1
        line = node.start_mark.line + 1
        if seen > MAX_NODES:
            raise SpecError(f"{path}: more than {MAX_NODES} values, aliases counted in full")
        if id(node) in ancestors:
            raise SpecError(f"{path}:{line}: an alias refers to what it is part of")
        ancestors = ancestors | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            stack += [(child, ancestors) for child in node.value]
        elif isinstance(node, yaml.MappingNode):
            names = set()
            for key, value in node.value:
                at = f"{path}:{key.start_mark.line + 1}"
                if key.tag == "tag:yaml.org,2002:merge":
                    raise SpecError(f"{at}: merge keys (<<) are not supported; write the fields out")
                if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                    raise SpecError(f"{at}: a key must be a string; put it in quotes")
                if key.value in names:
                    raise SpecError(f"{at}: {key.value!r} stands twice")
                names.add(key.value)
                stack.append((value, ancestors))


def _require_json(data: Any, root: yaml.Node, path: str) -> None:
    """Refuse what YAML has and JSON has not: dates, sets, binary data, infinities."""
    for location, value in _leaves(data, ()):
        fine = (
            value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
        )
        if not fine:
            raise SpecError(
                f"{path}:{_line(root, location)}: {_dotted(location)} is a YAML {type(value).__name__}; "
                "put it in quotes if you mean a string"
            )
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise SpecError(f"{path}:{_line(root, location)}: {_dotted(location)} has half of a surrogate pair")


def _leaves(data: Any, location: _Path) -> Iterator[tuple[_Path, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, (*location, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from _leaves(value, (*location, i))
    else:
        yield location, data


def _build(node: Any, location: _Path, root: yaml.Node, path: str) -> Constraint:
    """Turn validated composites into constraints."""
    if isinstance(node, Constraint):
        return node
    try:
        if isinstance(node, _Not):
            return Not(_build(node.of, (*location, "of"), root, path), name=node.name)
        parts = [_build(part, (*location, "of", i), root, path) for i, part in enumerate(node.of)]
        return (All if isinstance(node, _All) else AnyOf)(parts, name=node.name)
    except SpecError:
        raise
    except ConstraintError as error:
        raise SpecError(f"{path}:{_line(root, location)}: {_dotted(location)}: {error}") from None


_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")


def _translate(error: ValidationError, data: Any, root: yaml.Node, path: str) -> SpecError:
    """Turn pydantic's first complaint into one line with path, line and nearest valid spelling."""
    errors = error.errors(include_url=False, include_input=False)
    # A misspelt field is also a missing one; the misspelling is the cause.
    # Of a union's complaints the deepest says most.
    first = max(errors, key=lambda e: (e["type"] in _UNKNOWN_FIELD, len(e["loc"])))
    location, parent, model = _locate(first["loc"], data)
    key = str(location[-1]) if location else ""
    context = first.get("ctx", {})
    match first["type"]:
        case kind if kind in _UNKNOWN_FIELD:
            known = _fields(model)
            message = f"unknown field {key!r}{nearest(key, known)}; known: {', '.join(known)}"
        case "missing" | "missing_argument":
            message, location = f"needs a field {key!r}", location[:-1]
        case "union_tag_invalid":
            known = [*kinds(), *COMPOSITES]
            tag = str(context.get("tag", ""))
            message = f"unknown kind {tag!r}{nearest(tag, known)}; known: {', '.join(sorted(known))}"
        case "union_tag_not_found":
            message = "needs a field 'kind', e.g. 'kind: regex'"
        case "value_error":
            message = str(context["error"])
        case "literal_error":
            value = parent.get(key) if isinstance(parent, dict) else None
            known = str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
            message = f"{value!r} is not one of {', '.join(known)}{nearest(value, known)}"
        case "string_type":
            message = f"must be a string, not {type(_value(data, location)).__name__}; put it in quotes"
        case _:
            message = str(first["msg"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return SpecError(f"{path}:{_line(root, location)}: {_dotted(location)}: {message}{more}")


def _locate(loc: tuple[int | str, ...], data: Any) -> tuple[_Path, Any, str]:
    """Drop the names of kinds that pydantic weaves into a location; return it, its parent and the parent's kind."""
    location: list[int | str] = []
    node, parent, kind = data, None, "file"
    for step in loc:
        if isinstance(step, str) and not isinstance(node, dict):
            continue  # a member of a union of plain types
        if isinstance(node, dict) and step not in node and step == node.get("kind"):
            continue
        location.append(step)
        parent = node
        if isinstance(node, dict):
            kind = str(node.get("kind", "".join(str(part) for part in location[-2:-1]) or "file"))
            node = node.get(str(step))
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            node = None
    return tuple(location), parent, kind


def _fields(kind: str) -> list[str]:
    models: dict[str, Any] = {**kinds(), **_COMPOSITE_MODELS, "budget": Budget, "examples": _Examples}
    model = models.get(kind, _File)
    return list(model.model_fields) if issubclass(model, BaseModel) else [f.name for f in fields(model)]


def _value(data: Any, location: _Path) -> Any:
    for step in location:
        data = data[step]
    return data


def _line(root: yaml.Node, location: _Path) -> int:
    """Line of the deepest node on a path that exists."""
    node = root
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


def _dotted(location: _Path) -> str:
    return ".".join(map(str, location)) or "the file"


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
