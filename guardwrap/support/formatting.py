"""Formatting of numbers, counts and shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

LARGE = 10**15
"""Counts from here on are shown in scientific notation. The number of skipped attempts may exceed every float."""


def counted(number: float, what: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    shown = f"{number:,}" if number < LARGE else f"{Decimal(number):.2e}"
    return f"{shown} {what}{'' if number == 1 else 's'}"


def counted_of(number: int, total: int | None, what: str) -> str:
    """Return how many of all things there are: "1 of 20 prompts", or "1 prompt" if the total is unknown."""
    of = "" if total is None else f" of {total}"
    return f"{number}{of} {what}{'' if (number if total is None else total) == 1 else 's'}"


def blamed(rejections: Mapping[str, int], attempts: int) -> dict[str, str]:
    """Describe how many attempts each part rejected, in descending order: of all attempts, then of the remaining ones.

    A part that is checked late has few attempts left to reject, so the number of those is shown.

    Examples
    --------
    >>> blamed({"short": 13, "no comma": 43}, 60)
    {'no comma': '43 of 60', 'short': '13 of the other 17'}
    """
    parts: dict[str, str] = {}
    left = attempts
    for label, count in sorted(rejections.items(), key=lambda item: -item[1]):
        if count:
            parts[label] = f"{count:,} of {'the other ' if parts else ''}{left:,}"
            left -= count
    return parts


def one_of(choices: Sequence[str]) -> str:
    """Join choices: "a", "a or b", "a, b, or c"."""
    *others, last = choices
    return f"{', '.join(others)}{',' * (len(others) > 1)} or {last}" if others else last


def digits(figure: float) -> str:
    """Format a figure with three significant digits, and thousands in full: 1790, not 1.79e+03."""
    if math.isinf(figure):
        return "∞" if figure > 0 else "-∞"
    short = f"{figure:.3g}"
    return f"{float(short):.0f}" if 1000 <= abs(figure) < 1e9 else short


def lasting(seconds: float) -> str:
    """Format a duration, e.g. "about 1.5 min"."""
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"about {seconds / unit:.1f} {name}"
    return f"about {seconds:.0f} s"


def tail_in_words(k: float) -> str:
    """Return why importance weights tell no upper end of a distance."""
    if math.isnan(k):
        return "too few texts to tell how heavy the weights' tail is"
    return f"the weights' tail is too heavy (Pareto k {digits(k)})"


def upwards(number: float) -> int:
    """Round up to two significant digits."""
    unit = int(10 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / unit) * unit
