"""Accepted answers to chats as messages in the format of OpenAI's API, and messages that chat templates can read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from guardwrap.constraints.stop_strings import cut, shown
from guardwrap.outcomes import Draw, Outcome


class CalledTool(NamedTuple):
    """A call of a tool."""

    ident: str | None  # its id, to which the tool's result refers
    name: str  # name of the tool
    arguments: Mapping[str, Any]


def answer_message(draw: Draw, stops: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a chat's answer: those of the parsed message, or its text alone."""
    if draw.message is None:
        return {"content": cut(draw.text, stops)}
    parts = dict(draw.parts or ())  # what was judged
    thoughts, calls = parts.get("reasoning", ()), [_call(call) for call in parts.get("tool_calls", ())]
    content = "".join(parts.get("answer", ()))
    return {
        **({"reasoning_content": "".join(thoughts)} if thoughts else {}),
        "content": content if content or not calls else None,
        **({"tool_calls": calls} if calls else {}),
    }


def _call(text: str) -> dict[str, Any]:
    """Return a call, given as JSON, as OpenAI's API gives it: with an id, and its arguments as a string."""
    call = json.loads(text)
    function = call.get("function", call) if isinstance(call, dict) else {}
    arguments = function.get("arguments", {})
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    ident = f"call_{uuid.uuid4().hex[:24]}"
    return {"id": ident, "type": "function", "function": {"name": function.get("name"), "arguments": written}}


def called_tools(message: Mapping[str, Any]) -> Iterator[CalledTool]:
    """Yield the calls of an ``answer_message``.

    A call without a name, or whose arguments are not an object, is left out: it can occur only if no tools were passed.
    """
    for call in message.get("tool_calls", ()):
        name = call["function"]["name"]
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            continue
        if isinstance(name, str) and isinstance(arguments, dict):
            yield CalledTool(call["id"], name, arguments)


def chat_turn(
    role: str,
    content: str,
    *,
    calls: Sequence[CalledTool] = (),
    reasoning: str | None = None,
    name: str | None = None,
    tool_call_id: str | None = None,
) -> dict[str, Any]:
    """Return a message of a chat as chat templates read it, with arguments of calls as objects."""
    turn: dict[str, Any] = {"role": role, "content": content}
    if calls:
        turn["tool_calls"] = [
            {
                **({} if call.ident is None else {"id": call.ident}),
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call in calls
        ]
    more = {"reasoning_content": reasoning, "name": name, "tool_call_id": tool_call_id}
    return turn | {field: value for field, value in more.items() if value}


def shown_texts(outcome: Outcome, stops: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of an outcome up to their first stop string, fallbacks included."""
    texts = [shown(draw, stops) for draw in outcome.draws]
    return (*texts, *(cut(text, stops) for text in outcome.texts[len(texts) :]))


def finish_reason(draw: Draw, stops: Sequence[str]) -> str:
    """Return why an accepted text ended: ``"tool_calls"``, ``"stop"`` or ``"length"``."""
    if draw.message is not None and json.loads(draw.message).get("tool_calls"):
        return "tool_calls"
    return "stop" if draw.finished or shown(draw, stops) != draw.text else "length"
