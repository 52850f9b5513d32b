"""KL divergence between two samples of texts that are sorted into a few bins (paper App. G)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardwrap.errors import UsageError
from guardwrap.metrics.intervals import clip
from guardwrap.outcomes import Estimate

_SMOOTHING = 0.5
_Z = 1.959964


def projected_kl(p_bins: ArrayLike, q_bins: ArrayLike, *, bins: int = 10) -> Estimate:
    """Estimate KL(p̄‖q̄), where p̄ and q̄ are the distributions over bins of draws from p and q.

    Sorting texts into bins can only lose differences (data processing inequality), so this bounds KL(p‖q) from below.
    It can be measured even for samplers whose probabilities are not known (IMH).

    Parameters
    ----------
    p_bins, q_bins
        The bin, from 0 to bins - 1, of each of iid draws from p ``[draws of p]`` and from q ``[draws of q]``; e.g. from
        ``position_bins``.
    bins
        Number of bins.

    Returns
    -------
    Estimate
        Nats. Half a draw is added to each bin of both samples, so that an empty bin does not make the KL infinite
        (Krichevsky and Trofimov 1981). The bias of order 1/draws, including that of the half draws, is subtracted from
        the KL of the shares (Paninski 2003). The delta method gives the interval, with a normal quantile. Its upper end
        is at least the standard deviation that the estimate has if p = q, so that a few draws do not suggest a KL of
        exactly 0. If p = q, the interval contains 0 nearly always. It ends too low if the draws of q are expected to
        have less than one in a bin that is frequent under p: then use more draws, or fewer bins.

    Raises
    ------
    UsageError
        If a sample is empty, or contains something other than bin numbers.
    """
    counts_p, counts_q = _counts(p_bins, bins, "p_bins"), _counts(q_bins, bins, "q_bins")
    size_p, size_q = counts_p.sum(), counts_q.sum()
    p = (counts_p + _SMOOTHING) / (size_p + bins * _SMOOTHING)
    q = (counts_q + _SMOOTHING) / (size_q + bins * _SMOOTHING)
    log_ratio, ratio = np.log(p / q), p / q
    kl = float((p * log_ratio).sum())
    sampling = (bins - 1) / (2 * size_p) + float((ratio * (1 - q)).sum()) / (2 * size_q)
    # The half draws shift p by (1 - bins p) / (2 draws), and q likewise; multiplied by the derivatives of the KL.
    moved_p = _SMOOTHING * float(((1 - bins * p) * (log_ratio + 1)).sum()) / size_p
    moved_q = -_SMOOTHING * float(((1 - bins * q) * ratio).sum()) / size_q
    variance_p = float((p * log_ratio**2).sum()) - kl**2
    variance_q = float((q * ratio**2).sum()) - 1
    value = kl - sampling - moved_p - moved_q
    reach = _Z * math.sqrt(max(variance_p / size_p + variance_q / size_q, 0.0))
    # The standard deviation if p = q: then 2 n KL has a chi-squared distribution (Wilks 1938).
    chance = math.sqrt((bins - 1) / 2) * (1 / size_p + 1 / size_q)
    return clip(Estimate(value, value - reach, max(value + reach, float(chance))))


def _counts(sample: ArrayLike, bins: int, name: str) -> NDArray[np.int64]:
    array = np.asarray(sample)
    if array.ndim != 1 or not array.size:
        raise UsageError(f"{name} must be an array of one dimension with the bin of at least one draw")
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= bins:
        raise UsageError(f"{name} must contain whole numbers from 0 to {bins - 1}, the bin of each draw")
    return np.bincount(array, minlength=bins)
