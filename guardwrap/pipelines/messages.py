"""Messages that a pipeline parses from a chat's answer: what of them is judged, and which are no answer.

Tokenizers with a ``response_template`` have the pipeline return a message with ``content``, ``reasoning_content``,
``tool_calls`` and so on. All of what the message says is judged.
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
    "message_text",
    "require_template",
    "unfinished",
]

UNPARSED = "response_template: the answer cannot be parsed"
NO_ANSWER = "response_template: the message has no answer"
CUT_OFF = "response_template: cut off while thinking, or in a call"
"""What reports say rejected an attempt, beside the parts of the constraint."""

WHOLE_MESSAGE = (
    "the tokenizer's response_template parses answers into messages: all that a message says was judged, its reasoning "
    "and tool calls too, and an answer that cannot be parsed, is cut off while thinking or is missing was rejected"
)

_THOUGHTS = frozenset({"reasoning_content", "reasoning", "thinking", "thoughts", "analysis"})
"""What templates call a model's reasoning, which is no answer."""


def has_template(tokenizer: Any) -> bool:
    """Whether pipelines parse answers with this tokenizer."""
    return getattr(tokenizer, "response_template", None) is not None


def require_template(tokenizer: Any) -> None:
    """Require a template that the pipeline can use.

    Raises
    ------
    UsageError
        If it is not well formed: every answer would be rejected.
    """
    try:
        tokenizer.get_response_parser(prefix="")
    except Exception as error:  # of the library's own checks; no answer is involved yet
        raise UsageError(f"the tokenizer's response_template cannot be used: {first_line(error)}") from None


def message_text(tokenizer: Any, message: Mapping[str, Any]) -> str:
    """Return the text of a message that is judged: each field that the model has filled, on lines of its own.

    A string stands as it is. Anything else, such as tool calls, stands as JSON; below it, as it is, each of its strings
    that JSON spells in another way, so that a ban on a quotation mark or a line break holds there too. What the
    template adds by itself, such as the role, is not judged.

    Raises
    ------
    ValueError
        If it holds half of a surrogate pair, which is no character and which no file or reply can hold.
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


def message_fault(tokenizer: Any, message: Mapping[str, Any]) -> str | None:
    """Say why a message is no answer, or None: it has neither content nor a tool call, only reasoning or nothing."""
    answers = [message.get(name) for name in _fields(tokenizer) if name not in _THOUGHTS | {"role"}]
    return NO_ANSWER if all(map(_is_empty, answers)) else None


def unfinished(tokenizer: Any, before: str, answer: str) -> str | None:
    """Say why an answer that a limit cut off cannot be returned, or None where its content was cut, as any text's is.

    Parameters
    ----------
    tokenizer
        The tokenizer.
    before, answer
        The prompt and the new text, with special tokens.
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
    """Return the fields of messages that are filled with what a model says, each with its specification."""
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
