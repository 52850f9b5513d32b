"""Chats in requests: messages that clients replay, tools, and how tools may be called."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Mapping
from typing import Any

from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.documents.lexical import load_json
from guardwrap.errors import GuardwrapError, nearest
from guardwrap.serve.error_responses import bad, in_field
from guardwrap.serve.fields import flag, require_size
from guardwrap.serve.request_policy import RequestPolicy

CACHE_MARKS = ("cache_control", "prompt_cache_breakpoint")
"""Fields of messages and their parts that say what another server caches. They change no text."""

INVALID_ARGUMENTS = "invalid_arguments"
"""Argument with the text of a replayed call's arguments that are no JSON object. Templates only take objects."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_OF_MESSAGES = (
    "role", "content", "name", "refusal", "audio", "tool_calls", "tool_call_id", "function_call", "annotations",
    "reasoning_content", "reasoning", "parsed", *CACHE_MARKS,
)  # fmt: skip
"""Fields of messages. OpenAI's client adds ``parsed`` to replies, and sends it with them."""
_THOUGHTS = ("reasoning_content", "reasoning")
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_MOST_TEMPLATE_OPTIONS = 20


_IMAGE = "data:image/"
_PIXELS = 20_000_000
"""Most pixels of an image. A small file can hold a huge image, which would take all memory."""


def read_chat(messages: Any, *, images: bool = False) -> list[dict[str, Any]]:
    """Read the messages of a request, as chat templates expect them."""
    if not isinstance(messages, list) or not messages:
        raise bad("messages", "give a list of messages, each with a role and content")
    return [_message(message, f"messages.{i}", images=images) for i, message in enumerate(messages)]


