"""JSON Schemas of Python types, through pydantic, and the adapters that convert JSON to values of these types."""

from __future__ import annotations

import typing
from typing import Any

import typing_extensions
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError, core_schema

from guardwrap.errors import ConstraintError


def is_type(value: object) -> bool:
    """Whether a value is a type, such as a pydantic model, ``list[int]`` or an alias, or a TypeAdapter of one."""
    return isinstance(value, (type, TypeAdapter, typing.NewType, *_ALIASES)) or typing.get_origin(value) is not None


_ALIASES: tuple[Any, ...] = tuple(
    {module.TypeAliasType for module in (typing, typing_extensions) if hasattr(module, "TypeAliasType")}
)


def type_adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter for a type; a TypeAdapter is returned as it is."""
    if isinstance(kind, TypeAdapter):
        return kind
    try:
        return TypeAdapter(kind)
    except (PydanticUserError, SchemaError, NameError, TypeError) as error:
        raise ConstraintError(f"pydantic does not support the type {_name(kind)}: {_first_line(error)}") from None


def schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the schema of the JSON that pydantic accepts for a type (mode ``"validation"``, keys by alias)."""
    try:
        return adapter.json_schema(mode="validation", schema_generator=_AsDumped)
    except (PydanticUserError, NameError, TypeError) as error:
        reason = f"pydantic has no JSON Schema for {_name(adapter)}: {_first_line(error)}"
        raise ConstraintError(f"{reason}; pass your own schema, and the type as type=") from None


_DIGITS = "[0-9]+"
_SECONDS = rf"{_DIGITS}(?:\.{_DIGITS})?S"
_OF_A_DAY = f"T(?:{_DIGITS}H(?:{_DIGITS}M)?(?:{_SECONDS})?|{_DIGITS}M(?:{_SECONDS})?|{_SECONDS})"
_DAYS = "|".join(
    f"{_DIGITS}{unit}" + "".join(f"(?:{_DIGITS}{later})?" for later in "YMWD"["YMWD".index(unit) + 1 :])
    for unit in "YMWD"
)
_DURATION = f"^-?P(?:(?:{_DAYS})(?:{_OF_A_DAY})?|{_OF_A_DAY})$"
_NAIVE_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.{_DIGITS})?$"
_NAIVE_DATE = "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"


class _AsDumped(GenerateJsonSchema):
    """Schemas that durations and naive times satisfy as pydantic writes them.

    The formats of JSON Schema are those of RFC 3339, in which every time has an offset, and durations have neither a
    sign nor fractions.
    """

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> dict[str, Any]:
        """Return the schema of a duration."""
        strict = super().timedelta_schema(schema)
        return {"type": "string", "pattern": _DURATION} if strict.get("format") == "duration" else strict

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> dict[str, Any]:
        """Return the schema of a date with a time."""
        return _or_naive(super().datetime_schema(schema), schema, f"^{_NAIVE_DATE}T{_NAIVE_TIME}")

    def time_schema(self, schema: core_schema.TimeSchema) -> dict[str, Any]:
        """Return the schema of a time."""
        return _or_naive(super().time_schema(schema), schema, f"^{_NAIVE_TIME}")


def _or_naive(strict: dict[str, Any], schema: Any, pattern: str) -> dict[str, Any]:
    """Return a schema that also allows times without an offset, unless the type excludes them."""
    naive = {"type": "string", "pattern": pattern}
    if schema.get("tz_constraint") == "naive":
        return naive
    return strict if "tz_constraint" in schema else {"anyOf": [strict, naive]}


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", None) or repr(kind))[:80]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
