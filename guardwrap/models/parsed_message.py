"""Messages that a pipeline parses from a chat's answer: the text that is judged, and messages without an answer.

With a ``response_template`` in the tokenizer, the pipeline returns a message with ``content``, ``reasoning_content``,
``tool_calls`` and so on. All of these are judged.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.stop_strings import cut, shown
from guardwrap.constraints.verdicts import SEPARATOR, THOUGHTS, Event
from guardwrap.constraints.views import judged_part
from guardwrap.engine.endpoint.attempt_stream import Delta, deltas_in
from guardwrap.errors import UsageError, first_line
from guardwrap.models.regions import MessageFields, json_text
from guardwrap.outcomes import Draw, Outcome
from guardwrap.support.lexical import load_json
from guardwrap.support.limits import is_text


class ReadAnswer(NamedTuple):
    """What an attempt says: fields of its draw."""

    text: str  # what rules without ``on=`` judge: of a message all of its text
    fault: str | None = None  # why it is rejected whatever the constraint says, or None
    parts: tuple[tuple[str, tuple[str, ...]], ...] | None = None  # the strings of each part, of a message
    message: str | None = None  # the message as JSON; None with a fault


UNPARSED = "message: the answer cannot be parsed"
NO_ANSWER = "message: no answer"
CUT_OFF = "message: cut off while thinking, or in a call"
"""Reasons for rejection in reports, in addition to the parts of the constraint."""

_PARSED = (
    "answers were parsed into messages by {}: {}, and an answer that cannot be parsed, is cut off while thinking or is "
    "missing was rejected"
)
_WHOLE, _PARTS = "the whole message was judged, with its reasoning and tool calls", "each rule judged its part"


def parsed_note(constraint: Constraint, parser: str) -> str:
    """Return the note for reports on calls whose answers are parsed."""
    rules = [part for part in walk(constraint) if len([*walk(part)]) == 1]
    return _PARSED.format(parser, _PARTS if all(map(judged_part, rules)) else _WHOLE)


def has_template(tokenizer: Any) -> bool:
    """Whether pipelines parse answers with this tokenizer."""
    return getattr(tokenizer, "response_template", None) is not None


def require_template(tokenizer: Any) -> None:
    """Require a valid response template."""
    try:
        tokenizer.get_response_parser(prefix="")
    except Exception as error:  # raised by the library's checks; the message cannot quote an answer
        raise UsageError(f"the tokenizer's response_template cannot be used: {first_line(error)}") from None


def written_fields(tokenizer: Any, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a parsed message that the model has filled, without those that the template adds."""
    template = tokenizer.response_template
    fields = {name: message.get(name) for name in template["fields"]}
    if fields.get("role") == template.get("defaults", {}).get("role"):
        fields.pop("role", None)
    return fields


def message_text(fields: Mapping[str, Any]) -> str:
    """Return the text of a message to judge: each of its fields, on separate lines.

    Strings are kept as they are. Anything else, such as tool calls, becomes JSON, followed by each string in it that
    JSON escapes, so that a ban on a quotation mark or a line break also applies there.
    """
    lines: list[str] = []
    for value in fields.values():
        if isinstance(value, str):
            lines += [value] if value else []
        elif not _is_empty(value):
            lines.append(json_text(value))
            lines += [text for text in _strings(value) if json_text(text)[1:-1] != text]
    text = "\n".join(lines)
    if not is_text(text):
        raise ValueError("half of a surrogate pair")
    return text


