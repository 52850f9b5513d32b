"""Chart of cost against distance: -log AR and KL(g‖g'), which add up to KL(g‖a') (the paper's Theorem 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from guardwrap.outcomes import Estimate
from guardwrap.report.blocks import Points, Spot, Spots


def cost_against_distance(found: Mapping[str, Sequence[Spot]]) -> Points:
    """Return the chart of proposals by their cost and the distance of their texts to g.

    Parameters
    ----------
    found
        For each proposal by name, its spots: x is -log AR from ``minus_log``, y is KL(g‖g'), both in nats.
    """
    shown = [spot for spots in found.values() for spot in spots]
    shown = [spot for spot in shown if math.isfinite(spot.x.value) and math.isfinite(spot.y.value)]
    most = max([spot.x.value for spot in shown], default=0) + max([spot.y.value for spot in shown], default=0)
    step = _nice(max(most, 0.5) / 5)
    return Points(
        "Cost against distance",
        "cost: -log acceptance rate [nats]",
        "KL(g‖g') [nats]",
        tuple(Spots(name, tuple(spots)) for name, spots in found.items()),
        tuple(i * step for i in range(1, 9)),
        "KL(g‖a') is constant along each dotted diagonal (Theorem 2); the label is its value in nats.",
    )


def minus_log(rate: Estimate) -> Estimate:
    """Return -log of an acceptance rate, in nats."""
    value, low, high = (-math.log(x) if x > 0 else math.inf for x in (rate.value, rate.high, rate.low))
    return Estimate(max(value, 0.0), max(low, 0.0), high)


def _nice(step: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(x * power for x in (1, 2, 5, 10) if x * power >= step * (1 - 1e-9))
