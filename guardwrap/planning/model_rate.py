"""The acceptance rate of the model itself, from its own attempts and from weighed attempts of a proposal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from guardwrap.metrics import acceptance_rate, effective_sample_size, partition
from guardwrap.metrics.tails import too_heavy
from guardwrap.outcomes import FEW, Estimate
from guardwrap.samplers import Attempt

MARKOV = 0.025
"""The share of an unbiased estimate Ẑ that Z falls below with probability 0.025 at most, by Markov's inequality."""

WIDER = 1.3
"""Factor by which the interval of a mean weight is widened on the scale of logarithms.

It is that of 99 %. A twist may miss a way to satisfy the constraint, and then the weights vary less than they should.
"""


def weights_of(drawn: Sequence[Attempt]) -> list[float]:
    """Return the log-weights of attempts in nats; none for attempts that were not weighed."""
    return [attempt.log_weight for attempt in drawn if attempt.log_weight is not None]


def can_tell(log_weights: Sequence[float]) -> bool:
    """Return whether weights can tell a mean, and so what QRS costs.

    They can if their effective sample size is at least 10 and the Pareto k of their tail at most its limit.
    """
    passing = any(weight > -math.inf for weight in log_weights)
    return passing and effective_sample_size(log_weights).value >= FEW and not too_heavy(np.array(log_weights))


def model_rate(plain: Sequence[Attempt], weighed: Sequence[Attempt]) -> tuple[Estimate, bool]:
    """Estimate Z = Σ a(y) b(y), the acceptance rate of the model itself.

    Parameters
    ----------
    plain
        Attempts of the model itself.
    weighed
        Attempts of a proposal with log-weights, whose mean weight is an unbiased estimate of Z (``metrics.partition``).

    Returns
    -------
    Estimate
        The mean weight with its interval, widened by ``WIDER``, if the weights can tell it: their effective sample size
        is at least 10, the Pareto k of their tail is at most its limit, and the interval is compatible with the share
        of ``plain`` attempts that satisfy the constraint. Otherwise the mean weight in an interval that assumes nothing
        about the weights: its lower end is the larger one of the binomial interval's (Clopper and Pearson 1934) and of
        Markov's bound, as P(Ẑ >= Z / 0.025) <= 0.025; its upper end is the binomial one. Without a weight above 0 it is
        the binomial estimate.
    bool
        Whether the weights can tell it.
    """
    passing = sum(attempt.satisfied for attempt in plain)
    counted = acceptance_rate(passing, len(plain), stopped_on_acceptance=False)
    log_weights = weights_of(weighed)
    if not any(attempt.satisfied for attempt in weighed) or not log_weights:
        return counted, False
    mean = partition(log_weights)
    if can_tell(log_weights) and mean.low <= counted.high and mean.high >= counted.low:
        low, high = (mean.value * (end / mean.value) ** WIDER for end in (mean.low, mean.high))
        return Estimate(mean.value, low, high), True
    low = min(max(counted.low, MARKOV * mean.value), counted.high)
    return Estimate(min(max(mean.value, low), counted.high), low, counted.high), False
