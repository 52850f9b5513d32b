"""Requests to ``/v1/responses``, translated to those of ``/v1/chat/completions``, so that both are parsed alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from guardwrap.errors import nearest
from guardwrap.serve.error_responses import ErrorResponse, bad
from guardwrap.serve.parsed_request import ParsedRequest, parse_request
from guardwrap.serve.request_models import (
    NEUTRAL,
    Neutral,
    RequestObject,
    effective_fields,
    known_fields,
    read_field,
    without_neutral,
)
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.support.yaml_nodes import short

_OF_CHATS = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of a chat, and what they are called here."""

_CHAT_PLACES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "tool_choice.allowed_tools": "tool_choice",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Places in a chat that its errors name, and what they are called here."""

_STATELESS = "this server stores nothing"
_UNCOMPRESSED = ({"context_compression": "auto"}, {"context_compression": "disabled"})
_NEUTRAL: Neutral = {
    **NEUTRAL,
    "previous_response_id": ((), f"{_STATELESS}, so send the earlier items in input"),
    "conversation": ((), f"{_STATELESS}, so send the earlier items in input"),
    "prompt": ((), f"{_STATELESS}, so send the text in instructions and input"),
    "background": ((False,), f"{_STATELESS}, so wait for the reply, or stream it"),
    "context_management": (([],), "shorten the input yourself"),
    "truncation": (("disabled",), "shorten the input yourself"),
    "access_programs": (({}, {"cyber": "standard"}), "this server has none"),
    "image": (({}, *_UNCOMPRESSED), "send the image in the size that the model should see"),
    "n": ((1,), "a response has one text; use /v1/chat/completions for several"),
}
_OF_TEXT: Neutral = {"verbosity": NEUTRAL["verbosity"]}
_OF_REASONING: Neutral = {
    "summary": (("auto", "detailed"), "the reasoning is returned as a whole"),
    "generate_summary": (("auto", "detailed"), "the reasoning is returned as a whole"),
    "context": (("auto",), "the chat template decides which reasoning it shows"),
    "mode": (("standard",), "the model has one mode"),
}
_OF_CALLS: Neutral = {
    "async": ((False,), "this server runs no programs"),
    "caller": (({"type": "direct"},), "this server runs no programs"),
}
_LABELS = ("max_tool_calls", "background_options")
"""Fields that change nothing: this server runs neither tools nor requests in the background."""


class _Text(RequestObject):
    format: dict[str, Any] | None = None


class _Reasoning(RequestObject):
    effort: Any = None  # validated as the field of a chat


class _Tool(RequestObject):
    type: Literal["function"]
    name: Any = None  # validated with the rule for the calls
    description: Any = None
    parameters: Any = None
    strict: Any = None
    defer_loading: Literal[False] = False


_Included = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""Additions to items that no response of this server has, so that they change nothing."""


class _Translated(RequestObject):
    """Fields that have another form than those of a chat."""

    input: Any = None
    instructions: str = ""
    max_output_tokens: Any = None  # validated as the field of a chat
    text: _Text = _Text()
    reasoning: _Reasoning = _Reasoning()
    include: list[_Included] = Field([])
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None


class _Thought(RequestObject):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class _Item(RequestObject):
    """Fields of all items."""

    type: str = "message"
    id: Any = None
    status: Any = None


class _MessageItem(_Item):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]  # parts are validated as those of a chat
    phase: Any = None


class _ReasoningItem(_Item):
    summary: list[_Thought] = Field([])
    content: list[_Thought] = Field([])
    encrypted_content: Any = None


class _CallItem(_Item):
    call_id: str
    name: str
    arguments: str
    parsed_arguments: Any = None  # OpenAI's client adds it to replies


class _OutputItem(_Item):
    call_id: str
    output: str | list[dict[str, Any]]
    name: str | None = None


