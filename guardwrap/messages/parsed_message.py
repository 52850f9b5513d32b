"""Messages that a pipeline parses from a chat's answer: the text that is judged, and messages without an answer.

With a ``response_template`` in the tokenizer, the pipeline returns a message with ``content``, ``reasoning_content``,
``tool_calls`` and so on. All of these are judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.verdicts import SEPARATOR, THOUGHTS
from guardwrap.constraints.views import judged_part
from guardwrap.documents.limits import is_text
from guardwrap.errors import UsageError, first_line
from guardwrap.messages.regions import MessageFields, json_text

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
