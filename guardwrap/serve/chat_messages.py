"""Chats in requests: messages that clients replay, tools, and how tools may be called."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Sequence
from typing import Any

from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.errors import GuardwrapError
from guardwrap.serve.error_responses import bad, in_field
from guardwrap.serve.request_models import AllowedTools, ChatFields, Image, Message, Part, read_field, require_size
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.support.lexical import load_json

INVALID_ARGUMENTS = "invalid_arguments"
"""Argument with the text of a replayed call's arguments that are no JSON object. Templates only take objects."""

_IMAGE = "data:image/"
_PIXELS = 20_000_000
"""Most pixels of an image. A small file can hold a huge image, which would take all memory."""


def chat_of(messages: Sequence[Message], *, images: bool = False) -> list[dict[str, Any]]:
    """Return the messages of a request, as chat templates expect them."""
    return [_shown(message, f"messages.{i}", images=images) for i, message in enumerate(messages)]


def _shown(message: Message, where: str, *, images: bool) -> dict[str, Any]:
    content: Any = message.content
    if content is None:
        content = message.refusal or ""
    if isinstance(content, str) and images:
        content = [Part(type="text", text=content)]
    if not isinstance(content, str):
        parts = [_shown_part(part, f"{where}.content.{i}", images=images) for i, part in enumerate(content)]
        content = parts if images else "\n".join(part["text"] for part in parts)
    turn: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
    if message.tool_calls:
        # Templates expect arguments as objects.
        turn["tool_calls"] = [
            {
                **({} if call.id is None else {"id": call.id}),
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    thought = message.reasoning if message.reasoning_content is None else message.reasoning_content
    named = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": thought}
    return turn | {name: value for name, value in named.items() if value is not None}


def _shown_part(part: Part, where: str, *, images: bool) -> dict[str, Any]:
    if part.image_url is None:
        return {"type": "text", "text": part.text if part.refusal is None else part.refusal}
    if not images:
        raise bad(where, "this model does not take images; for one that does, write images: true into the settings")
    url = part.image_url.url if isinstance(part.image_url, Image) else part.image_url
    return {"type": "image", "image": _decoded(url, f"{where}.image_url.url")}


def _decoded(url: str, where: str) -> Any:
    """Return an image from its data URL."""
    from PIL import Image as Pillow

    if not url.startswith(_IMAGE) or ";base64," not in url:
        raise bad(where, "this server fetches nothing; send the image itself: 'data:image/png;base64,...'")
    try:
        image = Pillow.open(io.BytesIO(base64.b64decode(url.partition(";base64,")[2], validate=True)))
        size = image.size[0] * image.size[1]
        if size <= _PIXELS:
            return image.convert("RGB")
    except (binascii.Error, OSError, ValueError, SyntaxError, Pillow.DecompressionBombError):
        raise bad(where, "is not an image in a known format, such as PNG or JPEG") from None
    raise bad(where, f"has {size} pixels; this server accepts at most {_PIXELS}", code="above_the_limit")


def _arguments(value: Any) -> dict[str, Any]:
    """Return a replayed call's arguments. Agents replay the calls of other models as they were, valid or not."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    try:
        arguments = load_json(value) if isinstance(value, str) else value
    except (ValueError, OverflowError, RecursionError):
        arguments = value
    return arguments if isinstance(arguments, dict) else {INVALID_ARGUMENTS: arguments}


def tools_of(fields: ChatFields, policy: RequestPolicy) -> ToolCalls | None:
    """Return the rule for tool calls; None without tools.

    Every call names one of the tools, and its arguments satisfy the tool's schema, whether or not it is ``strict``.
    """
    choice = fields.tool_choice
    if not fields.tools:
        if choice not in ("auto", "none"):
            raise bad("tool_choice", "requires tools")
        return None
    if policy.parses == "never":
        raise bad("tools", "this model's calls cannot be parsed: its chat template has the markers of no known family")
    require_size("tools", len(json.dumps(fields.tools)), policy.limits.constraint_characters)
    for i, tool in enumerate(fields.tools):
        if tool.get("type", "function") != "function":
            raise bad(f"tools.{i}", "only tools of type function are supported")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = read_field(AllowedTools, choice.get("allowed_tools"), "tool_choice.allowed_tools")
        choice = {"mode": allowed.mode, "names": [tool.function.name for tool in allowed.tools]}
    try:
        return ToolCalls(fields.tools, choice=choice, parallel=fields.parallel_tool_calls, name="the tools")
    except GuardwrapError as error:
        raise in_field("tool_choice" if error.location == ("choice",) else "tools", error) from None


def template_options(fields: ChatFields) -> dict[str, Any]:
    """Return the variables that a request sets in the chat template, such as ``enable_thinking``."""
    for name in fields.chat_template_kwargs:
        if name in _OF_THE_CALL:
            raise bad(f"chat_template_kwargs.{name}", "is no variable of the chat template; leave it out")
    effort = {} if fields.reasoning_effort == "none" else {"reasoning_effort": fields.reasoning_effort}
    return {**effort, **fields.chat_template_kwargs}


_OF_THE_CALL = (
    "add_generation_prompt", "add_special_tokens", "chat_template", "continue_final_message", "conversation",
    "documents", "max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors",
    "tokenize", "tokenizer_kwargs", "tools", "truncation",
)  # fmt: skip
"""Arguments of ``apply_chat_template``, which are no variables of the template."""
