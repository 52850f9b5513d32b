"""95 % intervals: for a rate, a mean, a smooth function of means (jackknife), and a sum of independent estimates."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, gammaincinv, stdtrit

from guardwrap.errors import UsageError
from guardwrap.outcomes import Estimate

Floats = NDArray[np.float64]

_TAIL = 0.025


def numbers(values: ArrayLike, name: str) -> Floats:
    """Convert values to a float64 array ``[n]`` with at least one number."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be an array of numbers") from None
    if array.ndim != 1:
        raise UsageError(f"{name} has {array.ndim} dimensions; give an array of one dimension")
    if not array.size:
        raise UsageError(f"{name} is empty; give at least one number")
    if np.isnan(array).any():
        raise UsageError(f"{name} contains NaN at index {int(np.isnan(array).argmax())}; give numbers only")
    return array


def mean_interval(values: Floats, freedom: float = math.inf) -> Estimate:
    """Estimate a mean from iid values ``[n]``, whose distribution may be skewed.

    The interval is the transformed t interval of Hall (1992, "On the removal of skewness by transformation"). Its
    quantiles are Student's with 2 n / (kurtosis - 1) degrees of freedom, those of the chi-squared distribution that
    matches the variance of the sample variance (Satterthwaite 1946). Without the two, an interval for a mean of
    importance weights is too short and ends too low. For a single value the interval is unbounded.

    ``freedom``: upper limit on the degrees of freedom, for when fewer than n of the values carry information.
    """
    size, mean = len(values), float(values.mean())
    if size < 2:
        return Estimate(mean, -math.inf, math.inf)
    centred = values - mean
    scale = float(np.abs(centred).max())
    if scale == 0:
        return Estimate(mean, mean, mean)
    centred = centred / scale  # so that powers neither overflow nor underflow
    square = centred * centred
    variance = float(square.mean())
    skewness = float((square * centred).mean()) / variance**1.5
    kurtosis = float((square * square).mean()) / variance**2
    error = scale * math.sqrt(variance / (size - 1))
    quantile = -float(stdtrit(min(2 * size / max(kurtosis - 1, 1), size - 1, freedom), _TAIL))
    low, high = (error * _hall(x, skewness, size) for x in (quantile, -quantile))
    return Estimate(mean, mean - low, mean - high)


def _hall(x: float, skewness: float, size: int) -> float:
    """Return the t statistic whose skewness-free transform is x: the inverse of Hall's cubic."""
    if abs(skewness) < 1e-6:
        return x
    root = math.sqrt(size)
    return 3 * root / skewness * (math.cbrt(1 + skewness * (x / root - skewness / (6 * size))) - 1)


def jackknife(columns: Floats, figure: Callable[[Floats], Floats], freedom: float = math.inf) -> Estimate:
    """Estimate a smooth function of expectations, from k quantities of each of n iid attempts, ``[k, n]``.

    ``figure`` maps means of the quantities, ``[k, ...]``, to its values, ``[...]``. The value is corrected for its bias
    of order 1/n, with its interval, from the pseudo-values n figure(all) - (n - 1) figure(all but one) (Quenouille
    1956, Tukey 1958). ``freedom``: as for ``mean_interval``.
    """
    size = columns.shape[1]
    totals = columns.sum(axis=1, keepdims=True)
    others = totals - columns
    for row, column in zip(others, columns, strict=True):
        # Subtracting the term that makes up nearly all of a sum would leave rounding errors, so the rest is summed.
        largest = int(np.abs(column).argmax())
        row[largest] = np.delete(column, largest).sum()
    pseudo = size * figure(totals / size) - (size - 1) * figure(others / (size - 1))
    return mean_interval(pseudo, freedom)


def combine(*terms: tuple[int, Estimate]) -> Estimate:
    """Estimate a sum of independent estimates."""
    value = sum(sign * term.value for sign, term in terms)
    down = [term.value - term.low if sign > 0 else term.high - term.value for sign, term in terms]
    up = [term.high - term.value if sign > 0 else term.value - term.low for sign, term in terms]
    return Estimate(value, value - math.hypot(*down), value + math.hypot(*up))


def sum_of(figures: Sequence[Estimate]) -> Estimate:
    """Add independent estimates (MOVER); a single one is returned unchanged."""
    return figures[0] if len(figures) == 1 else combine(*((1, figure) for figure in figures))


def mean_of(figures: Sequence[Estimate]) -> Estimate:
    """Average independent estimates, e.g. of fixed prompts that are not a sample of prompts."""
    return Estimate(*(value / len(figures) for value in sum_of(figures)))


def mean_over_units(values: Sequence[float], units: Sequence[Hashable]) -> Estimate:
    """Estimate the mean over units like these, such as rules, of which each gives one or more dependent values.

    ``units``: the unit of each value. A single unit says nothing of others, so its interval is unbounded.
    """
    by_unit: dict[Hashable, list[float]] = {}
    for unit, value in zip(units, values, strict=True):
        by_unit.setdefault(unit, []).append(value)
    return mean_interval(np.array([np.mean(each) for each in by_unit.values()]))


def log_estimate(estimate: Estimate) -> Estimate:
    """Return the logarithm of an estimate that is not negative."""
    value, low, high = (math.log(x) if x > 0 else -math.inf for x in estimate)
    return Estimate(value, low, high)


def inverse(rate: Estimate, count: float = 1.0) -> Estimate:
    """Return how many attempts ``count`` texts take, from the share of attempts that give one."""
    return Estimate(*(count / end if end > 0 else math.inf for end in (rate.value, rate.high, rate.low)))


def clip(estimate: Estimate, low: float = 0.0, high: float = math.inf) -> Estimate:
    """Limit an estimate and its interval to a range."""
    return Estimate(*(min(max(x, low), high) for x in estimate))


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


def rate_over(accepted: Sequence[int], attempts: int, units: Sequence[Hashable] | None = None) -> Estimate:
    """Estimate the mean acceptance rate of prompts, from the same number of attempts at each.

    ``units``: as for ``mean_over_units``, for an interval at least as wide as for these prompts alone; None for the
    latter.
    """
    fixed = acceptance_rate(sum(accepted), attempts * len(accepted), stopped_on_acceptance=False)
    if units is None:
        return fixed
    drawn = clip(mean_over_units([count / max(attempts, 1) for count in accepted], units), 0.0, 1.0)
    return Estimate(drawn.value, min(fixed.low, drawn.low), max(fixed.high, drawn.high))


def _quantile(successes: int, failures: int, level: float) -> float:
    """Return a quantile of the beta distribution, approximated by the limiting gamma if failures are very many."""
    if failures > 10**12:
        return float(gammaincinv(successes, level)) / failures
    return float(betaincinv(successes, failures, level))


def times_fewer(base: Estimate, own: Estimate) -> Estimate:
    """Estimate how many times fewer attempts a text takes: the ratio of two independent acceptance rates."""
    if base.value > 0 and own.value > 0:
        ratio = combine((1, log_estimate(own)), (-1, log_estimate(base)))
        return Estimate(*(math.exp(x) if x < 700.0 else math.inf for x in ratio))
    return Estimate(_over(own.value, base.value), _over(own.low, base.high), _over(own.high, base.low))


def _over(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan if one == 0 else math.inf
