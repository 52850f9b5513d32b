"""Importance weights of attempts: reading them, their mean Z, their effective sample size.

``log_weights`` is an array ``[attempts]`` over a fixed number of iid attempts from the proposal a', in nats:
log w(y) = log P(y) / a'(y) with P(y) = a(y) b(y), so log a(y) - log a'(y) where b(y) = 1 and -inf where b(y) = 0.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from guardwrap.errors import NoAcceptance, UsageError
from guardwrap.metrics.intervals import Floats, clip, jackknife, mean_interval, numbers
from guardwrap.outcomes import Estimate

__all__ = ["effective_sample_size", "kong", "partition", "read_weights", "scaled"]

# Smaller weights than e^-300 of the largest count as that: it changes no figure, and their squares stay above 0.
_LEAST = -300.0


def read_weights(log_weights: ArrayLike) -> Floats:
    """Read log-weights ``[attempts]``.

    Raises
    ------
    UsageError
        If there is none, or one is NaN or +inf.
    NoAcceptance
        If all are -inf.
    """
    array = numbers(log_weights, "log_weights")
    if (array == math.inf).any():
        raise UsageError(
            f"log_weights holds +inf at index {int((array == math.inf).argmax())}: a text drawn from a' has a'(y) > 0, "
            "so its log a'(y) is wrong"
        )
    if (array == -math.inf).all():
        raise NoAcceptance(array.size)
    return array


def scaled(log_weights: Floats) -> tuple[Floats, float]:
    """Return the weights ``[attempts]`` over the largest one, and the largest one's logarithm in nats."""
    top = float(log_weights.max())
    return np.where(log_weights > -math.inf, np.exp(np.maximum(log_weights - top, _LEAST)), 0.0), top


def kong(weights: Floats) -> float:
    """Return (Σ w)² / Σ w² of weights that are not all 0 (Kong 1992)."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def partition(log_weights: ArrayLike) -> Estimate:
    """Estimate Z = Σ a(y) b(y) = E_{a'} w, the acceptance rate of the model itself.

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats; see the module.

    Returns
    -------
    Estimate
        The mean weight (importance sampling; paper App. D: Z = AR_a). Not cut at 1: a Z above 1, or far from a known
        AR_a, says that the log-probabilities are wrong or that a' has lost part of g. Where fewer than two attempts
        satisfy b the interval is the whole range.

    Raises
    ------
    UsageError
        If there is no weight, or one is NaN or +inf.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    w, top = scaled(log_w)
    accepted = int((w > 0).sum())
    # E w <= 1 for weights that are right, so this overflows for wrong ones only.
    scale = math.exp(top) if top < 700 else math.inf
    if accepted < 2:
        return Estimate(scale * float(w.mean()), 0.0, math.inf)
    return clip(Estimate(*(scale * x for x in mean_interval(w, accepted - 1))))


def effective_sample_size(log_weights: ArrayLike) -> Estimate:
    """Estimate how many draws of g the attempts are worth.

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats; see the module.

    Returns
    -------
    Estimate
        (Σ w)² / Σ w² of Kong (1992), in attempts; the interval is for n (E w)² / E w² with n the number of attempts,
        taken on the scale E w² / (E w)². The largest weights decide about it and are the rarest, so with few attempts
        it is too high. Measured on enumerated worlds with 2 000 attempts, the interval covers in 94 to 96 % where no
        weight is above 20 times the mean; with rare ones of 50 to 1 000 times the mean in 90 to 93 % where the figure
        is above 100, and in 59 to 81 % below. Where fewer than two attempts satisfy b the interval is the whole range.

    Raises
    ------
    UsageError
        If there is no weight, or one is NaN or +inf.
    NoAcceptance
        If no weight is finite.
    """
    w, _ = scaled(read_weights(log_weights))
    size, accepted = len(w), int((w > 0).sum())
    value = kong(w)
    if accepted < 2:
        return Estimate(value, 0.0, float(size))
    spread = clip(jackknife(np.stack([w, w**2]), lambda mean: mean[1] / mean[0] ** 2, accepted - 1), 1.0)
    return Estimate(value, min(size / spread.high, value), max(size / spread.low, value))
