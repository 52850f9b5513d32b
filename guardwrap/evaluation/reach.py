"""What it costs to come so near to g, read off a sampler's curve, beside the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from guardwrap.evaluation.tradeoff import Point

__all__ = ["Reach", "reach"]

_FLOOR = 0.01  # of rejection's KL: less counts as that where a line is drawn between two points


@dataclass(frozen=True)
class Reach:
    """What a sampler costs over rejection when it has brought the projected KL down to a share of rejection's.

    Parameters
    ----------
    sampler, share
        Which, and to what share.
    cost
        Read off the curve, log-log between its points; None where it does not come so far.
    low, high
        Where the curves of the intervals' lower and upper ends come so far.
    paper
        The paper's own figure (App. G), where it is asked for.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    sampler: str
    share: float
    cost: float | None
    low: float | None
    high: float | None
    paper: float | None = None


_PAPER = (("qrs", 0.5, 1.36), ("imh", 0.5, 10.0), ("qrs", 0.1, 10.0), ("imh", 0.1, 50.0))
"""Sampler, share of the projected KL that is left, cost over rejection (App. G; ≈ 10 and 50 for the last two)."""


def reach(points: Sequence[Point], *, replication: bool = False) -> list[Reach]:
    """Read off what QRS and IMH cost when half, and a tenth, of the projected KL is left.

    Parameters
    ----------
    points
        Of one proposal, rejection first.
    replication
        Whether the paper's figures go with them.

    Returns
    -------
    list of Reach
        Empty where the bins show no difference between g' and g that could be halved.
    """
    start = points[0].projected_kl
    if start is None or not start.low > 0:
        return []
    found = []
    for sampler, share, paper in _PAPER:
        curve = sorted((p for p in points if p.sampler == sampler and p.projected_kl), key=lambda p: p.relative_cost)
        ends = [
            _crossing(
                [1.0, *(p.relative_cost for p in curve)],
                [start.value, *(p.projected_kl[end] for p in curve if p.projected_kl)],
                share * start.value,
                _FLOOR * start.value,
            )
            for end in range(3)
        ]
        cost, low, high = ends
        found.append(Reach(sampler, share, cost, low, high, paper if replication else None))
    return found


def _crossing(costs: Sequence[float], values: Sequence[float], target: float, floor: float) -> float | None:
    """Return the cost at which a curve first comes down to the target."""
    for (cost, value), (next_cost, next_value) in pairwise(zip(costs, values, strict=True)):
        if next_value <= target < value:
            last = max(next_value, floor)  # a KL may be estimated as 0
            part = (math.log(value) - math.log(target)) / (math.log(value) - math.log(last))
            return math.exp(math.log(cost) + part * (math.log(next_cost) - math.log(cost)))
    return None
