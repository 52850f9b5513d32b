"""Examples of messages in constraint files, for rules that judge parts of a message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from guardwrap.documents.validation import validated

__all__ = ["AnExample", "read_message"]


class _Strict(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


class _Call(_Strict):
    name: str = Field(description="Name of the tool.")
    arguments: dict[str, Any] = Field(default={}, description="Its arguments, by name.")


class _Message(_Strict):
    content: str = Field(default="", description="The answer.")
    reasoning: str = Field(default="", description="What the model thinks before it answers.")
    tool_calls: list[_Call] = Field(default=[], description="The calls of tools.")


class _MessageExample(_Strict):
    """A message, for rules that judge a part of it."""

    message: _Message = Field(description="The parts of the message.")


def _plain(value: _Message | _MessageExample) -> dict[str, Any]:
    return value.model_dump(exclude_defaults=True)


AnExample: Any = Annotated[
    Annotated[str, Tag("a text")] | Annotated[_MessageExample, AfterValidator(_plain), Tag("a message")],
    Discriminator(lambda value: "a message" if isinstance(value, dict) and "message" in value else "a text"),
]
"""The pydantic type of an example: a text, or a mapping with a message."""


@cache
def _a_message() -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[_Message, AfterValidator(_plain)])


def read_message(data: Any) -> Mapping[str, Any]:
    """Read a message from plain JSON types: a mapping with ``content``, ``reasoning`` and ``tool_calls``.

    Raises
    ------
    Invalid
        If it is invalid; the error has the location.
    """
    message: Mapping[str, Any] = validated(data, _a_message())
    return message
