"""Constraint files: the one place where YAML is read.

A file says ``guardwrap: 1`` (the version of the format), a ``constraint``, and optionally ``name``, ``description``,
``sampler``, ``budget`` and ``examples``. It is data: code it names (``kind: python``) is refused unless the caller
allows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from guardwrap.constraints.algebra import All, AnyOf, Not
from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.callables import Python
from guardwrap.constraints.limits import MAX_BYTES
from guardwrap.constraints.registry import COMPOSITES, kinds
from guardwrap.constraints.yaml_nodes import Reader, compose, one_line, read_text, reading, short
from guardwrap.draws import Budget
from guardwrap.errors import ConstraintError, SpecError, nearest

__all__ = ["ConstraintFile", "dump", "json_schema", "load", "load_as", "load_with_constraint", "parse", "to_yaml"]

_Path = tuple[str | int, ...]
_Model = TypeVar("_Model", bound=BaseModel)


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

    @field_validator("guardwrap", mode="before")
    @classmethod
    def _whole_number(cls, value: Any) -> Any:
        # true and 1.0 are equal to 1, but no version.
        if type(value) is not int:
            raise ValueError("the version of the format is the number 1")
        return value


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
    return parse(read_text(path), path=str(path), allow_code=allow_code)


def load_with_constraint(
    path: str | Path, model: type[_Model], *, allow_code: bool = False
) -> tuple[_Model, Constraint | None]:
    """Read a YAML file of another kind that may hold a constraint, spelt as in a constraint file.

    Parameters
    ----------
    path
        Path of the YAML file.
    model
        What its fields are; a field ``constraint`` takes anything here.
    allow_code
        As in ``load``.

    Returns
    -------
    tuple
        The file, and the constraint if the field ``constraint`` is a mapping, else None.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed; the message names path and line.
    """
    name, adapter = str(path), _adapter()
    with reading(name):
        file, data, root = _read_as(name, model)
        if not isinstance(data.get("constraint"), dict):
            return file, None
        alone = {"guardwrap": 1, "constraint": data["constraint"]}
        try:
            node = adapter.validate_json(json.dumps(alone)).constraint
        except ValidationError as error:
            raise _translate(error, alone, root, name) from None
        return file, _build(node, ("constraint",), root, name, allow_code)


def load_as(path: str | Path, model: type[_Model]) -> _Model:
    """Read a YAML file of another kind. Nothing in it is built or run.

    Raises
    ------
    SpecError
        If the file cannot be read or is not well formed; the message names path and line.
    """
    with reading(str(path)):
        return _read_as(str(path), model)[0]


def _read_as(path: str, model: type[_Model]) -> tuple[_Model, dict[str, Any], yaml.Node]:
    root = compose(read_text(path), path, f"it needs {', '.join(model.model_fields)}")
    data = Reader(path).read(root)
    if not isinstance(data, dict):
        raise SpecError(f"{path}:1: this file is a mapping with the fields {', '.join(model.model_fields)}")
    try:
        return model.model_validate_json(json.dumps(data)), data, root
    except ValidationError as error:
        raise _translate(error, data, root, path, model) from None


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
    adapter = _adapter()  # before the clock runs: other packages' kinds are imported here
    with reading(path):
        root = compose(text, path, "a constraint file begins with 'guardwrap: 1'")
        data = Reader(path).read(root)
        if not isinstance(data, dict):
            raise SpecError(f"{path}:1: a constraint file is a mapping that begins with 'guardwrap: 1'")
        try:
            file = adapter.validate_json(json.dumps(data))
        except ValidationError as error:
            raise _translate(error, data, root, path) from None
        constraint = _build(file.constraint, ("constraint",), root, path, allow_code)
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
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConstraintError("a constraint file cannot hold half of a surrogate pair") from None
    return to_yaml(data)


def to_yaml(data: Mapping[str, Any]) -> str:
    """Write plain JSON types as YAML that reads back the same."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Quotes what PyYAML would write plainly, or in single quotes, and then read as a line break."""


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    awkward = any(char in text for char in "\x85\u2028\u2029")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if awkward else None)


