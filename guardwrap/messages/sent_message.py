"""Messages that a server sends in separate fields: their parts, read while they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from guardwrap.backends.endpoint.attempt_stream import Delta, deltas_in
from guardwrap.constraints.message_monitor import Event
from guardwrap.documents.lexical import load_json
from guardwrap.messages.parsed_message import CUT_OFF, UNPARSED, message_fault, message_parts, message_text
from guardwrap.messages.regions import json_text


@dataclass(frozen=True)
class SentRegions:
    """A message so far. The answer and the reasoning are one region each, which the end of the message closes."""

    answer: str = ""  # their text
    reasoning: str = ""
    tool: str | None = None  # the tool and the arguments of the last call, as JSON; None before the first call
    arguments: str = ""
    calls: int = 0  # the number of calls that have begun
    failed: bool = False  # whether the arguments of a call are not JSON

    @property
    def key(self) -> None:
        """None: not known."""

    def read(self, text: str, /) -> tuple[SentRegions, Sequence[Event]]:
        """Return the state after more pieces, given as lines of JSON, and what happened in them."""
        return self.after(deltas_in(text))

    def after(self, deltas: Iterable[Delta]) -> tuple[SentRegions, list[Event]]:
        """Return the state after more pieces, and what happened in them."""
        state, events = self, list[Event]()
        for delta in deltas:
            if delta.part != "tool_calls":
                state = replace(state, **{delta.part: getattr(state, delta.part) + delta.text})
            elif delta.call == state.calls:
                state, ended = state._end_call()
                events += [*ended, Event("open", "tool_calls", ("arguments", delta.name))]
                state = replace(state, tool=delta.name, arguments=delta.text, calls=state.calls + 1)
            else:
                state = replace(state, arguments=state.arguments + delta.text)
            if delta.text:
                events.append(Event("text", delta.part, (delta.text,)))
        return state, events

    def finish(self) -> tuple[SentRegions, Sequence[Event]]:
        """Return the state at the end of the message, and what happens there."""
        state, events = self._end_call()
        parts = (("answer", self.answer), ("reasoning", self.reasoning))
        return state, [*events, *(Event("close", part, (text,)) for part, text in parts if text)]

    def _end_call(self) -> tuple[SentRegions, list[Event]]:
        if self.tool is None:
            return self, []
        try:
            arguments = load_json(self.arguments or "{}")  # some servers send nothing for a tool without parameters
        except (ValueError, OverflowError, RecursionError):
            return replace(self, failed=True), []
        call = {"type": "function", "function": {"name": self.tool, "arguments": arguments}}
        return replace(self, tool=None), [Event("close", "tool_calls", (json_text(call),))]


class SentMessage(NamedTuple):
    """A message at its end."""

    text: str  # all of its text, which rules without ``on=`` judge
    fault: str | None  # why it is rejected whatever the constraint says, or None
    parts: tuple[tuple[str, tuple[str, ...]], ...]  # the strings of each part
    message: str | None  # the message as JSON; None with a fault


def sent_message(lines: str, *, finished: bool) -> SentMessage:
    """Return the message in the pieces that a server has sent."""
    deltas = deltas_in(lines)
    read, events = SentRegions().after(deltas)
    state, ending = read.finish()
    if state.failed:
        raw = "".join(delta.text for delta in deltas)
        return SentMessage(raw, UNPARSED if finished else CUT_OFF, (), None)
    calls = [
        text
        for event in [*events, *ending]
        if event.part == "tool_calls" and event.kind == "close"
        for text in event.texts
    ]
    fields = _fields(read, calls)
    text, fault = message_text(fields), message_fault(fields)
    if fault is None and not finished and deltas[-1].part == "reasoning":
        fault = CUT_OFF
    message = json_text({"role": "assistant", **fields})
    return SentMessage(text, fault, () if fault else message_parts(fields), None if fault else message)


def _fields(state: SentRegions, calls: Iterable[str]) -> dict[str, Any]:
    fields = {
        "reasoning_content": state.reasoning.strip(),  # as in messages that are parsed here
        "content": state.answer.strip(),
        "tool_calls": [load_json(call) for call in calls],
    }
    return {name: value for name, value in fields.items() if value}
