"""The probability that a budget suffices, given a pilot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SURE = 0.99
"""Probability with which a suggested budget suffices."""

MOST = 10_000_000
"""The largest budget that is suggested, in attempts."""


def reached(
    texts: int,
    attempts: float,
    accepted: float,
    pilot: float,
    satisfied: int | None = None,
    before: Mapping[int, float] | None = None,
) -> float:
    """Return the probability of at least ``texts`` texts in further attempts: beta-binomial, Jeffreys' prior.

    ``satisfied``: for QRS, how many of the pilot's attempts satisfy the constraint. The run begins with QRS's own
    pilot.

    ``before``: the numbers of attempts that must satisfy the constraint before that pilot ends, each with its
    probability; None without QRS.
    """
    if attempts == math.inf:
        return 1.0
    import numpy as np
    from scipy.stats import betabinom  # a third of a second to import

    def chance(count: int, attempts: Any, seen: float) -> Any:
        return betabinom.sf(count - 1, attempts, seen + 0.5, pilot - seen + 0.5)

    if satisfied is None or before is None:
        return float(chance(texts, int(attempts), accepted))
    total = 0.0
    for length, share in before.items():
        ends = np.unique(np.linspace(length, max(length, int(attempts)), 65).astype(int))  # lengths of QRS's pilot
        ended = np.diff(chance(length, ends, satisfied), prepend=0.0)
        total += share * float(np.sum(ended * chance(texts, np.maximum(0, int(attempts) - ends), accepted)))
    return total


def enough_for(
    texts: int,
    accepted: float,
    pilot: float,
    satisfied: int | None = None,
    before: Mapping[int, float] | None = None,
) -> int | None:
    """Return the fewest attempts, to two digits, that give ``texts`` with probability 0.99; None if above ``MOST``."""
    if not accepted:
        return None
    low, high = texts - 1, texts
    while reached(texts, high, accepted, pilot, satisfied, before) < SURE:
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        enough = reached(texts, middle, accepted, pilot, satisfied, before) >= SURE
        low, high = (low, middle) if enough else (middle, high)
    return high
