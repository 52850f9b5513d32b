"""JSON Schemas of Python types, through pydantic, and in files."""

from __future__ import annotations

import json
import typing
from typing import Any

import typing_extensions
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError, core_schema

from guardwrap.errors import ConstraintError, SpecError
from guardwrap.support.limits import MAX_DEPTH, MAX_VALUES
from guardwrap.support.time_limits import check_deadline
from guardwrap.support.yaml_nodes import NodeReader, compose, one_line, path_beside, read_text, short


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


def read_schema_file(name: str) -> Any:
    """Return the contents of a JSON (``.json``) or YAML file as plain JSON types."""
    path = str(path_beside(name))
    text = read_text(path)
    if not path.endswith(".json"):
        return NodeReader(path).read(compose(text, path, "a schema is a mapping or a bool"))
    try:
        schema = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}: malformed JSON: {one_line(error.msg)}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise SpecError(f"{path}: {one_line(error)}") from None
    _require_small(schema, path)
    return schema


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {short(repeated)}")
    return mapping


def _require_small(schema: Any, path: str) -> None:
    """Apply the limits for YAML files to JSON."""
    level, values = [schema], 0
    for _ in range(MAX_DEPTH + 1):
        check_deadline()
        values += len(level)
        if values > MAX_VALUES:
            raise SpecError(f"{path}: more than {MAX_VALUES} values")
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [item for part in inner for item in part]
        if not level:
            return
    raise SpecError(f"{path}: nested deeper than {MAX_DEPTH} levels")
