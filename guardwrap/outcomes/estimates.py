"""Estimates with their intervals: figures in words and as plain JSON, and how far weights can tell a distance."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from guardwrap.formatting import digits, tail_in_words

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


_HIGHEST_LIMIT, _LIMIT_OF_100 = 0.7, 0.5
"""The limits of the Pareto k of many weights and of 100 weights (Vehtari et al. 2024)."""


def heavy_tail(evidence: Mapping[str, Estimate | float]) -> float | None:
    """Return the Pareto k of the weights if their tail is too heavy, NaN if they are too few to tell; None otherwise.

    The limit is lower for fewer weights, so with more texts a k above it may be below the limit. The k of fewer than
    100 weights is vague itself.

    Parameters
    ----------
    evidence
        A sampler's figures. Without ``pareto_k`` and ``pareto_k_limit`` nothing is known of weights, so None.
    """
    k, limit = evidence.get("pareto_k"), evidence.get("pareto_k_limit")
    if not isinstance(k, Estimate) or not isinstance(limit, float) or k.value <= limit:
        return None
    vague = limit < _LIMIT_OF_100 and k.low <= limit
    return math.nan if vague or k.value <= _HIGHEST_LIMIT else k.value


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
