"""Items in the input of a request to ``/v1/responses``, as messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guardwrap.documents.yaml_nodes import short
from guardwrap.errors import nearest
from guardwrap.serve.chat_messages import CACHE_MARKS
from guardwrap.serve.error_responses import bad

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
    for name, each in value.items():
        if name not in known and each is not None:
            raise bad(where, f"unknown field {short(name)}{nearest(name, known)}; known: {', '.join(known)}")
    return {name: each for name, each in value.items() if each is not None}
