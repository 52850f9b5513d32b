"""Requests to ``/v1/responses``, translated to those of ``/v1/chat/completions``, so that both are parsed alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from guardwrap.documents.yaml_nodes import short
from guardwrap.errors import nearest
from guardwrap.serve.chat_messages import CACHE_MARKS
from guardwrap.serve.error_responses import ErrorResponse, bad
from guardwrap.serve.fields import NEUTRAL, effective_fields, known_fields, require_fields
from guardwrap.serve.parsed_request import ParsedRequest, parse_request
from guardwrap.serve.request_policy import RequestPolicy

_TRANSLATED = ("input", "instructions", "max_output_tokens", "text", "reasoning", "include")
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
_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
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
_LABELS = ("max_tool_calls", "background_options")
"""Fields that change nothing: this server runs neither tools nor requests in the background."""

_OURS = (*known_fields(chat=True), *_TRANSLATED, *_NEUTRAL, *_LABELS)
_KNOWN = tuple(name for name in _OURS if name not in _OF_CHATS)
_REASONING: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "summary": (("auto", "detailed"), "the reasoning is returned as a whole"),
    "generate_summary": (("auto", "detailed"), "the reasoning is returned as a whole"),
    "context": (("auto",), "the chat template decides which reasoning it shows"),
    "mode": (("standard",), "the model has one mode"),
}
_INCLUDABLE = (
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)  # fmt: skip
"""Additions to items that no response of this server has, so that they change nothing."""
_TOOL = ("type", "name", "description", "parameters", "strict")
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


def parse_responses(fields: Mapping[str, Any], policy: RequestPolicy) -> ParsedRequest:
    """Validate the body of a request to ``/v1/responses``."""
    elsewhere = {name: f"is a field of /v1/chat/completions; give {here}" for name, here in _OF_CHATS.items()}
    effective = effective_fields(fields, _KNOWN, elsewhere, _NEUTRAL)
    chat = {name: value for name, value in effective.items() if name not in (*_TRANSLATED, *_LABELS)}
    _require_includable(effective.get("include", []))
    first = _instructions(effective.get("instructions", ""))
    messages, places = read_items(effective.get("input"), len(first))
    chat |= {"messages": [*first, *messages]}
    chat |= _format(effective.get("text", {})) | _effort(effective.get("reasoning", {}))
    for name, here, translated in (
        ("tools", "tools", _tools),
        ("tool_choice", "tool_choice", _tool_choice),
        ("max_tokens", "max_output_tokens", lambda value: value),
    ):
        if here in effective:
            chat[name] = translated(effective[here])
    with _named_as_sent(places):
        request = parse_request(chat, policy, chat=True)
    length_field = None if request.length_field is None else "max_output_tokens"
    echo = {name: default if fields.get(name) is None else fields[name] for name, default in _ECHOED.items()}
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


def _instructions(value: Any) -> list[dict[str, Any]]:
    """Return the system message with the instructions, in a list that is empty without any."""
    if not isinstance(value, str):
        raise bad("instructions", "give a string; put messages into input")
    return [{"role": "system", "content": value}] if value else []


def _require_includable(names: Any) -> None:
    if not isinstance(names, list):
        raise bad("include", "give a list of strings")
    for i, name in enumerate(names):
        if name not in _INCLUDABLE:
            raise bad(f"include.{i}", f"{short(name)} is not supported; leave it out", code="unsupported_field")


def _format(text: Any) -> dict[str, Any]:
    """Return the field of a chat for the format of the text."""
    fields = object_of(text, "text", ("format", "verbosity"))
    _require_neutral(fields, "text", {"verbosity": NEUTRAL["verbosity"]})
    form = fields.get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type" and value is not None}
        form = {"type": "json_schema", "json_schema": schema}
    return {} if form is None else {"response_format": form}


def _effort(reasoning: Any) -> dict[str, Any]:
    """Return the field of a chat for the effort of the reasoning."""
    fields = object_of(reasoning, "reasoning", ("effort", *_REASONING))
    _require_neutral(fields, "reasoning", _REASONING)
    return {"reasoning_effort": fields["effort"]} if "effort" in fields else {}


def _require_neutral(fields: Mapping[str, Any], where: str, neutral: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    for name, (values, reason) in neutral.items():
        if name in fields and fields[name] not in values:
            problem = f"is not supported: {reason}; leave it out"
            raise bad(f"{where}.{name}", problem, code="unsupported_field")


def _tools(tools: Any) -> Any:
    """Return the tools in the form of a chat, which nests the fields of the function."""
    if not isinstance(tools, list):
        raise bad("tools", "give a list of tools")
    return [_tool(tool, f"tools.{i}") for i, tool in enumerate(tools)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        problem = f"tools of type {short(kind)} are not supported" if kind is not None else "give a tool with a type"
        raise bad(where, f"{problem}; give functions: {{'type': 'function', 'name', 'parameters'}}")
    fields = object_of({**tool, "defer_loading": tool.get("defer_loading") or None}, where, _TOOL)
    return {"type": "function", "function": {name: value for name, value in fields.items() if name != "type"}}


def _tool_choice(choice: Any) -> Any:
    """Return the choice in the form of a chat."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        functions = [
            {"type": tool.get("type"), "function": {"name": tool.get("name")}} if isinstance(tool, dict) else tool
            for tool in (tools if isinstance(tools, list) else ())
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": functions}}
    if choice.get("type") != "function":
        problem = f"type {short(choice.get('type'))} is not supported"
        raise bad("tool_choice", f"{problem}; give auto, required, none, a function or allowed_tools")
    return {"type": "function", "function": {"name": choice.get("name")}}


