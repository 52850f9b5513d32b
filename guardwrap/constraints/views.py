"""Views: the part of a text that a constraint judges, such as its sentences or lines."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import regex
from pydantic import Discriminator, Tag

from guardwrap.constraints import text_parts
from guardwrap.constraints.escapes import json_strings
from guardwrap.constraints.sentence_ends import sentences
from guardwrap.constraints.text_parts import Part
from guardwrap.constraints.words import settled_words, words_of
from guardwrap.documents.time_limits import within
from guardwrap.errors import ConstraintError, UsageError, nearest
from guardwrap.outcomes import Draw

Name = Literal[
    "completion",
    "full",
    "first_sentence",
    "last_sentence",
    "sentences",
    "first_line",
    "last_line",
    "lines",
    "paragraphs",
    "first_word",
    "last_word",
    "words",
    "json_strings",
    "message",
    "answer",
    "reasoning",
    "tool_calls",
]
"""``completion`` (the new text), ``full`` (prompt and new text), ``message`` (the new text after the assistant message
that it continues), one sentence, line or word, every sentence, line, paragraph or word, the decoded strings of JSON in
the text, one below the other, or a part of a message."""

NO_MESSAGE = (
    "on={!r} judges the messages that are parsed from answers to chats; {}. "
    "To select a part of plain text, write on=Part(after='</think>')"
)

PLAIN_TEXT = "here the answer is plain text, so pass a chat: a list of messages, or --chat on the command line"
"""Why a rule on a part of a message cannot judge an answer."""

VIEWS: tuple[str, ...] = get_args(Name)
TEXT_VIEWS = tuple(name for name in VIEWS if name not in text_parts.MESSAGE)

View = Annotated[
    Annotated[Name, Tag("name")] | Annotated[Part, Tag("part")],
    Discriminator(lambda value: "part" if isinstance(value, dict | Part) else "name"),
]
"""What a constraint judges: a view by its name, or a ``Part``."""

_EMPTY_LINES = regex.compile(r"(?<!\s)\s*\n\s*\n\s*")


def paragraphs(text: str) -> list[str]:
    """Split a text into paragraphs, at empty lines. Text that is added at the end never moves a boundary."""
    return [paragraph for paragraph in within(_EMPTY_LINES.split, text) if paragraph.strip()]


def filled_lines(text: str) -> list[str]:
    """Split a text into its lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def read_view(on: Any) -> Any:
    """Return a constraint's view as it is kept: a mapping becomes a ``Part``."""
    if isinstance(on, dict):
        return text_parts.read_part(on, VIEWS)
    if isinstance(on, Part) or on in VIEWS:
        return on
    raise ConstraintError(f"on={on!r} is not one of {', '.join(VIEWS)}{nearest(on, VIEWS)}")


def view(draw: Draw, on: View) -> list[str] | None:
    """Return the strings of a draw that a constraint with this view judges, each of which must hold.

    None if the draw lacks the part and so is rejected; an empty list if it lacks the part and is accepted.
    """
    text = draw.text
    if on == "completion":
        return [text]
    if on == "full":
        return [draw.prompt + text if draw.full is None else draw.full]
    if on == "message":
        return [draw.begun + text]
    if on == "json_strings":  # as one text, so that a ban holds if no string has what is banned
        return ["\n".join(json_strings(text))]
    part = message_part(on)
    if part is not None:
        strings = _of_message(draw, part)
        return text_parts.values_within(strings, on) if isinstance(on, Part) else strings
    if isinstance(on, Part):
        return text_parts.selected(text, on, _SPLIT)
    end, _, unit = on.rpartition("_")
    pieces = _SPLIT[unit.removesuffix("s")](text) or [""]
    return pieces[:1] if end == "first" else pieces[-1:] if end == "last" else pieces


def message_part(on: View) -> str | None:
    """Return the part of a message that a view selects, or None if it selects something else."""
    name = on.message if isinstance(on, Part) else on
    return name if name in text_parts.MESSAGE else None


def judged_part(rule: Any) -> str | None:
    """Return the part of a message that a constraint itself, apart from its parts, judges; None for texts."""
    part: str | None = message_part(rule.on) if hasattr(rule, "on") else getattr(rule, "reads_message", None)
    return part


def _of_message(draw: Draw, part: str) -> list[str] | None:
    if draw.parts is None:
        raise UsageError(NO_MESSAGE.format(part, PLAIN_TEXT))
    strings = dict(draw.parts).get(part)
    return None if strings is None else [*strings]


def settled_parts(prefix: str, on: View) -> list[str]:
    """Return the parts of a view that no continuation of the prefix can change."""
    if isinstance(on, Part):
        return text_parts.settled(prefix, on, _SPLIT, _SETTLED)
    end, _, unit = on.rpartition("_")
    if end == "last" or unit.removesuffix("s") not in _SETTLED:
        return []
    whole = _SETTLED[unit.removesuffix("s")](prefix)
    return whole[:1] if end == "first" else whole


def _settled_lines(prefix: str) -> list[str]:
    # \r may still become \r\n, which changes no line's text.
    whole = prefix.splitlines()
    if whole and prefix.endswith(whole[-1]):  # no line break after it
        whole.pop()
    return [line for line in whole if line.strip()]


_SPLIT: dict[str, text_parts.Split] = {
    "sentence": sentences,
    "line": filled_lines,
    "paragraph": paragraphs,
    "word": words_of,
}
_SETTLED: dict[str, text_parts.Split] = {
    "sentence": lambda prefix: sentences(prefix)[:-1],
    "line": _settled_lines,
    "paragraph": lambda prefix: paragraphs(prefix)[:-1],
    "word": settled_words,
}
