"""Quasi-rejection sampling: what a β costs, how far from g it stays, and which β a target asks for.

QRS (Eikema et al. 2022; paper App. G) accepts an attempt y of the proposal a' with probability m(y) = min(1, w(y) /
β), so it samples p_β ∝ a' m. Here w = a b / a' is not normalised, as in the tools: β is in units of P/a'. The paper's
text writes min(1, g / (β a')) with g = P / Z: its β is ours divided by Z. β → 0 (``log_beta=-inf``) is rejection
(Algorithm 1, g'); a β of at least max w is exact.

``log_weights`` is as in ``guardwrap.metrics.weights``; ``log_beta`` is in nats. Intervals are for the β that is
given: that a β was chosen on the same attempts is not in them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from guardwrap.errors import UsageError
from guardwrap.metrics.divergence import kl_to_sampler, tvd_to_sampler
from guardwrap.metrics.intervals import Floats, clip, mean_interval
from guardwrap.metrics.rates import acceptance_rate
from guardwrap.metrics.weights import read_weights, scaled
from guardwrap.outcomes import Estimate

__all__ = ["log_beta_for_acceptance", "log_beta_for_tvd", "qrs_acceptance", "qrs_kl", "qrs_tvd"]


def qrs_acceptance(log_weights: ArrayLike, log_beta: float) -> Estimate:
    """Estimate the acceptance rate of QRS, E_{a'} min(1, w/β).

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats.
    log_beta
        log β in nats; -inf is rejection from a'.

    Returns
    -------
    Estimate
        Mean acceptance probability, with the interval of ``mean_interval``; for ``log_beta=-inf`` the exact interval of
        ``acceptance_rate``. Where fewer than two attempts satisfy b the interval is the whole range.

    Raises
    ------
    UsageError
        If there is no weight, one is NaN or +inf, or log_beta is.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    accepted = int((log_w > -math.inf).sum())
    accept = np.exp(_log_accept(log_w, log_beta))
    if log_beta == -math.inf:
        return acceptance_rate(accepted, len(log_w), stopped_on_acceptance=False)
    if accepted < 2:
        return Estimate(float(accept.mean()), 0.0, 1.0)
    return clip(mean_interval(accept, accepted - 1), high=1.0)


def qrs_tvd(log_weights: ArrayLike, log_beta: float) -> Estimate:
    """Estimate TVD(g, p_β) = ``½ Σ |g(y) - p_β(y)|``.

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats.
    log_beta
        log β in nats; -inf is rejection from a'.

    Returns
    -------
    Estimate
        Between 0 and 1. Self-normalised importance sampling (Eikema et al. 2022); jackknife. Where fewer than two
        weights are above β the attempts hardly show what is lost, and the value is near 0 or 0. Then the upper end is
        that of Clopper and Pearson (1934) for g's share of such weights, as if the attempts were as many draws of g
        as their effective sample size; TVD(g, p_β) is never more than this share. Where all weights are alike, the same
        holds of weights that were not seen.

    Raises
    ------
    UsageError
        If there is no weight, one is NaN or +inf, or log_beta is.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    return tvd_to_sampler(log_w, _log_accept(log_w, log_beta), log_beta)


def qrs_kl(log_weights: ArrayLike, log_beta: float) -> Estimate:
    """Estimate KL(g‖p_β) = E_g[log max(w, β)] - log Z + log E_{a'} min(1, w/β).

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats.
    log_beta
        log β in nats; -inf is rejection from a'.

    Returns
    -------
    Estimate
        Nats. Self-normalised importance sampling; jackknife. The upper end is infinite where the weights above β have
        an effective sample size below 10: how large those are that were not seen is not known, and KL has no bound.
        Where no weight is above β the value is 0, whatever the truth.

    Raises
    ------
    UsageError
        If there is no weight, one is NaN or +inf, or log_beta is.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    return kl_to_sampler(log_w, _log_accept(log_w, log_beta), log_beta)


def log_beta_for_acceptance(log_weights: ArrayLike, target: float) -> float:
    """Find the β at which QRS accepts a given share of the attempts.

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats.
    target
        Acceptance rate, above 0 and at most that of rejection from a'.

    Returns
    -------
    float
        log β in nats, by root finding on the attempts' mean acceptance probability; -inf where the target is the
        acceptance rate of rejection. The lower the target, the larger β and the nearer to g.

    Raises
    ------
    UsageError
        If the target cannot be met, there is no weight, or one is NaN or +inf.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    satisfied = log_w[log_w > -math.inf]
    most = len(satisfied) / len(log_w)
    if not 0 < target <= most:
        raise UsageError(
            f"an acceptance rate of {target} cannot be met: rejection from this proposal accepts {most:.4g} of the "
            f"attempts and QRS never more; give more than 0 and at most {most:.4g}"
        )
    if target == most:
        return -math.inf
    w, top = scaled(log_w)
    if math.log(target) < math.log(w.mean()) + 1e-9:  # β >= max w, where the rate is Z/β
        return top + math.log(w.mean()) - math.log(target)

    def surplus(log_beta: float) -> float:
        return float(np.exp(_log_accept(log_w, log_beta)).mean()) - target

    return float(brentq(surplus, float(satisfied.min()), top))


def log_beta_for_tvd(log_weights: ArrayLike, target: float) -> float:
    """Find the smallest β at which QRS is as near to g as asked for.

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats.
    target
        TVD(g, p_β), above 0 and below 1.

    Returns
    -------
    float
        log β in nats, by root finding on the estimated TVD, which falls as β grows; -inf where rejection from a' is
        near enough.

    Raises
    ------
    UsageError
        If the target is not above 0 and below 1, there is no weight, or one is NaN or +inf.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    if not 0 < target < 1:
        raise UsageError(
            f"a TVD of {target} cannot be met; give more than 0 and less than 1 (0 takes a β of at least max P/a', "
            "which attempts cannot show: give β itself)"
        )
    satisfied = log_w[log_w > -math.inf]

    def surplus(log_beta: float) -> float:
        w, m = scaled(log_w)[0], scaled(_log_accept(log_w, log_beta))[0]
        return float(np.abs(w / w.mean() - m / m.mean()).mean() / 2) - target

    if surplus(-math.inf) <= 0:
        return -math.inf
    return float(brentq(surplus, float(satisfied.min()), float(satisfied.max())))


def _log_accept(log_weights: Floats, log_beta: float) -> Floats:
    """Return log min(1, w/β) ``[attempts]``, -inf where b = 0."""
    if math.isnan(log_beta) or log_beta == math.inf:
        raise UsageError(f"log_beta={log_beta} is no logarithm of a β: give a number of nats, or -inf for rejection")
    accept = np.full_like(log_weights, -math.inf)
    satisfied = log_weights > -math.inf
    accept[satisfied] = np.minimum(log_weights[satisfied] - log_beta, 0.0)
    return accept
