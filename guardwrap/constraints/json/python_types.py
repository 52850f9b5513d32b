"""Python types as JSON Schemas, through pydantic, and what makes values of them."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from guardwrap.errors import ConstraintError

__all__ = ["is_type", "schema_of", "type_adapter_of"]


def is_type(given: object) -> bool:
    """Whether something is a type, such as a pydantic model or ``list[int]``, or a TypeAdapter of one."""
    return isinstance(given, type | TypeAdapter) or typing.get_origin(given) is not None


def type_adapter_of(given: Any) -> TypeAdapter[Any]:
    """Return what makes values of a type.

    Raises
    ------
    ConstraintError
        If pydantic does not know the type.
    """
    if isinstance(given, TypeAdapter):
        return given
    try:
        return TypeAdapter(given)
    except (PydanticUserError, SchemaError, NameError, TypeError) as error:
        raise ConstraintError(f"pydantic makes no values of {_name(given)}: {_first_line(error)}") from None


def schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the schema of the JSON that pydantic makes values of: its mode ``"validation"``, keys by alias.

    Raises
    ------
    ConstraintError
        If pydantic has none for the type.
    """
    try:
        return adapter.json_schema(mode="validation")
    except (PydanticUserError, NameError, TypeError) as error:
        reason = f"pydantic has no JSON Schema for {_name(adapter)}: {_first_line(error)}"
        raise ConstraintError(f"{reason}; give a schema of your own, and the type as type=") from None


def _name(given: Any) -> str:
    return str(getattr(given, "__name__", None) or repr(given))[:80]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
