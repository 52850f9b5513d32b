"""Acceptance rates and their ratios."""

from __future__ import annotations

import math

from scipy.special import betaincinv, gammaincinv

from guardwrap.metrics.intervals import combine, log_estimate
from guardwrap.outcomes import Estimate


def acceptance_rate(accepted: int, attempts: int, *, stopped_on_acceptance: bool, level: float = 0.95) -> Estimate:
    """Estimate AR = E_{a'} b with an exact interval.

    Parameters
    ----------
    accepted, attempts
        Number of accepted attempts, and of all attempts. More than 10^300 attempts are computed as 10^300, because
        floats end near there.
    stopped_on_acceptance
        True if drawing stopped at the ``accepted``-th acceptance, so that the number of attempts was random
        (inverse binomial sampling); False if the number of attempts was fixed beforehand.
    level
        Confidence level of the interval, between 0 and 1.

    Returns
    -------
    Estimate
        For a fixed number of attempts, accepted / attempts with the interval of Clopper and Pearson (1934). For inverse
        sampling of k acceptances in n attempts, the counterpart of that interval, from P(N <= n) = P(Bin(n, p) >= k)
        and P(N >= n) = P(Bin(n - 1, p) < k), which moves only the upper limit; the value is the unbiased
        (k - 1) / (n - 1) of Haldane (1945) if k is at least 2, otherwise k / n.
    """
    if attempts == 0:
        return Estimate(float("nan"), 0.0, 1.0)
    attempts = min(attempts, 10**300)
    tail = (1 - level) / 2
    low = _quantile(accepted, attempts - accepted + 1, tail) if accepted else 0.0
    successes = accepted + (0 if stopped_on_acceptance else 1)
    high = _quantile(successes, attempts - accepted, 1 - tail) if attempts > accepted else 1.0
    haldane = stopped_on_acceptance and accepted >= 2
    value = (accepted - 1) / (attempts - 1) if haldane else accepted / attempts
    return Estimate(float(value), float(low), float(high))


def _quantile(successes: int, failures: int, level: float) -> float:
    """Return a quantile of the beta distribution, approximated by the limiting gamma if failures are very many."""
    if failures > 10**12:
        return float(gammaincinv(successes, level)) / failures
    return float(betaincinv(successes, failures, level))


def times_fewer(base: Estimate, own: Estimate) -> Estimate:
    """Estimate how many times fewer attempts a text takes: the ratio of two independent acceptance rates."""
    if base.value > 0 and own.value > 0:
        ratio = combine((1, log_estimate(own)), (-1, log_estimate(base)))
        return Estimate(*(math.exp(min(x, 700.0)) for x in ratio))
    return Estimate(_over(own.value, base.value), _over(own.low, base.high), _over(own.high, base.low))


def _over(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan if one == 0 else math.inf
