"""Reports in one plain sentence, and their figures in lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guardwrap.draws import Estimate, Report

__all__ = ["ELSEWHERE", "FEW", "OR_REJECTION", "blamed", "bounded", "counted", "digits", "sentence", "upwards"]

FEW = 10.0
"""Draws of g that attempts are worth (their effective sample size), below which they tell no distance to g."""

OR_REJECTION = ", or sampler='rejection', whose texts are the proposal's"
"""The other way out where attempts cannot be weighed, for calls that choose a sampler."""

ELSEWHERE = {
    "prompts": ", of which this is none",
    "perhaps": ", of which this is perhaps none",
    "settings": ", under other generation settings",
}
"""How a report goes on about an adapter's KL(g‖g') that was measured on other prompts, or under other settings."""

_SATISFY = "as your model writes them when they satisfy the constraint"

_LARGE = 10**15
"""Counts from which on nobody reads all digits. Attempts that were skipped may be more than any float."""

_ENDED = {
    "max_attempts": "the budget in attempts is spent",
    "max_tokens": "the budget in tokens is spent",
    "max_computed_tokens": "the budget in computed tokens is spent",
    "max_seconds": "the time is over",
    "deadline": "the deadline has come",
    "deterministic": "greedy or beam search would give the same again",
    "impossible": "none that can be drawn under these settings satisfies the constraint",
    "error": "an error ended it",
}


def sentence(report: Report) -> str:
    """Say how many texts there are, what they are drawn from, and what one costs."""
    got, asked, tried = report.accepted, report.requested, report.usage.attempts
    if not got:
        return f"no text from {counted(tried, 'attempt')}: {_ENDED.get(report.ended, report.ended)}"
    texts = counted(got, "text") if got == asked else f"{got} of {asked} texts"
    pilot = report.evidence.get("pilot_attempts", 0)
    drawn = tried - pilot if isinstance(pilot, int) else tried
    mean = _rounded(drawn / got) if drawn < _LARGE else drawn // got
    cost = "every attempt gave one" if drawn == got else f"a text took about {counted(mean, 'attempt')}"
    cost += f", after a pilot of {pilot:,}" if pilot else ""
    missing = "" if got == asked else f"; no more, as {_ENDED.get(report.ended, report.ended)}"
    return f"{texts}, {_origin(report)}; {cost}{missing}"


def _origin(report: Report) -> str:
    words, one = report.drawn_from, report.accepted == 1
    satisfy = _SATISFY.replace("them when they satisfy", "it when it satisfies") if one else _SATISFY
    every = "which satisfies the constraint" if one else "all of which satisfy the constraint"
    if words == "exactly g":
        return f"exactly {satisfy}"
    if words.startswith("approximately g"):
        nearness = _nearness(report)
        return f"{nearness} {satisfy}" if nearness else f"{every}; how near to your model's own cannot be told"
    if words.endswith(", not g"):
        return f"{every}, drawn from a proposal and not from your model's own law"
    if words.startswith("biased"):
        return f"{every}; short ones are favoured by the deadline"
    return f"{every}; {words}"


def _nearness(report: Report) -> str:
    """Say how sure it is that texts are near to g, where the sampler has figures of that; "" where they say nothing."""
    distance, enough = report.evidence.get("tvd"), report.evidence.get("near_enough")
    worth = report.evidence.get("effective_sample_size")
    if isinstance(worth, tuple) and worth.value < FEW:
        return ""
    if not isinstance(distance, tuple) or not isinstance(enough, float) or distance.high <= enough:
        return "nearly"
    return "perhaps nearly" if distance.value <= enough else "not quite"


def counted(number: float, what: str) -> str:
    """Return a number with what it counts, in the plural where it is not one."""
    shown = f"{number:,}" if number < _LARGE else f"{Decimal(number):.2e}"
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


def bounded(figure: Estimate) -> str:
    """Spell a figure with its interval; where it is known from one side only, that one."""
    if math.isfinite(figure.value):
        return str(figure)
    return f"at least {digits(figure.low)} (95 %)" if math.isfinite(figure.low) else "unknown"


def _rounded(number: float) -> float:
    """Two digits, without a point where there is none to see."""
    if number < 9.95:
        return round(number, 1) if number % 1 >= 0.05 else round(number)
    return int(float(f"{number:.2g}"))