def message_parts(fields: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the strings of each part of a message: its answer, its reasoning, and each call as JSON."""
    strings: dict[str, list[str]] = {"answer": [], "reasoning": [], "tool_calls": []}
    for name, value in fields.items():
        part = MessageFields.part_of(name)
        if part is None or _is_empty(value):
            continue
        several = isinstance(value, list) and (part == "tool_calls" or all(isinstance(item, str) for item in value))
        values = value if several else [value]
        strings[part] += [item if isinstance(item, str) else json_text(item) for item in values]
    for part in ("answer", "reasoning"):
        strings[part] = [SEPARATOR.join(strings[part])] if strings[part] else []
    return tuple((part, tuple(texts)) for part, texts in strings.items() if texts)


def message_fault(fields: Mapping[str, Any]) -> str | None:
    """Return the reason why a message is not an answer: no content and no tool call. None if it is one."""
    answers = [value for name, value in fields.items() if name not in THOUGHTS | {"role"}]
    return NO_ANSWER if all(map(_is_empty, answers)) else None


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, list | dict) and not value)


def _strings(value: Any) -> Iterator[str]:
    """Yield every string of a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


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
    content: Any,
    *,
    calls: Iterable[CalledTool] = (),
    reasoning: str | None = None,
    name: str | None = None,
    tool_call_id: str | None = None,
) -> dict[str, Any]:
    """Return a message of a chat as chat templates read it, with arguments of calls as objects.

    Most of them ignore or reject the role ``developer``, so it becomes ``system``.
    """
    tool_calls = [
        {
            **({} if call.ident is None else {"id": call.ident}),
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for call in calls
    ]
    more = {"reasoning_content": reasoning, "name": name, "tool_call_id": tool_call_id}
    turn = {"role": "system" if role == "developer" else role, "content": content}
    turn |= {"tool_calls": tool_calls} if tool_calls else {}
    return turn | {field: value for field, value in more.items() if value is not None}


def shown_texts(outcome: Outcome, stops: Sequence[str]) -> tuple[str, ...]:
    """Return the texts of an outcome up to their first stop string, fallbacks included."""
    texts = [shown(draw, stops) for draw in outcome.draws]
    return (*texts, *(cut(text, stops) for text in outcome.texts[len(texts) :]))


def finish_reason(draw: Draw, stops: Sequence[str]) -> str:
    """Return why an accepted text ended: ``"tool_calls"``, ``"stop"`` or ``"length"``."""
    if draw.message is not None and json.loads(draw.message).get("tool_calls"):
        return "tool_calls"
    return "stop" if draw.finished or shown(draw, stops) != draw.text else "length"


def written_message(message: Mapping[str, Any]) -> Draw:
    """Return a message as a finished draw without tokens.

    ``message``: its ``content``, ``reasoning`` and ``tool_calls``, each of which may be missing. A call has a
    ``name`` and ``arguments``.
    """
    calls = [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in message.get("tool_calls", ())
    ]
    answer = _answer_of(message.get("content", ""), message.get("reasoning", ""), calls)
    return Draw(prompt="", token_ids=(), **answer._asdict())


def _answer_of(answer: str, reasoning: str, calls: Sequence[Any], *, cut_off: bool = False) -> ReadAnswer:
    """Return a message that was not written by a template; ``cut_off``: whether in its reasoning."""
    # without white space around, as in messages that are parsed here
    fields = {"reasoning_content": reasoning.strip(), "content": answer.strip(), "tool_calls": calls}
    fields = {name: value for name, value in fields.items() if value}
    fault = message_fault(fields)
    if fault is None and cut_off:
        fault = CUT_OFF
    message = json_text({"role": "assistant", **fields})
    return ReadAnswer(message_text(fields), fault, () if fault else message_parts(fields), None if fault else message)


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


def sent_message(lines: str, *, finished: bool) -> ReadAnswer:
    """Return the message in the pieces that a server has sent."""
    deltas = deltas_in(lines)
    read, events = SentRegions().after(deltas)
    state, ending = read.finish()
    if state.failed:
        raw = "".join(delta.text for delta in deltas)
        return ReadAnswer(raw, UNPARSED if finished else CUT_OFF, (), None)
    calls = [
        text
        for event in [*events, *ending]
        if event.part == "tool_calls" and event.kind == "close"
        for text in event.texts
    ]
    cut_off = not finished and bool(deltas) and deltas[-1].part == "reasoning"
    return _answer_of(read.answer, read.reasoning, [load_json(call) for call in calls], cut_off=cut_off)
