"""The regions of a message, read while the model writes them: transformers' parser as an immutable state."""

from __future__ import annotations

import copy
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import regex

from guardwrap.constraints.verdicts import SEPARATOR, THOUGHTS, Event
from guardwrap.support.lexical import load_json

_LOOKS_AROUND = regex.compile(r"\(\?<[=!]|\\[bBAGmMZzK]|[\^$]")
"""Finds assertions in expressions: whether such a marker begins in a text may depend on the text before it."""


_SIDES = ("open", "close")


def expressions_of(field: Mapping[str, Any], side: str) -> list[str]:
    """Return the expressions of a field's markers on one side, ``"open"`` or ``"close"``."""
    literals = field.get(side, [])
    literals = [literals] if isinstance(literals, str) else literals
    pattern = field.get(f"{side}_pattern")
    return [*map(regex.escape, literals), *([] if pattern is None else [str(pattern)])]


def json_text(value: Any) -> str:
    """Return a value as JSON, with characters as they are."""
    return json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class MessageFields:
    """The fields of a response template."""

    fields: Mapping[str, Mapping[str, Any]]  # the specification of each field

    @staticmethod
    def part_of(name: str) -> str | None:
        """Return the part of a message that a field belongs to; None if no rule can select it."""
        part = {"content": "answer", "tool_calls": "tool_calls"}.get(name)
        return "reasoning" if name in THOUGHTS else part

    def is_text(self, name: str) -> bool:
        """Whether a part is the text of a field's regions: without white space around it, and on separate lines."""
        field = self.fields[name]
        plain = field.get("content", "text") == "text" and not field.get("content_args")
        alone = sum(self.part_of(other) == self.part_of(name) for other in self.fields) == 1
        return plain and alone and field.get("transform") is None and field.get("join") is None

    @cached_property
    def collected(self) -> dict[str, Any]:
        """The fields of a template in which no region replaces an earlier one: each field is a list of its regions."""
        return {name: field if "join" in field else {**field, "repeats": True} for name, field in self.fields.items()}

    def joined(self, message: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message whose fields were ``collected``, with all regions of a field in one value.

        transformers would keep the last region of a text alone.
        """
        values = {name: message[name] for name in self.fields if name in message}
        for name, regions in values.items():
            if not self.fields[name].get("repeats"):
                values[name] = _together(regions)
        rest = {name: value for name, value in message.items() if name not in values}
        return {
            **defaults,
            **rest,
            **{name: value for name, value in values.items() if value not in ("", [], {}, None)},
        }

    @cached_property
    def implicit(self) -> str | None:
        """The field of text outside of markers, if there is one."""
        return next((name for name, f in self.fields.items() if not {"open", "open_pattern"} & {*f}), None)

    @cached_property
    def call_text(self) -> Literal["call", "arguments"] | None:
        """What the text of a call is JSON of: the whole call, or its arguments; None if it is something else."""
        field = self.fields.get("tool_calls", {})
        transform = field.get("transform")
        if field.get("content") != "json" or field.get("content_args") or not isinstance(transform, Mapping):
            return None
        function = transform.get("function")
        if function == "{content}":
            return "call"
        return "arguments" if function == {"name": "{name}", "arguments": "{content}"} else None

    @cached_property
    def call_marker(self) -> Any:
        """The compiled expression that begins a call and names its tool; None if calls begin in another way."""
        pattern = self.fields.get("tool_calls", {}).get("open_pattern")
        return None if pattern is None else regex.compile(pattern, regex.DOTALL)

    @cached_property
    def markers(self) -> tuple[Any, ...] | None:
        """The compiled markers; None if one of them looks at the text around it."""
        if any(_LOOKS_AROUND.search(f.get(f"{side}_pattern") or "") for f in self.fields.values() for side in _SIDES):
            return None
        expressions = [
            text for field in self.fields.values() for side in _SIDES for text in expressions_of(field, side)
        ]
        return tuple(regex.compile(text, regex.DOTALL) for text in expressions)


@dataclass(frozen=True)
class MessageRegions:
    """A state of transformers' ``ResponseParser``, which is copied before it reads.

    Text in which no marker begins is not given to the parser at once, as this is most of the text.
    """

    fields: MessageFields  # the fields of the template
    parser: Any  # the parser, after all text but ``unread``. It must not be changed.
    defaults: Mapping[str, Any]  # the fields that the template adds to a message
    unread: str = ""  # text that contains no marker, and whose events have been reported
    # The end of the text that the parser has received, if a marker may begin there; else ``""``. If that is not known,
    # all text since the last marker of a call.
    tail: str = ""
    open: str | None = None  # the field of the region that is being read; None outside
    body: str = ""  # the text of a call that is being read
    # whether the text cannot become a message: the parser has rejected it, or a call is JSON only to lenient parsers,
    # with a duplicate key or the like
    failed: bool = False

    @classmethod
    def begin(cls, tokenizer: Any, prompt: str, tools: Any = None) -> tuple[MessageRegions, tuple[Event, ...]]:
        """Return the state after a prompt, and what happened in the assistant message that the prompt has begun."""
        template = tokenizer.response_template
        fields, defaults = _fields_of(json_text(template["fields"])), template.get("defaults", {})
        others = {name: value for name, value in defaults.items() if name not in fields.fields}
        collecting = {**template, "defaults": others, "fields": fields.collected}
        parser = tokenizer.get_response_parser(collecting, prefix=prompt, tools=tools)
        start = cls(fields, parser, defaults, tail="" if fields.markers is None else prompt[-200:])
        return start._noted(parser.initial_events)

    def read(self, text: str, /) -> tuple[MessageRegions, Sequence[Event]]:
        """Return the state after more text, and what happened in it."""
        if self.failed or not text:
            return self, ()
        if not self.tail and self._has_no_marker(text):
            return self._read_plain(text)
        state, events = self._given(text)
        calls = any(event.kind == "open" and event.part == "tool_calls" for event in events)
        return replace(state, tail=state._tail_of(self.tail + text, calls=calls)), events

    def _has_no_marker(self, text: str) -> bool:
        markers = self.fields.markers
        if markers is None:
            return False
        matches = (marker.search(text, partial=True) for marker in markers)
        return all(match is None or match.start() == len(text) for match in matches)

    def _read_plain(self, text: str) -> tuple[MessageRegions, Sequence[Event]]:
        name = self.open or self.fields.implicit
        if name is None:
            return replace(self, unread=self.unread + text), ()
        raw: list[dict[str, Any]] = [] if self.open else [{"type": "region_open", "field": name}]
        raw.append({"type": "region_chunk", "field": name, "text": text})
        state, events = self._noted(raw)
        return replace(state, unread=self.unread + text), events

    def _given(self, text: str) -> tuple[MessageRegions, tuple[Event, ...]]:
        """Give the parser all text."""
        parser = _copied(self.parser)
        try:
            if self.unread:
                parser.feed(self.unread)  # its events have been reported
            return replace(self, parser=parser, unread="")._noted(parser.feed(text), self.tail + text)
        except Exception:  # the library may raise anything; its message quotes the answer, so drop it
            return replace(self, failed=True), ()

    def _tail_of(self, text: str, *, calls: bool) -> str:
        """Return the end of a text if a marker may begin or grow there; ``calls``: whether a call has begun in it."""
        if self.fields.markers is None:
            marker = self.fields.call_marker if calls else None
            ends = [match.end() for match in marker.finditer(text)] if marker is not None else []
            return text[ends[-1] :] if ends else text
        start = len(text)
        for marker in self.fields.markers:
            place = 0
            while (match := marker.search(text, place, partial=True)) is not None and match.start() < len(text):
                if match.partial or match.end() == len(text):
                    start = min(start, match.start())
                    break
                place = max(match.end(), match.start() + 1)
        return text[start:]

    def _noted(self, raw: Iterable[Mapping[str, Any]], text: str = "") -> tuple[MessageRegions, tuple[Event, ...]]:
        """Return the state after the parser's events, which ``text`` has caused, and these events as ours."""
        current, body, events, raw = self.open, self.body, [], list(raw)
        names = self._called(raw, text)
        for event in raw:
            name, kind = event["field"], event["type"]
            part = self.fields.part_of(name)
            current = None if kind == "region_close" else name
            call_text = self.fields.call_text if name == "tool_calls" else None
            if part is None:
                continue
            if kind == "region_open":
                events.append(Event("open", part, next(names, ()) if call_text else ()))
                body = ""
            elif kind == "region_close":
                if call_text:
                    load_json(body)  # the parser takes the last of two equal keys, and nobody would see the first
                events.append(Event("close", part, _strings(event["value"], part)))
            elif call_text or self.fields.is_text(name):
                body = body + event["text"] if call_text else ""
                events.append(Event("text", part, (event["text"],)))
        return replace(self, open=current, body=body), tuple(events)

    def _called(self, raw: Sequence[Mapping[str, Any]], text: str) -> Iterator[tuple[str, ...]]:
        """Yield the texts of our event for each call that begins in a text; empty ones if its tool is not known."""
        opened = [event for event in raw if event["type"] == "region_open" and event["field"] == "tool_calls"]
        if self.fields.call_text != "arguments":
            return iter([("call",)] * len(opened))
        markers = list(self.fields.call_marker.finditer(text)) if opened else []
        # A marker within a string of the arguments begins no call, so then it is not known which one is which.
        same = len(markers) == len(opened)
        return iter([("arguments", marker["name"]) for marker in markers] if same else [()] * len(opened))

    def message(self) -> dict[str, Any] | None:
        """Return the message that a text which ends here is; None if it cannot be parsed."""
        if self.failed:
            return None
        parser = _copied(self.parser)
        try:
            parser.feed(self.unread)
            message, raw = parser.finalize()
            self._noted(raw)
        except Exception:  # as in _given
            return None
        return self.fields.joined(message, self.defaults)

    @property
    def is_cut_off(self) -> bool:
        """Whether a message that ends here, at the token limit, is cut off in its reasoning or in a call."""
        if self.open is None:
            return False
        plain = self.fields.fields[self.open].get("content", "text") == "text"
        return not plain or self.open in THOUGHTS

    @property
    def key(self) -> Hashable | None:
        """The open field, if it is text; None in a call, whose value depends on all of its text."""
        if self.fields.markers is None or not (self.open is None or self.fields.is_text(self.open)):
            return None
        return (self.open, self.tail, self.failed)


@lru_cache(maxsize=16)
def _fields_of(spec: str) -> MessageFields:
    """Return the fields of a template, given as JSON, so that their markers are compiled once."""
    return MessageFields(json.loads(spec))


def _copied(parser: Any) -> Any:
    """Return a parser that reads on without changing this one, whatever its attributes are called."""
    twin = copy.copy(parser)
    for name, value in vars(parser).items():
        if isinstance(value, dict):  # of fields, some of which are lists that the parser extends
            setattr(
                twin, name, {key: copy.copy(item) if isinstance(item, list) else item for key, item in value.items()}
            )
        elif isinstance(value, list):
            setattr(twin, name, copy.copy(value))
    return twin


def _together(regions: Sequence[Any]) -> Any:
    """Return the values of a field's regions as one: texts on separate lines, anything else as a list if several."""
    if all(isinstance(value, str) for value in regions):
        return SEPARATOR.join(value for value in regions if value.strip())
    if len(regions) == 1:
        return regions[0]
    return [item for value in regions for item in (value if isinstance(value, list) else [value])]


def _strings(value: Any, part: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) and part == "tool_calls" else [value]
    return tuple(each if isinstance(each, str) else json_text(each) for each in values)
