"""Figures and names formatted for readers."""

from __future__ import annotations

import math
import unicodedata

from guardwrap.formatting import digits
from guardwrap.outcomes import Estimate

UNKNOWN = "–"


def in_words(figure: Estimate | float | str | None) -> str:
    """Format a figure, an estimate with its 95 % interval; return text unchanged."""
    if figure is None or (isinstance(figure, float) and math.isnan(figure)):
        return UNKNOWN
    if isinstance(figure, str):
        return figure
    if isinstance(figure, Estimate):
        return f"{in_words(float(figure.value))} [{in_words(float(figure.low))}, {in_words(float(figure.high))}]"
    if isinstance(figure, int):
        return str(figure)
    return digits(figure)


def in_line(text: str, width: int | None = None) -> str:
    """Put a name on one line, shortened to ``width`` characters."""
    line = " ".join(visible(text).split())
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def visible(text: str) -> str:
    """Replace each control character and lone surrogate, which HTML cannot hold, with U+FFFD."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") else "\ufffd" for char in text
    )