def _message(message: Any, where: str, *, images: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad(where, "give an object with a role and content")
    message = {
        name: value for name, value in message.items() if value is not None and (value != [] or name == "content")
    }
    for name in message:
        if name not in _OF_MESSAGES:
            raise bad(where, f"unknown field {name[:60]!r}{nearest(name, _OF_MESSAGES)}")
        if name in ("audio", "function_call"):
            raise bad(f"{where}.{name}", "is not supported; leave it out")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{where}.role", f"is not one of {', '.join(_ROLES)}{nearest(role, _ROLES)}")
    calls = message.get("tool_calls")
    if calls is not None and role != "assistant":
        raise bad(f"{where}.tool_calls", "belong to messages of the assistant")
    content = message.get("content", message.get("refusal", "" if calls or role == "tool" else None))
    content = [{"type": "text", "text": content}] if images and isinstance(content, str) else content
    if isinstance(content, list):
        parts = [_part(part, f"{where}.content.{i}", images=images) for i, part in enumerate(content)]
        content = parts if images else "\n".join(part["text"] for part in parts)
    elif not isinstance(content, str):
        raise bad(f"{where}.content", "give a string, or a list of parts of type text")
    read: dict[str, Any] = {"role": _ROLES[role], "content": content}
    if calls is not None:
        read["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    for name in ("name", "tool_call_id"):
        if name in message:
            read[name] = _string(message[name], f"{where}.{name}")
    if (thought := next((message[name] for name in _THOUGHTS if name in message), None)) is not None:
        read["reasoning_content"] = _string(thought, f"{where}.reasoning_content")
    return read


def _part(part: Any, where: str, *, images: bool) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "image_url" and images:
        _require_only(part, where, ("type", "image_url"))
        return {"type": "image", "image": _image(part.get("image_url"), f"{where}.image_url")}
    if kind == "image_url":
        raise bad(where, "this model does not take images; for one that does, write images: true into the settings")
    if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
        raise bad(where, "only parts of type text are supported: {'type': 'text', 'text': '...'}")
    _require_only(part, where, ("type", kind))
    return {"type": "text", "text": part[kind]}


def _require_only(part: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
    known = (*known, *CACHE_MARKS)
    if extra := sorted(name for name in part if name not in known and part[name] is not None):
        raise bad(where, f"unknown field {extra[0][:60]!r}")


def _image(value: Any, where: str) -> Any:
    """Return an image from its data URL."""
    from PIL import Image

    value = {"url": value} if isinstance(value, str) else value
    url = value.get("url") if isinstance(value, dict) else None
    if not isinstance(url, str):
        raise bad(f"{where}.url", "give a string")
    if not url.startswith(_IMAGE) or ";base64," not in url:
        raise bad(f"{where}.url", "this server fetches nothing; send the image itself: 'data:image/png;base64,...'")
    if value.get("detail") not in (None, "auto"):
        raise bad(f"{where}.detail", "is not supported; send the image in the size that the model should see")
    try:
        image = Image.open(io.BytesIO(base64.b64decode(url.partition(";base64,")[2], validate=True)))
        size = image.size[0] * image.size[1]
        if size <= _PIXELS:
            return image.convert("RGB")
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise bad(f"{where}.url", "is not an image in a known format, such as PNG or JPEG") from None
    raise bad(f"{where}.url", f"has {size} pixels; this server accepts at most {_PIXELS}", code="above_the_limit")


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Return replayed calls with their arguments as objects, which chat templates expect."""
    if not isinstance(calls, list):
        raise bad(where, "give a list of calls")
    read = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad(f"{where}.{i}", "give a call: {'type': 'function', 'function': {'name', 'arguments'}}")
        arguments = _arguments(function.get("arguments"))
        ident = {"id": _string(call["id"], f"{where}.{i}.id")} if call.get("id") is not None else {}
        function = {"name": function["name"], "arguments": arguments}
        read.append({**ident, "type": "function", "function": function})
    return read


def _arguments(value: Any) -> dict[str, Any]:
    """Return a replayed call's arguments. Agents replay the calls of other models as they were, valid or not."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    try:
        arguments = load_json(value) if isinstance(value, str) else value
    except (ValueError, OverflowError, RecursionError):
        arguments = value
    return arguments if isinstance(arguments, dict) else {INVALID_ARGUMENTS: arguments}


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise bad(where, "give a string")
    return value


def read_tools(fields: Mapping[str, Any], policy: RequestPolicy) -> ToolCalls | None:
    """Return the rule for tool calls; None without tools.

    Every call names one of the tools, and its arguments satisfy the tool's schema, whether or not it is ``strict``.
    """
    tools, choice = fields.get("tools"), fields.get("tool_choice", "auto")
    if not tools:
        if choice not in ("auto", "none"):
            raise bad("tool_choice", "requires tools")
        return None
    if policy.parses == "never":
        raise bad("tools", "this model's calls cannot be parsed: its chat template has the markers of no known family")
    if not isinstance(tools, list):
        raise bad("tools", "give a list of tools")
    require_size("tools", len(json.dumps(tools)), policy.limits.constraint_characters)
    for i, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type", "function") != "function":
            raise bad(f"tools.{i}", "only tools of type function are supported")
    parallel = flag(fields, "parallel_tool_calls") if "parallel_tool_calls" in fields else True
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice = _allowed_tools(choice)
    try:
        return ToolCalls(tools, choice=choice, parallel=parallel, name="the tools")
    except GuardwrapError as error:
        raise in_field("tool_choice" if error.location == ("choice",) else "tools", error) from None


def _allowed_tools(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice of several tools as ``ToolCalls`` takes it."""
    where, allowed = "tool_choice.allowed_tools", choice.get("allowed_tools")
    if not isinstance(allowed, dict) or allowed.get("mode") not in ("auto", "required"):
        raise bad(where, "give an object with the mode auto or required, and tools")
    tools, names = allowed.get("tools"), []
    for i, tool in enumerate(tools if isinstance(tools, list) else ()):
        function = (
            tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
        )
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad(f"{where}.tools.{i}", "give {'type': 'function', 'function': {'name': NAME}}")
        names.append(function["name"])
    if not names:
        raise bad("tool_choice", "the type 'allowed_tools' needs a list of at least one tool")
    return {"mode": allowed["mode"], "names": names}


def read_template_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that a request sets in the chat template, such as ``enable_thinking``."""
    where, options = "chat_template_kwargs", fields.get("chat_template_kwargs", {})
    if not isinstance(options, dict) or len(options) > _MOST_TEMPLATE_OPTIONS:
        raise bad(where, f"give an object with at most {_MOST_TEMPLATE_OPTIONS} variables of the chat template")
    for name, value in options.items():
        if not isinstance(value, str | bool | int | float) or name in _OF_THE_CALL:
            raise bad(f"{where}.{name[:60]}", "is not supported; give strings, numbers, true or false")
    effort = fields.get("reasoning_effort")
    if effort is None or effort == "none":
        return dict(options)
    if effort not in _EFFORTS:
        raise bad("reasoning_effort", f"is not one of none, {', '.join(_EFFORTS)}{nearest(effort, _EFFORTS)}")
    return {"reasoning_effort": effort, **options}


_OF_THE_CALL = (
    "add_generation_prompt", "add_special_tokens", "chat_template", "continue_final_message", "conversation",
    "documents", "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors",
    "tokenize", "tokenizer_kwargs", "tools", "truncation",
)  # fmt: skip
"""Arguments of ``apply_chat_template``, which are no variables of the template."""
