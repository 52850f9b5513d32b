"""The field ``repair`` of constraint files, settings and requests: the number of repair turns, and their message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from guardwrap.documents.validation import validated

REASONS = "{reasons}"
"""Where a message has the reasons for the rejection."""

MESSAGE = f"Your answer was rejected for this reason: {REASONS}. Answer again, without that fault."
"""The default message."""


def _with_reasons(message: str) -> str:
    if REASONS not in message:
        raise ValueError(f"needs {REASONS} where the reasons belong")
    return message


class _Turns(BaseModel):
    """Turns in which the model repairs a rejected answer."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    max_turns: int = Field(default=1, ge=1, description="The most repair turns for a prompt.")
    message: Annotated[str, AfterValidator(_with_reasons)] = Field(
        default=MESSAGE, description="The user's message after a rejected answer; {reasons} in it is replaced."
    )


def _in_turns(count: int) -> dict[str, Any]:
    return {"max_turns": count, "message": MESSAGE}


ARepair: Any = Annotated[
    Annotated[int, Field(ge=1, strict=True), AfterValidator(_in_turns), Tag("a number")]
    | Annotated[_Turns, AfterValidator(vars), Tag("options")],
    Discriminator(lambda value: "options" if isinstance(value, dict) else "a number"),
]
"""The pydantic type of the field ``repair``. The value is a mapping of arguments of ``guardwrap.Repair``."""


@cache
def _a_repair() -> TypeAdapter[Any]:
    return TypeAdapter(ARepair)


def read_repair(value: Any) -> Mapping[str, Any]:
    """Read repair turns from plain JSON types: a number, or a mapping with ``max_turns`` and ``message``.

    Returns
    -------
    Mapping
        Arguments of ``guardwrap.Repair``.

    Raises
    ------
    Invalid
        If the value is invalid; the error has the location.
    """
    options: Mapping[str, Any] = validated(value, _a_repair())
    return options


def repair_spelt(repair: Mapping[str, Any]) -> int | dict[str, Any]:
    """Return repair turns in the form of a constraint file's field ``repair``."""
    return dict(repair) if repair["message"] != MESSAGE else int(repair["max_turns"])
