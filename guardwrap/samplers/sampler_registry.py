"""The samplers that exist, ours and those that other packages register, and how one is named with its options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from guardwrap.documents.editor_schema import add_descriptions
from guardwrap.documents.validation import Document, Invalid, validated
from guardwrap.documents.yaml_nodes import one_line, short
from guardwrap.errors import UnknownName, UsageError
from guardwrap.samplers.imh import imh
from guardwrap.samplers.protocol import Sampler
from guardwrap.samplers.qrs import qrs
from guardwrap.samplers.rejection import rejection

__all__ = ["read_sampler", "sampler_named", "sampler_names", "sampler_schema"]


@cache
def _samplers() -> dict[str, Sampler | Callable[..., Sampler]]:
    found: dict[str, Sampler | Callable[..., Sampler]] = {"rejection": rejection, "qrs": qrs, "imh": imh}
    for entry in entry_points(group="guardwrap.samplers"):
        sampler = entry.load()
        if entry.name in found or not (isinstance(sampler, Sampler) or inspect.isfunction(sampler)):
            raise UsageError(
                f"plug-in {entry.value!r} is no new Sampler of its own name, and no function that returns one"
            )
        found[entry.name] = sampler
    return found


def sampler_names() -> list[str]:
    """Return the names of the samplers that exist: ours and those of the entry point group ``guardwrap.samplers``."""
    return sorted(_samplers())


def sampler_named(given: str | Mapping[str, Any] | Sampler, source: Document | None = None) -> Sampler:
    """Return the sampler that a name, or a name with its options, stands for.

    Parameters
    ----------
    given
        A name, as in ``"qrs"``; one name with its options, as in ``{"qrs": {"target_tvd": 0.05}}``; or a sampler, which
        is returned as it is.
    source
        The file whose ``sampler`` it is, for errors.

    Raises
    ------
    UnknownName
        If there is none of this name; names the nearest one.
    UsageError
        If it has no such option, or the option cannot have this value.
    SpecError
        In the place of both for a file; names path and line.
    """
    try:
        return read_sampler(given)
    except Invalid as invalid:
        location, problem = ("sampler", *invalid.location), invalid.problem
        raise (
            UsageError(str(Invalid(location, problem))) if source is None else source.error(location, problem)
        ) from None
    except UnknownName as unknown:
        if source is None:
            raise
        raise source.error(("sampler",), str(unknown)) from None


def read_sampler(given: Any) -> Sampler:
    """Do what ``sampler_named`` does, for a value that is part of something larger.

    Raises
    ------
    Invalid
        If it is no name with options of its own; says where.
    UnknownName
        If there is no sampler of this name.
    """
    if isinstance(given, Sampler):
        return given
    name, options = _name_and_options(given)
    if name not in _samplers():
        raise UnknownName("sampler", name, sampler_names())
    sampler = _samplers()[name]
    if isinstance(sampler, Sampler):
        if options:
            raise Invalid((name,), f"this sampler takes no options; give {name!r} alone")
        return sampler
    takes = _options_of(name)
    try:
        made = validated(options, takes)
    except Invalid as invalid:
        raise Invalid((name, *invalid.location), invalid.problem) from None
    except ValueError as error:  # of the sampler itself
        raise Invalid((name,), one_line(error)) from None
    if not isinstance(made, Sampler):
        raise UsageError(f"the sampler {name!r} of a plug-in is {type(made).__name__}, not a Sampler")
    return made


def _name_and_options(given: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(given, str):
        return given, {}
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, options),) = given.items()
        if isinstance(name, str) and isinstance(options, Mapping | None):
            return name, dict(options or {})
    if callable(given) and given in _samplers().values():
        raise Invalid((), f"{given.__name__} makes a sampler: give {given.__name__}(...), or its name")
    form = "give a name, or one name with its options, as in {qrs: {target_tvd: 0.05}}"
    raise Invalid((), f"{short(given)} is no sampler; {form}")


@cache
def _options_of(name: str) -> TypeAdapter[Sampler]:
    """Return what calls a sampler's function with options that are what it takes."""
    try:
        return TypeAdapter(_samplers()[name], config={"strict": True})  # type: ignore[arg-type]  # calls it
    except (NameError, PydanticUserError) as error:  # a type that is nowhere, or one that pydantic does not know
        raise UsageError(f"the sampler {name!r} has an option that YAML cannot give: {one_line(error)}") from None


def sampler_schema() -> dict[str, Any]:
    """Return the JSON Schema of a sampler in a file, for editors: a name, or one name with its options."""
    each = {}
    for name, sampler in sorted(_samplers().items()):
        options: dict[str, Any] = {"additionalProperties": False, "properties": {}}
        if not isinstance(sampler, Sampler):
            try:
                options = _options_of(name).json_schema()
            except (UsageError, PydanticInvalidForJsonSchema):  # of another package
                options = {}
            add_descriptions(options, (inspect.getdoc(sampler) or "").replace("Return the sampler", "The sampler", 1))
        each[name] = {"description": f"The sampler {name}, with its options.", **options, "type": ["object", "null"]}
    one = {"type": "object", "properties": each, "additionalProperties": False, "minProperties": 1, "maxProperties": 1}
    return {"anyOf": [{"type": "string", "enum": sampler_names()}, one, {"type": "null"}]}