_ITEMS: dict[str, type[_Item]] = {
    "message": _MessageItem,
    "reasoning": _ReasoningItem,
    "function_call": _CallItem,
    "function_call_output": _OutputItem,
}
_TRANSLATED = ("input", "instructions", "max_output_tokens", "text", "reasoning", "include")
_OURS = (*known_fields(chat=True), *_TRANSLATED, *_NEUTRAL, *_LABELS)
_KNOWN = tuple(name for name in _OURS if name not in _OF_CHATS)
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""Fields that the response repeats, with their defaults."""


def parse_responses(body: Mapping[str, Any], policy: RequestPolicy) -> ParsedRequest:
    """Validate the body of a request to ``/v1/responses``."""
    elsewhere = {name: f"is a field of /v1/chat/completions; give {here}" for name, here in _OF_CHATS.items()}
    effective = effective_fields(body, _KNOWN, elsewhere, _NEUTRAL)
    for name, neutral in (("text", _OF_TEXT), ("reasoning", _OF_REASONING)):
        if isinstance(value := effective.get(name), dict):
            effective[name] = without_neutral(value, neutral, name)
    here = {name: value for name, value in effective.items() if name in _Translated.model_fields}
    chat = {name: value for name, value in effective.items() if name not in (*here, *_LABELS)}
    fields: _Translated = read_field(_Translated, here)
    first = [{"role": "system", "content": fields.instructions}] if fields.instructions else []
    messages, places = read_items(fields.input, len(first))
    chat |= {"messages": [*first, *messages], "max_tokens": fields.max_output_tokens}
    chat |= {"response_format": _format(fields.text.format), "reasoning_effort": fields.reasoning.effort}
    chat |= {"tools": None if fields.tools is None else [_tool(tool) for tool in fields.tools]}
    chat |= {"tool_choice": _tool_choice(fields.tool_choice)}
    with _named_as_sent(places):
        request = parse_request(chat, policy, chat=True)
    length_field = None if request.length_field is None else "max_output_tokens"
    echo = {name: default if body.get(name) is None else body[name] for name, default in _ECHOED.items()}
    echo["text"] = {**_ECHOED["text"], **effective.get("text", {})}
    return replace(request, prompt_field="input", length_field=length_field, echo=echo)


@contextmanager
def _named_as_sent(places: Mapping[str, str]) -> Iterator[None]:
    """Let errors of the chat name the fields of the request."""
    names = {**_CHAT_PLACES, **places}
    try:
        yield
    except ErrorResponse as error:
        param = error.param or ""
        inside = [name for name in names if f"{param}.".startswith(f"{name}.")]
        if not inside:
            raise
        name = max(inside, key=len)
        sent = names[name] + param.removeprefix(name)
        message = error.message if error.problem is None else f"{sent}: {error.problem}"
        raise ErrorResponse(error.status, message, param=sent, code=error.code) from None


def _format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the format of the text in the form of a chat, which nests the schema."""
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: value for name, value in form.items() if name != "type"}}


def _tool(tool: _Tool) -> dict[str, Any]:
    """Return a tool in the form of a chat, which nests the fields of the function."""
    return {"type": "function", "function": tool.model_dump(exclude={"type", "defer_loading"}, exclude_none=True)}


def _tool_choice(choice: Any) -> Any:
    """Return the choice in the form of a chat."""

    def nested(tool: Any) -> Any:
        known = isinstance(tool, dict)
        return {"type": tool.get("type"), "function": {"name": tool.get("name")}} if known else tool

    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        tools = [nested(tool) for tool in tools] if isinstance(tools, list) else tools
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    if choice.get("type") != "function":
        problem = f"type {short(choice.get('type'))} is not supported"
        raise bad("tool_choice", f"{problem}; give auto, required, none, a function or allowed_tools")
    return nested(choice)


