"""Importance weights of attempts: their validation, their mean Z, their effective sample size.

``log_weights`` is an array ``[attempts]`` for a fixed number of iid attempts from the proposal a', in nats:
log w(y) = log P(y) / a'(y) with P(y) = a(y) b(y), so log a(y) - log a'(y) where b(y) = 1 and -inf where b(y) = 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from guardwrap.errors import NoAcceptance, UsageError
from guardwrap.metrics.intervals import Floats, clip, jackknife, mean_interval, numbers
from guardwrap.outcomes import Estimate

# Weights below e^-300 of the largest are raised to that, so that their squares stay above 0. It changes no result.
_LEAST = -300.0


def read_weights(log_weights: ArrayLike) -> Floats:
    """Validate log-weights and convert them to an array ``[attempts]``."""
    array = numbers(log_weights, "log_weights")
    if (array == math.inf).any():
        raise UsageError(
            f"log_weights contains +inf at index {int((array == math.inf).argmax())}; correct its log a'(y), as a text "
            "drawn from a' has a'(y) > 0"
        )
    if (array == -math.inf).all():
        raise NoAcceptance(array.size)
    return array


def scaled(log_weights: Floats) -> tuple[Floats, float]:
    """Return the weights divided by the largest one, ``[attempts]``, and the logarithm of the largest one in nats."""
    top = float(log_weights.max())
    return np.where(log_weights > -math.inf, np.exp(np.maximum(log_weights - top, _LEAST)), 0.0), top


def kong(weights: Floats) -> float:
    """Return the effective sample size (Σ w)² / Σ w² of weights that are not all 0 (Kong 1992)."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def unseen_share(log_weights: ArrayLike, most_weight: float) -> float:
    """Bound the share of g that texts may have which no attempt has drawn.

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0.
    most_weight
        The largest w(y) that any text can have.

    Returns
    -------
    float
        The upper end of Clopper and Pearson (1934) for the probability under a' of what no attempt has drawn, times
        the largest weight, divided by the mean weight; 1 at most.
    """
    log_w = read_weights(log_weights)
    w, top = scaled(log_w)
    log_share = math.log(1 - 0.025 ** (1 / len(w))) + math.log(most_weight) - top - math.log(w.mean())
    return math.exp(min(log_share, 0.0))


def partition(log_weights: ArrayLike) -> Estimate:
    """Estimate Z = Σ a(y) b(y) = E_{a'} w, the acceptance rate of the model itself.

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0.

    Returns
    -------
    Estimate
        The mean weight (importance sampling; paper App. D: Z = AR_a). It is not limited to 1: a Z above 1, or far from
        a known AR_a, shows that the log-probabilities are wrong or that a' does not cover all of g. If fewer than two
        attempts satisfy b, the interval is the whole range.

    Raises
    ------
    UsageError
        If ``log_weights`` is empty, or one is NaN or +inf.
    NoAcceptance
        If no log-weight is finite.
    """
    log_w = read_weights(log_weights)
    w, top = scaled(log_w)
    accepted = int((w > 0).sum())
    # E w <= 1 for correct weights, so this overflows only for wrong ones.
    scale = math.exp(top) if top < 700 else math.inf
    if accepted < 2:
        return Estimate(scale * float(w.mean()), 0.0, math.inf)
    return clip(Estimate(*(scale * x for x in mean_interval(w, accepted - 1))))


def effective_sample_size(log_weights: ArrayLike) -> Estimate:
    """Estimate the effective sample size: how many draws of g the attempts are worth.

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0.

    Returns
    -------
    Estimate
        (Σ w)² / Σ w² (Kong 1992), in attempts. The interval is for n (E w)² / E w², where n is the number of attempts,
        and is computed for E w² / (E w)². The largest weights determine the value and are the rarest, so with few
        attempts it is too high. Measured on enumerated worlds with 2 000 attempts, the interval contains the true value
        in 94 to 96 % of cases if no weight is above 20 times the mean. With rare weights of 50 to 1 000 times the mean
        it does in 90 to 93 % if the value is above 100, and in 59 to 81 % below. If fewer than two attempts satisfy b,
        the interval is the whole range.

    Raises
    ------
    UsageError
        If ``log_weights`` is empty, or one is NaN or +inf.
    NoAcceptance
        If no log-weight is finite.
    """
    w, _ = scaled(read_weights(log_weights))
    size, accepted = len(w), int((w > 0).sum())
    value = kong(w)
    if accepted < 2:
        return Estimate(value, 0.0, float(size))
    spread = clip(jackknife(np.stack([w, w**2]), lambda mean: mean[1] / mean[0] ** 2, accepted - 1), 1.0)
    return Estimate(value, min(size / spread.high, value), max(size / spread.low, value))