_Dumper.add_representer(str, _represent_str)


def _build(node: Any, location: _Path, root: yaml.Node, path: str, allow_code: bool) -> Constraint:
    """Turn validated composites into constraints."""
    if isinstance(node, Python) and not allow_code:
        raise SpecError(
            f"{path}:{_line(root, (*location, 'function'))}: names Python code ({short(node.function)}); "
            "pass allow_code=True if you trust the file"
        )
    if isinstance(node, Constraint):
        return node
    try:
        if isinstance(node, _Not):
            return Not(_build(node.of, (*location, "of"), root, path, allow_code), name=node.name)
        parts = [_build(part, (*location, "of", i), root, path, allow_code) for i, part in enumerate(node.of)]
        return (All if isinstance(node, _All) else AnyOf)(parts, name=node.name)
    except SpecError:
        raise
    except ConstraintError as error:
        raise SpecError(f"{path}:{_line(root, location)}: {_dotted(location)}: {one_line(error)}") from None


_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")


def _translate(
    error: ValidationError, data: Any, root: yaml.Node, path: str, file: type[BaseModel] = _File
) -> SpecError:
    """Turn pydantic's first complaint into one line with path, line and nearest valid spelling."""
    errors = error.errors(include_url=False, include_input=False)
    # A misspelt field is also a missing one; the misspelling is the cause.
    # Of a union's complaints the deepest says most.
    first = max(errors, key=lambda e: (e["type"] in _UNKNOWN_FIELD, len(e["loc"])))
    location, model = _locate(first["loc"], data, "missing" in first["type"])
    key = str(location[-1]) if location else ""
    context = first.get("ctx", {})
    match first["type"]:
        case kind if kind in _UNKNOWN_FIELD:
            known = _fields(model, file)
            message = f"unknown field {short(key)}{nearest(key, known)}; known: {', '.join(known)}"
        case "missing" | "missing_argument":
            message, location = f"needs a field {key!r}", location[:-1]
        case "union_tag_invalid":
            known, location = [*kinds(), *COMPOSITES], (*location, "kind")
            tag = str(context.get("tag", ""))
            message = f"unknown kind {short(tag)}{nearest(tag, known)}; known: {', '.join(sorted(known))}"
        case "union_tag_not_found":
            message = "needs a field 'kind', e.g. 'kind: regex'"
        case "value_error":
            message = str(context["error"])
        case "literal_error":
            value = _value(data, location)
            known = str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
            message = f"{short(value)} is not one of {', '.join(known)}{nearest(value, known)}"
        case "string_type":
            message = f"must be a string, not {type(_value(data, location)).__name__}"
            message += "" if isinstance(_value(data, location), dict | list | None) else "; put it in quotes"
        case _:
            message = str(first["msg"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return SpecError(f"{path}:{_line(root, location)}: {_dotted(location)}: {one_line(message)}{more}")


def _locate(loc: tuple[int | str, ...], data: Any, missing: bool) -> tuple[_Path, str]:
    """Drop the names of kinds and types that pydantic weaves into a location.

    Returns the location and the kind of what holds it. Where a field is missing, the last step does not exist.
    """
    location: list[int | str] = []
    node, kind = data, "file"
    for i, step in enumerate(loc):
        if isinstance(step, str) and not isinstance(node, dict):
            continue  # a member of a union of plain types
        if isinstance(node, dict) and step not in node and not (missing and i == len(loc) - 1):
            continue
        location.append(step)
        if isinstance(node, dict):
            kind = str(node.get("kind", "".join(str(part) for part in location[-2:-1]) or "file"))
            node = node.get(str(step))
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            node = None
    return tuple(location), kind


def _fields(kind: str, file: type[BaseModel]) -> list[str]:
    models: dict[str, Any] = {**kinds(), **_COMPOSITE_MODELS, "budget": Budget, "examples": _Examples}
    model = models.get(kind, file)
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
    plain = [str(step) if isinstance(step, int) or step.isidentifier() else short(step) for step in location]
    return one_line(".".join(plain)) if plain else "the file"
