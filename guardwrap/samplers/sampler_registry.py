"""The registry of samplers, built-in and from plug-ins: how a name with options selects one, or leaves the choice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NoReturn

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from guardwrap.errors import UnknownName, UsageError, strict_arguments
from guardwrap.outcomes import Closeness, Distribution
from guardwrap.samplers.imh import imh
from guardwrap.samplers.protocol import NEAR, Goal, Sampler, rejection
from guardwrap.samplers.qrs import qrs
from guardwrap.support.editor_schema import add_descriptions
from guardwrap.support.validation import Document, Invalid, validated
from guardwrap.support.yaml_nodes import one_line, short


@strict_arguments
def auto(*, target_tvd: float = NEAR) -> Sampler:
    """Return the sampler that chooses rejection or QRS, and what to draw from, by a plan.

    Exact rejection from the model itself is chosen if twice its expected cost is within the budget. Otherwise it is the
    cheapest of QRS over a mask, a twist, and the call's own proposal, if that is within the budget and its weights can
    tell the distance to g. If there is none, the call raises UsageError with the figures of each way. A note in the
    report says what was chosen, why, and how many attempts the plan took. None of them is returned as a text.

    Parameters
    ----------
    target_tvd
        The total variation distance to g that QRS aims at, in (0, 1).

    Raises
    ------
    UsageError
        If ``target_tvd`` is out of range. Calls raise it if they cannot be planned: for single prompts of a call, which
        share its sampler, and for ``generate``.
    """
    if not 0 < target_tvd < 1:
        raise UsageError(f"target_tvd={target_tvd!r}: give a number between 0 and 1")
    return Sampler("auto", _unchosen, rejection.step, _unreported, goal=Goal(target_tvd))


def _unchosen() -> NoReturn:
    raise UsageError("sampler='auto' is chosen for a whole call of the wrapper or run(); name another sampler here")


def _unreported(state: Any) -> tuple[Distribution, dict[str, float]]:
    return Distribution(Closeness.NOTHING, "no sampler was chosen"), {}


@cache
def _samplers() -> dict[str, Sampler | Callable[..., Sampler]]:
    samplers: dict[str, Sampler | Callable[..., Sampler]] = {
        "rejection": rejection,
        "qrs": qrs,
        "imh": imh,
        "auto": auto,
    }
    for entry in entry_points(group="guardwrap.samplers"):
        sampler = entry.load()
        if entry.name in samplers or not (isinstance(sampler, Sampler) or inspect.isfunction(sampler)):
            raise UsageError(
                f"plug-in {entry.value!r} must be a Sampler, or a function that returns one, under a name that is not "
                "taken; fix its entry point or uninstall it"
            )
        samplers[entry.name] = sampler
    return samplers


def sampler_names() -> list[str]:
    """Return the names of all samplers: built-in and from the entry point group ``guardwrap.samplers``."""
    return sorted(_samplers())


def sampler_named(given: str | Mapping[str, Any] | Sampler, source: Document | None = None) -> Sampler:
    """Return the sampler for a name, or for a name with options.

    Parameters
    ----------
    given
        A name, as in ``"qrs"``; a name with options, as in ``{"qrs": {"target_tvd": 0.05}}``; or a sampler, which is
        returned unchanged.
    source
        The file in which ``given`` is the value of ``sampler``, for errors; None if it is not from a file.

    Raises
    ------
    UnknownName
        If no sampler has this name; the message suggests the nearest name.
    UsageError
        If the sampler does not have an option, or the option cannot have this value.
    SpecError
        Instead of both if ``source`` is given; the message has its path and line.
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
    """Return the sampler for a value that is part of a larger document; see ``sampler_named``."""
    if isinstance(given, Sampler):
        return given
    name, options = _name_and_options(given)
    if name not in _samplers():
        raise UnknownName("sampler", name, sampler_names())
    sampler = _samplers()[name]
    if isinstance(sampler, Sampler):
        if options:
            raise Invalid((name,), f"this sampler does not accept options; give {name!r} alone")
        return sampler
    adapter = _options_of(name)
    try:
        configured = validated(options, adapter)
    except Invalid as invalid:
        raise Invalid((name, *invalid.location), invalid.problem) from None
    except ValueError as error:  # raised by the sampler's function
        raise Invalid((name,), one_line(error)) from None
    if not isinstance(configured, Sampler):
        raise UsageError(
            f"the plug-in sampler {name!r} returns {type(configured).__name__}; its function must return a Sampler"
        )
    return configured


def _name_and_options(given: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(given, str):
        return given, {}
    if isinstance(given, Mapping) and len(given) == 1:
        ((name, options),) = given.items()
        if isinstance(name, str) and isinstance(options, Mapping | None):
            return name, dict(options or {})
    if callable(given) and given in _samplers().values():
        raise Invalid((), f"{given.__name__} returns a sampler; give {given.__name__}(...), or its name")
    form = "give a name, or one name with options, as in {qrs: {target_tvd: 0.05}}"
    raise Invalid((), f"{short(given)} is not a sampler; {form}")


@cache
def _options_of(name: str) -> TypeAdapter[Sampler]:
    """Return a type adapter that validates options and calls the sampler's function with them."""
    try:
        return TypeAdapter(_samplers()[name], config={"strict": True})  # type: ignore[arg-type]  # calls it
    except (NameError, PydanticUserError) as error:  # an annotation that is undefined, or unknown to pydantic
        raise UsageError(f"the sampler {name!r} has an option that YAML cannot give: {one_line(error)}") from None


def sampler_schema() -> dict[str, Any]:
    """Return the JSON Schema of a sampler in a file, for editors: a name, or one name with options."""
    each = {}
    for name, sampler in sorted(_samplers().items()):
        options: dict[str, Any] = {"additionalProperties": False, "properties": {}}
        if not isinstance(sampler, Sampler):
            try:
                options = _options_of(name).json_schema()
            except (UsageError, PydanticInvalidForJsonSchema):  # a plug-in's option has no JSON Schema
                options = {}
            add_descriptions(options, (inspect.getdoc(sampler) or "").replace("Return the sampler", "The sampler", 1))
        each[name] = {"description": f"The sampler {name}, with its options.", **options, "type": ["object", "null"]}
    one = {"type": "object", "properties": each, "additionalProperties": False, "minProperties": 1, "maxProperties": 1}
    return {"anyOf": [{"type": "string", "enum": sampler_names()}, one, {"type": "null"}]}
