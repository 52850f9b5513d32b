"""Numbers, counts and shares in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

__all__ = ["LARGE", "blamed", "counted", "digits", "upwards"]


LARGE = 10**15
"""Counts from which on nobody reads all digits. Attempts that were skipped may be more than any float."""


def counted(number: float, what: str) -> str:
    """Return a number with what it counts, in the plural where it is not one."""
    shown = f"{number:,}" if number < LARGE else f"{Decimal(number):.2e}"
    return f"{shown} {what}{'' if number == 1 else 's'}"


def blamed(rejections: Mapping[str, int], attempts: int) -> dict[str, str]:
    """Say how many attempts each part rejected, the one that rejected most first: of all, then of those that are left.

    A part that is looked at late has few attempts left to reject, however hard it is; of how many tells it.

    Examples
    --------
    >>> blamed({"short": 13, "no comma": 43}, 60)
    {'no comma': '43 of 60', 'short': '13 of the other 17'}
    """
    said: dict[str, str] = {}
    left = attempts
    for label, count in sorted(rejections.items(), key=lambda item: -item[1]):
        if count:
            said[label] = f"{count:,} of {'the other ' if said else ''}{left:,}"
            left -= count
    return said


def digits(figure: float) -> str:
    """Spell a figure with three digits, and thousands in full: 1790, not 1.79e+03."""
    if math.isinf(figure):
        return "∞" if figure > 0 else "-∞"
    short = f"{figure:.3g}"
    return f"{float(short):.0f}" if 1000 <= abs(figure) < 1e9 else short


def upwards(number: float) -> int:
    """Round up to two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / unit) * unit
