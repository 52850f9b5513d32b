"""Estimates for quasi-rejection sampling: the cost of a β, its distance from g, and the β for a target.

QRS (Eikema et al. 2022; paper App. G) accepts an attempt y of the proposal a' with probability m(y) = min(1, w(y) /
β), so it samples p_β ∝ a' m. Here w = a b / a' is not normalized, as in the public implementations: β is in units of
P/a'. The paper's text writes min(1, g / (β a')) with g = P / Z: its β is ours divided by Z. β → 0 (``log_beta=-inf``)
is rejection (Algorithm 1, g'); a β of at least max w is exact.

``log_weights`` is defined in ``guardwrap.metrics.weights``; ``log_beta`` is in nats. Intervals hold for a fixed β: they
do not include the uncertainty of choosing β from the same attempts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from guardwrap.errors import UsageError
from guardwrap.metrics.divergence import kl_to_sampler, tvd_to_sampler
from guardwrap.metrics.intervals import Floats, acceptance_rate, clip, mean_interval
from guardwrap.metrics.weights import read_weights, scaled
from guardwrap.outcomes import Estimate


def qrs_acceptance(log_weights: ArrayLike, log_beta: float) -> Estimate:
    """Estimate the acceptance rate of QRS, E_{a'} min(1, w/β).

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0.
    log_beta
        log β in nats; -inf is rejection from a'.

    Returns
    -------
    Estimate
        Mean acceptance probability, with the interval of ``mean_interval``, or for ``log_beta=-inf`` the exact interval
        of ``acceptance_rate``. If fewer than two attempts satisfy b, the interval is the whole range, except for
        ``log_beta=-inf``.

    Raises
    ------
    UsageError
        If ``log_weights`` is empty, one is NaN or +inf, or ``log_beta`` is.
    NoAcceptance
        If no log-weight is finite.
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
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0.
    log_beta
        log β in nats; -inf is rejection from a'.

    Returns
    -------
    Estimate
        Between 0 and 1. Self-normalized importance sampling (Eikema et al. 2022); jackknife. If fewer than two weights
        are above β, the attempts hardly show the difference between p_β and g, and the value is near 0 or 0. The upper
        end is then that of Clopper and Pearson (1934) for the probability, under g, of a weight above β, with the
        effective sample size as the number of draws of g; TVD(g, p_β) is never more than this probability. If all
        weights are equal, the upper end is raised in the same way to allow for other weights that were not seen. The
        upper end is 1 if the weights' tail is too heavy, or they are too few to judge it (``pareto_k``).

    Raises
    ------
    UsageError
        If ``log_weights`` is empty, one is NaN or +inf, or ``log_beta`` is.
    NoAcceptance
        If no log-weight is finite.
    """
    log_w = read_weights(log_weights)
    return tvd_to_sampler(log_w, _log_accept(log_w, log_beta), log_beta)


def qrs_kl(log_weights: ArrayLike, log_beta: float) -> Estimate:
    """Estimate KL(g‖p_β) = E_g[log max(w, β)] - log Z + log E_{a'} min(1, w/β).

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0.
    log_beta
        log β in nats; -inf is rejection from a'.

    Returns
    -------
    Estimate
        Nats. Self-normalized importance sampling; jackknife. The upper end is infinite if the weights above β have an
        effective sample size below 10: weights that were not seen may be of any size, and KL has no bound. So it is if
        the weights' tail is too heavy, or they are too few to judge it (``pareto_k``). If no weight is above β, the
        value is 0, whatever the true KL is.

    Raises
    ------
    UsageError
        If ``log_weights`` is empty, one is NaN or +inf, or ``log_beta`` is.
    NoAcceptance
        If no log-weight is finite.
    """
    log_w = read_weights(log_weights)
    return kl_to_sampler(log_w, _log_accept(log_w, log_beta), log_beta)


def log_beta_for_acceptance(log_weights: ArrayLike, target: float) -> float:
    """Find the β at which QRS accepts a given share of the attempts.

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0.
    target
        Acceptance rate, above 0 and at most that of rejection from a'.

    Returns
    -------
    float
        log β in nats, by root finding on the attempts' mean acceptance probability; -inf if the target is the
        acceptance rate of rejection. The lower the target, the larger β, and the nearer p_β is to g.

    Raises
    ------
    UsageError
        If the target cannot be met, ``log_weights`` is empty, or one is NaN or +inf.
    NoAcceptance
        If no log-weight is finite.
    """
    log_w = read_weights(log_weights)
    satisfied = log_w[log_w > -math.inf]
    most = len(satisfied) / len(log_w)
    if not 0 < target <= most:
        raise UsageError(
            f"an acceptance rate of {target} cannot be met: rejection from this proposal accepts {most:.4g} of the "
            f"attempts, and QRS never accepts more; give a rate above 0 and at most {most:.4g}"
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
    """Find the smallest β at which the estimated TVD between g and QRS meets a target.

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0.
    target
        The largest TVD(g, p_β) to allow, above 0 and below 1.

    Returns
    -------
    float
        log β in nats, by root finding on the estimated TVD, which falls as β grows; -inf if rejection from a' already
        meets the target.

    Raises
    ------
    UsageError
        If the target is not above 0 and below 1, ``log_weights`` is empty, or one is NaN or +inf.
    NoAcceptance
        If no log-weight is finite.
    """
    log_w = read_weights(log_weights)
    if not 0 < target < 1:
        raise UsageError(
            f"a TVD of {target} is not above 0 and below 1; give one that is, or give β itself (0 requires a β of at "
            "least max P/a', which cannot be estimated from attempts)"
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
        raise UsageError(f"log_beta={log_beta} is not a valid log β; give a number of nats, or -inf for rejection")
    accept = np.full_like(log_weights, -math.inf)
    satisfied = log_weights > -math.inf
    accept[satisfied] = np.minimum(log_weights[satisfied] - log_beta, 0.0)
    return accept
