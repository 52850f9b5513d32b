"""Messages that a pipeline parses from a chat's answer: the text that is judged, and messages without an answer.

With a ``response_template`` in the tokenizer, the pipeline returns a message with ``content``, ``reasoning_content``,
``tool_calls`` and so on. All of these are judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from guardwrap.documents.inputs import is_text
from guardwrap.errors import UsageError, first_line

__all__ = [
    "UNPARSED",
    "WHOLE_MESSAGE",
    "has_template",
    "message_fault",
    "message_parts",
    "message_text",
    "require_template",
    "unfinished",
]

UNPARSED = "response_template: the answer cannot be parsed"
NO_ANSWER = "response_template: the message has no answer"
CUT_OFF = "response_template: cut off while thinking, or in a call"
"""Reasons for rejection in reports, in addition to the parts of the constraint."""

WHOLE_MESSAGE = (
    "the tokenizer's response_template parses answers into messages: the whole message was judged, with its reasoning "
    "and tool calls, and an answer that cannot be parsed, is cut off while thinking or is missing was rejected"
)

_THOUGHTS = frozenset({"reasoning_content", "reasoning", "thinking", "thoughts", "analysis"})
"""Names of fields with a model's reasoning, which does not count as an answer."""


def has_template(tokenizer: Any) -> bool:
    """Whether pipelines parse answers with this tokenizer."""
    return getattr(tokenizer, "response_template", None) is not None


def require_template(tokenizer: Any) -> None:
    """Require a valid response template.

    Raises
    ------
    UsageError
        If it is invalid: every answer would be rejected.
    """
    try:
        tokenizer.get_response_parser(prefix="")
    except Exception as error:  # raised by the library's checks; the message cannot quote an answer
        raise UsageError(f"the tokenizer's response_template cannot be used: {first_line(error)}") from None


def message_text(tokenizer: Any, message: Mapping[str, Any]) -> str:
    """Return the text of a message to judge: each field that the model has filled, on separate lines.

    Strings are kept as they are. Anything else, such as tool calls, becomes JSON, followed by each string in it that
    JSON escapes, so that a ban on a quotation mark or a line break also applies there. Values that the template adds,
    such as the role, are not judged.

    Raises
    ------
    ValueError
        If the text contains half of a surrogate pair, which cannot be written to a file or sent.
    """
    lines: list[str] = []
    for name in _fields(tokenizer):
        value = message.get(name)
        if name == "role" and value == tokenizer.response_template.get("defaults", {}).get("role"):
            continue
        if isinstance(value, str):
            lines += [value] if value else []
        elif not _is_empty(value):
            lines.append(_as_json(value))
            lines += [text for text in _strings(value) if _as_json(text)[1:-1] != text]
    text = "\n".join(lines)
    if not is_text(text):
        raise ValueError("half of a surrogate pair")
    return text


def message_parts(tokenizer: Any, message: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the parts of a message that views select, without those that are empty.

    ``"answer"`` is its content, ``"reasoning"`` each field with the model's reasoning, and ``"tool_calls"`` each call.
    What is not a string becomes JSON.
    """
    strings: dict[str, list[str]] = {"answer": [], "reasoning": [], "tool_calls": []}
    for name in _fields(tokenizer):
        value = message.get(name)
        part = {"content": "answer", "tool_calls": "tool_calls"}.get(name, "reasoning" if name in _THOUGHTS else None)
        if part is not None and not _is_empty(value):
            values = value if isinstance(value, list) and part == "tool_calls" else [value]
            strings[part] += [each if isinstance(each, str) else _as_json(each) for each in values]
    return tuple((part, tuple(texts)) for part, texts in strings.items() if texts)


def message_fault(tokenizer: Any, message: Mapping[str, Any]) -> str | None:
    """Return the reason why a message is not an answer: no content and no tool call. None if it is one."""
    answers = [message.get(name) for name in _fields(tokenizer) if name not in _THOUGHTS | {"role"}]
    return NO_ANSWER if all(map(_is_empty, answers)) else None


def unfinished(tokenizer: Any, before: str, answer: str) -> str | None:
    """Return the reason why a truncated answer is rejected; None if it was cut off in its content, like any text.

    Parameters
    ----------
    tokenizer
        The tokenizer.
    before, answer
        The prompt and the new text, both with special tokens.
    """
    parser = tokenizer.get_response_parser(prefix=before)
    region: str | None = None
    for event in (*parser.initial_events, *parser.feed(answer)):
        if event["type"] == "region_open":
            region = event["field"]
        elif event["type"] == "region_close":
            region = None
    if region is None:
        return None
    plain = _fields(tokenizer)[region].get("content", "text") == "text"
    return None if plain and region not in _THOUGHTS else CUT_OFF


def _fields(tokenizer: Any) -> Mapping[str, Any]:
    """Return the message fields that a model fills, each with its specification."""
    fields: Mapping[str, Any] = tokenizer.response_template["fields"]
    return fields


def _is_empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, list | dict) and not value)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


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
