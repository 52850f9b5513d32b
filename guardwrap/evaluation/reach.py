"""Costs of samplers at given distances to g, interpolated from their curves, with the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from guardwrap.evaluation.tradeoff import Point

_FLOOR = 0.01  # share of rejection's KL; smaller values, whose logarithm may not exist, are raised to it


@dataclass(frozen=True)
class Reach:
    """Cost of a sampler, relative to rejection, at which a given share of rejection's projected KL remains."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    sampler: str  # name of the sampler, and the share that remains
    share: float
    cost: float | None  # Log-log interpolation of the curve; None if the curve does not reach the share
    low: float | None  # the same for the curves of the intervals' lower and upper ends
    high: float | None
    paper: float | None = None  # the paper's figure (App. G), if requested.


_PAPER = (("qrs", 0.5, 1.36), ("imh", 0.5, 10.0), ("qrs", 0.1, 10.0), ("imh", 0.1, 50.0))
"""Sampler, remaining share of the projected KL, cost relative to rejection (App. G; ≈ 10 and 50 for the last two)."""


def reach(points: Sequence[Point], *, replication: bool = False) -> list[Reach]:
    """Return the costs of QRS and IMH at which half, and a tenth, of the projected KL remains."""
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
    """Return the cost at which a curve first falls to the target, or None."""
    for (cost, value), (next_cost, next_value) in pairwise(zip(costs, values, strict=True)):
        if next_value <= target < value:
            last = max(next_value, floor)  # a KL may be estimated as 0
            part = (math.log(value) - math.log(target)) / (math.log(value) - math.log(last))
            return math.exp(math.log(cost) + part * (math.log(next_cost) - math.log(cost)))
    return None
