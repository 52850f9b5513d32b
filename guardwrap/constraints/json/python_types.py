"""JSON Schemas of Python types, through pydantic, and the adapters that convert JSON to values of these types."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from guardwrap.errors import ConstraintError

__all__ = ["is_type", "schema_of", "type_adapter_of"]


def is_type(value: object) -> bool:
    """Whether a value is a type, such as a pydantic model or ``list[int]``, or a TypeAdapter of one."""
    return isinstance(value, type | TypeAdapter) or typing.get_origin(value) is not None


def type_adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter for a type; a TypeAdapter is returned as it is.

    Raises
    ------
    ConstraintError
        If pydantic does not support the type.
    """
    if isinstance(kind, TypeAdapter):
        return kind
    try:
        return TypeAdapter(kind)
    except (PydanticUserError, SchemaError, NameError, TypeError) as error:
        raise ConstraintError(f"pydantic does not support the type {_name(kind)}: {_first_line(error)}") from None


def schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the schema of the JSON that pydantic accepts for a type (mode ``"validation"``, keys by alias).

    Raises
    ------
    ConstraintError
        If pydantic has none for the type.
    """
    try:
        return adapter.json_schema(mode="validation")
    except (PydanticUserError, NameError, TypeError) as error:
        reason = f"pydantic has no JSON Schema for {_name(adapter)}: {_first_line(error)}"
        raise ConstraintError(f"{reason}; pass your own schema, and the type as type=") from None


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", None) or repr(kind))[:80]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
