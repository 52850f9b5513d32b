"""KL between two samples of texts that are sorted into a few bins (paper App. G)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardwrap.errors import UsageError
from guardwrap.metrics.intervals import clip
from guardwrap.outcomes import Estimate

__all__ = ["projected_kl"]

_SMOOTHING = 0.5
_Z = 1.959964


def projected_kl(p_bins: ArrayLike, q_bins: ArrayLike, *, bins: int = 10) -> Estimate:
    """Estimate KL(p̄‖q̄) between the laws of two samples' bins.

    Sorting texts into bins can only lose differences (data processing inequality), so this bounds KL(p‖q) from below.
    It is what can be measured of samplers whose probabilities are not known (IMH).

    Parameters
    ----------
    p_bins, q_bins
        The bin, 0 to bins - 1, of each of iid draws from p ``[draws of p]`` and from q ``[draws of q]``; e.g. from
        ``position_bins``.
    bins
        How many bins there are.

    Returns
    -------
    Estimate
        Nats. Half a draw is added to each bin of both samples, so that an empty one gives no infinity (Krichevsky and
        Trofimov 1981); from the KL of the shares the bias of order 1/draws is then taken away, that of the half draws
        included (Paninski 2003), and the delta method gives the interval, with a normal quantile. Its upper end is
        never below one standard deviation of p = q, so that a handful of draws tells no KL of 0 for sure. Where
        p = q the interval covers 0 nearly always. It ends too low where a bin that p gives often is expected less than
        once among the draws of q: then more draws, or fewer bins, are needed.

    Raises
    ------
    UsageError
        If a sample is empty, or holds anything but bins.
    """
    counts_p, counts_q = _counts(p_bins, bins, "p_bins"), _counts(q_bins, bins, "q_bins")
    size_p, size_q = counts_p.sum(), counts_q.sum()
    p = (counts_p + _SMOOTHING) / (size_p + bins * _SMOOTHING)
    q = (counts_q + _SMOOTHING) / (size_q + bins * _SMOOTHING)
    log_ratio, ratio = np.log(p / q), p / q
    kl = float((p * log_ratio).sum())
    sampling = (bins - 1) / (2 * size_p) + float((ratio * (1 - q)).sum()) / (2 * size_q)
    # The half draws move p by (1 - bins p)/2 draws, and q likewise; times the derivatives of the KL.
    moved_p = _SMOOTHING * float(((1 - bins * p) * (log_ratio + 1)).sum()) / size_p
    moved_q = -_SMOOTHING * float(((1 - bins * q) * ratio).sum()) / size_q
    variance_p = float((p * log_ratio**2).sum()) - kl**2
    variance_q = float((q * ratio**2).sum()) - 1
    value = kl - sampling - moved_p - moved_q
    reach = _Z * math.sqrt(max(variance_p / size_p + variance_q / size_q, 0.0))
    # The standard deviation where p = q: there 2 n KL has a chi-squared law (Wilks 1938).
    chance = math.sqrt((bins - 1) / 2) * (1 / size_p + 1 / size_q)
    return clip(Estimate(value, value - reach, max(value + reach, float(chance))))


def _counts(sample: ArrayLike, bins: int, name: str) -> NDArray[np.int64]:
    array = np.asarray(sample)
    if array.ndim != 1 or not array.size:
        raise UsageError(f"{name} must be an array with the bin of each draw, and not empty")
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= bins:
        raise UsageError(f"{name} must hold whole numbers from 0 to {bins - 1}, the bin of each draw")
    return np.bincount(array, minlength=bins)
