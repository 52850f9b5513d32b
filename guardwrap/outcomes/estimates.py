"""Estimates with their intervals: figures in words and as plain JSON, and how far weights can tell a distance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from guardwrap.formatting import digits, tail_in_words

__all__ = [
    "FEW",
    "Estimate",
    "bounded",
    "estimate_of",
    "exactly",
    "heavy_tail",
    "plain",
    "tail_and_limit",
    "without_end",
]

FEW = 10.0
"""Effective sample size, in draws of g, below which the distance to g cannot be estimated."""


_VAGUE = 1000.0
"""An interval whose ends differ by a larger factor is shown alone: its value would look known."""


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{digits(self.value)} [{digits(self.low)}, {digits(self.high)}]"


def plain(value: Any) -> Any:
    """Return figures as plain JSON types; infinite and unknown ones become None."""
    if isinstance(value, Estimate):
        return {name: plain(number) for name, number in value._asdict().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def estimate_of(data: Mapping[str, float | None]) -> Estimate:
    """Read an estimate that ``plain`` wrote: a value or bound of None is infinite."""
    unknown = {"value": math.inf, "low": -math.inf, "high": math.inf}
    numbers = {name: data[name] for name in unknown}
    return Estimate(**{name: unknown[name] if each is None else float(each) for name, each in numbers.items()})


def exactly(value: float) -> Estimate:
    """Return an estimate of a figure that is known without error."""
    return Estimate(value, value, value)


def bounded(figure: Estimate) -> str:
    """Format a figure with its interval.

    Only the interval is shown if its ends differ by a factor of more than 1000, and only the lower bound if the value
    is infinite.
    """
    if math.isfinite(figure.high) and figure.high > _VAGUE * figure.low >= 0:
        return f"between {digits(figure.low)} and {digits(figure.high)} (95 %)"
    if math.isfinite(figure.value):
        return str(figure)
    return f"at least {digits(figure.low)} (95 %)" if math.isfinite(figure.low) else "unknown"


def heavy_tail(evidence: Mapping[str, Estimate | float]) -> float | None:
    """Return the Pareto k of the weights if it is above its limit, NaN if it is unknown; None if the tail is light.

    Parameters
    ----------
    evidence
        A sampler's figures. Without ``pareto_k`` and ``pareto_k_limit`` nothing is known of weights, so None.
    """
    k, limit = evidence.get("pareto_k"), evidence.get("pareto_k_limit")
    if not isinstance(k, Estimate) or not isinstance(limit, float) or k.value <= limit:
        return None
    return k.value


def without_end(distance: Estimate, k: float) -> str:
    """Format a distance whose upper end is unknown, with the reason.

    Parameters
    ----------
    distance
        The distance, of which only the lower end counts.
    k
        The Pareto k of the weights, or NaN if it is unknown.
    """
    least = f"at least {digits(distance.low)} (95 %), upper end " if distance.low > 0 else ""
    return f"{least}unknown: {tail_in_words(k)}"


def tail_and_limit(k: Estimate, limit: float) -> str:
    """Describe the tail of weights by its Pareto k and the limit above which it is too heavy."""
    if math.isnan(k.value):
        return "unknown: too few weights"
    if k.value == -math.inf:
        return "none: all weights are equal"
    return f"{k}, {'at most' if k.value <= limit else 'above'} the limit of {digits(limit)}"