def read_items(value: Any, before: int = 0) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the messages of a chat with the items of an input.

    Reasoning, text and calls of one turn of the assistant are separate items, and one message.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}], {}
    if not isinstance(value, list) or not value:
        raise bad("input", "give a string, or a list of items such as messages")
    messages: list[dict[str, Any]] = []
    places = {}
    for i, item in enumerate(value):
        piece = _piece(item, f"input.{i}")
        if messages and _continues(messages[-1], piece):
            _add(messages[-1], piece)
        elif piece:
            messages.append(piece)
        message = before + len(messages) - 1
        if "content" in piece:
            field = "output" if piece["role"] == "tool" else "content"
            places[f"messages.{message}.content"] = f"input.{i}.{field}"
        if "tool_calls" in piece:
            call = len(messages[-1]["tool_calls"]) - 1
            places[f"messages.{message}.tool_calls.{call}.function"] = f"input.{i}"
    return [{"content": "", **message} for message in messages], places


def _continues(turn: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Return whether an item belongs to the assistant message of the items before it."""
    if not turn["role"] == piece.get("role") == "assistant":
        return False
    after = {"tool_calls": (), "content": ("content",), "reasoning_content": ("content", "tool_calls")}
    return not any(name in turn for field in piece if field != "role" for name in after[field])


def _add(turn: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add an item to the assistant message that it continues."""
    for name, more in piece.items():
        if name in turn and name != "role":
            turn[name] = turn[name] + (more if name == "tool_calls" else f"\n{more}")
        else:
            turn[name] = more


def _piece(item: Any, where: str) -> dict[str, Any]:
    """Return an item as a message, or as a piece of one; empty if it has no text."""
    kind = item.get("type") if isinstance(item, dict) else None
    if kind is None and isinstance(item, dict) and item.get("role") is not None:
        kind = "message"
    if kind == "item_reference":
        raise bad(where, "is a reference to an item, but this server stores nothing; send the item itself")
    if not isinstance(kind, str) or kind not in _ITEMS:
        problem = f"items of type {short(kind)} are not supported{nearest(kind, _ITEMS)}; give {', '.join(_ITEMS)}"
        raise bad(where, problem if kind is not None else f"give an item: an object with a type: {', '.join(_ITEMS)}")
    neutral = _OF_CALLS if kind.startswith("function_call") else {}
    read = read_field(_ITEMS[kind], without_neutral(item, neutral, where), where)
    if isinstance(read, _MessageItem):
        return {"role": read.role, "content": _content(read.content, f"{where}.content")}
    if isinstance(read, _ReasoningItem):
        return _reasoning(read, where)
    if isinstance(read, _OutputItem):
        named = {} if read.name is None else {"name": read.name}
        return {
            "role": "tool",
            "tool_call_id": read.call_id,
            **named,
            "content": _content(read.output, f"{where}.output"),
        }
    call = {"name": read.name, "arguments": read.arguments}
    return {"role": "assistant", "tool_calls": [{"id": read.call_id, "type": "function", "function": call}]}


def _reasoning(item: _ReasoningItem, where: str) -> dict[str, Any]:
    """Return a piece with the reasoning, or with its summary, which is all that other servers give."""
    if parts := item.content or item.summary:
        return {"role": "assistant", "reasoning_content": "\n".join(part.text for part in parts)}
    if item.encrypted_content is not None:
        raise bad(f"{where}.encrypted_content", "this server cannot read it; leave the item out, or send its content")
    return {}


_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal", "input_image": "image_url"}
"""Types of parts, and what chats call them."""


def _content(content: str | list[dict[str, Any]], where: str) -> str | list[dict[str, Any]]:
    """Return a string, or parts in the form of a chat."""
    if isinstance(content, str):
        return content
    return [_part(part, f"{where}.{i}") for i, part in enumerate(content)]


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _PARTS:
        raise bad(f"{where}.type", f"{short(kind)} is not one of {', '.join(_PARTS)}{nearest(kind, _PARTS)}")
    fields = {name: value for name, value in part.items() if name not in ("annotations", "logprobs", "parsed")}
    if kind == "input_image":
        fields["image_url"] = {"url": fields.pop("image_url", None), "detail": fields.pop("detail", None)}
    return {**fields, "type": _PARTS[kind]}
