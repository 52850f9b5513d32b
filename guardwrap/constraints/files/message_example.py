"""Examples of messages in constraint files, for rules that judge parts of a message."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    model_validator,
)

from guardwrap.documents import lexical
from guardwrap.documents.validation import validated


class _Strict(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


class _Call(_Strict):
    name: str = Field(description="Name of the tool.")
    arguments: dict[str, Any] = Field(default={}, description="Its arguments, by name.")


def _from_json(arguments: Any) -> Any:
    """Return the arguments of a call that are written as JSON, as in OpenAI's API."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return lexical.load_json(arguments)
    except (ValueError, OverflowError, RecursionError):
        raise ValueError("must be a mapping, or a string with a JSON object") from None


class _Function(_Strict):
    name: str = Field(description="Name of the tool.")
    arguments: Annotated[dict[str, Any], BeforeValidator(_from_json, json_schema_input_type=dict[str, Any] | str)] = (
        Field(default={}, description="Its arguments, by name, or as JSON.")
    )


class _SentCall(_Strict):
    id: str | None = Field(default=None, description="Ignored.")
    type: Literal["function"] = Field(default="function", description="Ignored.")
    function: _Function = Field(description="The tool and its arguments.")


_AnyCall = Annotated[
    Annotated[_Call, Tag("a call")] | Annotated[_SentCall, Tag("a sent call")],
    Discriminator(lambda value: "a sent call" if isinstance(value, dict) and "function" in value else "a call"),
]


class _Message(_Strict):
    role: Literal["assistant"] = Field(default="assistant", description="Ignored.")
    content: str | None = Field(default="", description="The answer.")
    reasoning: str = Field(default="", description="What the model thinks before it answers.")
    reasoning_content: str = Field(default="", description="Another name of 'reasoning'.")
    tool_calls: list[_AnyCall] = Field(
        default=[], description="The calls of tools: 'name' and 'arguments', or as in OpenAI's API."
    )

    @model_validator(mode="after")
    def _has_one_reasoning(self) -> _Message:
        if self.reasoning and self.reasoning_content and self.reasoning != self.reasoning_content:
            raise ValueError("has both 'reasoning' and 'reasoning_content', which differ; leave one out")
        return self


class _MessageExample(_Strict):
    """A message, for rules that judge a part of it."""

    message: _Message = Field(description="The parts of the message.")


def _plain_message(message: _Message) -> dict[str, Any]:
    calls = [call.function if isinstance(call, _SentCall) else call for call in message.tool_calls]
    fields = {
        "content": message.content,
        "reasoning": message.reasoning or message.reasoning_content,
        "tool_calls": [call.model_dump(exclude_defaults=True) for call in calls],
    }
    return {name: value for name, value in fields.items() if value}


def _plain_example(example: _MessageExample) -> dict[str, Any]:
    return {"message": _plain_message(example.message)}


AnExample: Any = Annotated[
    Annotated[str, Tag("a text")] | Annotated[_MessageExample, AfterValidator(_plain_example), Tag("a message")],
    Discriminator(lambda value: "a message" if isinstance(value, dict) and "message" in value else "a text"),
]
"""The pydantic type of an example: a text, or a mapping with a message."""


@cache
def _a_message() -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[_Message, AfterValidator(_plain_message)])


def read_message(data: Any) -> Mapping[str, Any]:
    """Read a message from plain JSON types: a mapping with ``content``, ``reasoning`` and ``tool_calls``.

    Those of ``Outcome.messages`` are read as well: with ``reasoning_content``, ``role`` and calls of OpenAI's API.
    """
    message: Mapping[str, Any] = validated(data, _a_message())
    return message
