"""Views: the part of a text that a constraint judges, such as its sentences or lines."""

from __future__ import annotations

from typing import Literal, get_args

import regex

from guardwrap.documents.time_limits import within
from guardwrap.outcomes import Draw

__all__ = ["View", "sentences", "settled_parts", "view"]

View = Literal["completion", "full", "first_sentence", "last_sentence", "sentences", "lines"]
"""``completion`` (the new text), ``full`` (prompt and new text), one sentence, or every sentence or line."""

VIEWS: tuple[str, ...] = get_args(View)

# A sentence ends at . ! ? or … with closing quotes or brackets, before white space, or at a line break. It does not end
# after an initial, one of these abbreviations, or a number of up to three digits at its beginning, as in a list.
_ABBREVIATIONS = "Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\\.g|i\\.e|cf|[A-Z]"
_NUMBERED = "(?:^|[.!?…:\"'”’)\\]]\\s|\n)\\d{1,3}\\."
# This is tried once for each run of white space, at its start. Trying it at every character would take quadratic time.
_BOUNDARY = regex.compile(
    rf"(?<!\s)(?=\s)(?:(?<!(?<!\w)(?:{_ABBREVIATIONS})\.)(?<!{_NUMBERED})(?<=[.!?…][\"'”’)\]]*)\s+|\s*\n\s*)"
)


def sentences(text: str) -> list[str]:
    """Split a text into sentences: at ``.``, ``!``, ``?`` or ``…`` before white space, and at line breaks.

    No sentence ends after a single capital ("J. Smith", so "A. B. C." is one sentence), an abbreviation (Mr, Mrs, Ms,
    Dr, Prof, St, Jr, Sr, vs, etc, e.g, i.e, cf), or the number of a list item ("1. Tea. 2. Coffee." is two sentences).
    Text that is added at the end never moves a boundary.
    """
    return [sentence for sentence in within(_BOUNDARY.split, text) if sentence.strip()]


def view(draw: Draw, on: str) -> list[str]:
    """Return the parts of a draw that a constraint with this view judges. Every part must hold; there is at least one.

    Parameters
    ----------
    draw
        A finished attempt.
    on
        The view.
    """
    text = draw.text
    if on == "completion":
        return [text]
    if on == "full":
        return [draw.prompt + text if draw.full is None else draw.full]
    if on == "lines":
        return [line for line in text.splitlines() if line.strip()] or [""]
    parts = sentences(text) or [""]
    return parts[:1] if on == "first_sentence" else parts[-1:] if on == "last_sentence" else parts


def settled_parts(prefix: str, on: str) -> list[str]:
    """Return the parts of a view that no continuation of the prefix can change."""
    if on == "lines":
        # \r may still become \r\n, which changes no line's text.
        whole = prefix.splitlines()
        if whole and prefix.endswith(whole[-1]):  # no line break after it
            whole.pop()
        return [line for line in whole if line.strip()]
    if on in ("first_sentence", "sentences"):
        whole = sentences(prefix)[:-1]
        return whole[:1] if on == "first_sentence" else whole
    return []