_DIRECT: Mapping[str, tuple[Any, ...]] = {"async": (False,), "caller": ({"type": "direct"},)}
"""Fields of calls, and the values that have no effect. Others are of programs, which call tools on another server."""

_FIELDS = {
    "message": ("role", "content", "phase"),
    "reasoning": ("summary", "content", "encrypted_content"),
    "function_call": ("call_id", "name", "arguments", "parsed_arguments", *_DIRECT),
    "function_call_output": ("call_id", "output", "name", *_DIRECT),
}
"""Fields of each type of item, besides those of all items. OpenAI's client adds ``parsed_arguments`` to replies."""

_OF_ALL = ("type", "id", "status")
_ROLES = ("user", "assistant", "system", "developer")
_PARTS = {
    "input_text": ("text", *CACHE_MARKS),
    "input_image": ("image_url", "detail", *CACHE_MARKS),
    "output_text": ("text", "annotations", "logprobs", "parsed", *CACHE_MARKS),
    "refusal": ("refusal",),
    "reasoning_text": ("text",),
    "summary_text": ("text",),
}
"""Fields of each type of content part. The first one is its text, and the others do not change the prompt."""


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
        if piece.get("role") == "user":
            places[f"messages.{message}.content"] = f"input.{i}.content"
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
    if not isinstance(kind, str) or kind not in _FIELDS:
        problem = f"items of type {short(kind)} are not supported{nearest(kind, _FIELDS)}; give {', '.join(_FIELDS)}"
        raise bad(where, problem if kind is not None else f"give an item: an object with a type: {', '.join(_FIELDS)}")
    fields = object_of(item, where, (*_OF_ALL, *_FIELDS[kind]))
    for name, neutral in _DIRECT.items():
        if name in _FIELDS[kind] and fields.get(name, neutral[0]) not in neutral:
            raise bad(f"{where}.{name}", "is not supported: this server runs no programs; leave it out")
    if kind == "message":
        return _message(fields, where)
    if kind == "reasoning":
        return _reasoning(fields, where)
    call_id = _string(fields, "call_id", where)
    if kind == "function_call_output":
        output = _content(fields.get("output"), f"{where}.output", ("input_text",))
        named = {"name": _string(fields, "name", where)} if "name" in fields else {}
        return {"role": "tool", "tool_call_id": call_id, **named, "content": output}
    call = {"name": _string(fields, "name", where), "arguments": _string(fields, "arguments", where)}
    return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": call}]}


def _message(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = fields.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{where}.role", f"is not one of {', '.join(_ROLES)}{nearest(role, _ROLES)}")
    kinds = ("input_text", "input_image", "output_text", "refusal")
    return {"role": role, "content": _content(fields.get("content"), f"{where}.content", kinds)}


def _reasoning(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a piece with the reasoning, or with its summary, which is all that other servers give."""
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        if fields.get(name, []) != []:
            parts = _content(fields[name], f"{where}.{name}", (kind,))
            texts = [parts] if isinstance(parts, str) else [part["text"] for part in parts]
            return {"role": "assistant", "reasoning_content": "\n".join(texts)}
    if "encrypted_content" in fields:
        raise bad(f"{where}.encrypted_content", "this server cannot read it; leave the item out, or send its content")
    return {}


def _content(value: Any, where: str, kinds: tuple[str, ...]) -> str | list[dict[str, Any]]:
    """Return a string, or parts in the form of a chat."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise bad(where, f"give a string, or a list of parts of type {kinds[0]}")
    return [_part(part, f"{where}.{i}", kinds) for i, part in enumerate(value)]


def _part(part: Any, where: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        problem = f"parts of type {short(kind)} are not supported" if kind is not None else "give a part with a type"
        raise bad(where, f"{problem}; known: {', '.join(kinds)}")
    fields = object_of(part, where, ("type", *_PARTS[kind]))
    text = fields.get(_PARTS[kind][0])
    if not isinstance(text, str):
        raise bad(f"{where}.{_PARTS[kind][0]}", "give a string")
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": text, "detail": fields.get("detail")}}
    return {"type": "text", "text": text}


def _string(fields: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(fields.get(name), str):
        raise bad(f"{where}.{name}", "give a string")
    return str(fields[name])


def object_of(value: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of an object, without those that are None."""
    if not isinstance(value, dict):
        raise bad(where, f"give an object with any of {', '.join(known)}")
    fields = {name: each for name, each in value.items() if each is not None}
    require_fields(fields, where, known)
    return fields
