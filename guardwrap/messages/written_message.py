"""Messages that a user has written, such as examples of a constraint, in the form in which a model's are judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from guardwrap.messages.parsed_message import message_fault, message_parts, message_text
from guardwrap.outcomes import Draw


def written_message(message: Mapping[str, Any]) -> Draw:
    """Return a message as a finished draw without tokens.

    ``message``: its ``content``, ``reasoning`` and ``tool_calls``, each of which may be missing. A call has a
    ``name`` and ``arguments``.
    """
    calls = [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in message.get("tool_calls", ())
    ]
    fields = {
        "reasoning_content": message.get("reasoning", "").strip(),  # as in messages that models write
        "content": message.get("content", "").strip(),
        "tool_calls": calls,
    }
    fault = message_fault(fields)
    whole = None if fault is not None else json.dumps({"role": "assistant", **fields}, ensure_ascii=False)
    return Draw(
        prompt="", token_ids=(), text=message_text(fields), fault=fault, parts=message_parts(fields), message=whole
    )
