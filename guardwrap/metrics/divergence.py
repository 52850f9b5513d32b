"""Distances of g from the proposal and from the output of samplers: KL in nats, and TVD.

All are computed from the ``log_weights`` of attempts of the proposal a' (see ``guardwrap.metrics.weights``). A sampler
returns p(y) ∝ a'(y) m(y), where m is its acceptance probability: 1 for a' itself, b for g', min(1, w/β) for QRS. With
w(y) = a(y) b(y) / a'(y)

    KL(g‖p) = E_{a'}[w log(w/m)] / E_{a'}[w] - log E_{a'}[w] + log E_{a'}[m]
    TVD(g, p) = ½ E_{a'} |w / E_{a'}[w] - m / E_{a'}[m]|

and each expectation is estimated by the mean over the attempts (self-normalized importance sampling). Intervals are
jackknifed. Measured on enumerated worlds with 2 000 attempts, 93 to 98 % of them contain the true value if the
effective sample size is above 100, and only 82 % in some cases where it is 70: the attempts may then not include the
largest weights, so that values and intervals are too low, whatever the formula. So if the weights' tail is too heavy,
or they are too few to judge it (``metrics.weights``), an interval has no upper end: it is infinite for KL and 1
for TVD. The paper's own estimators (App. D), which start from draws of g, do not have this weakness but need a model
whose own acceptance rate is not tiny.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from guardwrap.errors import NoAcceptance, UsageError
from guardwrap.metrics.intervals import (
    Floats,
    acceptance_rate,
    clip,
    combine,
    jackknife,
    log_estimate,
    mean_interval,
    numbers,
)
from guardwrap.metrics.weights import kong, read_weights, scaled, too_heavy
from guardwrap.outcomes import FEW, Estimate


def kl_to_sampler(log_weights: Floats, log_accept: Floats, log_beta: float = -math.inf) -> Estimate:
    """Estimate KL(g‖p) in nats for p ∝ a' m, from log w and log m ``[attempts]``; w/m is constant where w <= β."""
    w, m = scaled(log_weights)[0], scaled(log_accept)[0]
    satisfied, heavy = w > 0, w[log_weights > log_beta]
    gain = np.zeros_like(w)
    gain[satisfied] = w[satisfied] * (np.log(w[satisfied]) - np.log(m[satisfied]))
    columns = np.stack([w, gain, m])
    if len(heavy) < 2:
        return Estimate(max(float(_kl(columns.mean(axis=1))), 0.0), 0.0, math.inf)
    value, low, high = clip(jackknife(columns, _kl, len(heavy) - 1))
    known = kong(heavy) >= FEW and not too_heavy(log_weights)
    return Estimate(value, low, high if known else math.inf)


def _kl(mean: Floats) -> Floats:
    w, gain, m = mean
    # w and m were divided by their largest values; both factors cancel here.
    return np.asarray(gain / w - np.log(w) + np.log(m))


def tvd_to_sampler(log_weights: Floats, log_accept: Floats, log_beta: float = -math.inf) -> Estimate:
    """Estimate TVD(g, p) for p ∝ a' m, from log w and log m ``[attempts]``; w/m is constant where w <= β."""
    tvd = tvd_as_seen(log_weights, log_accept, log_beta)
    return tvd._replace(high=1.0) if too_heavy(log_weights) else tvd


def tvd_as_seen(log_weights: Floats, log_accept: Floats, log_beta: float = -math.inf) -> Estimate:
    """Estimate TVD(g, p) as ``tvd_to_sampler`` does, with an upper end even if the weights' tail is too heavy."""
    w, m = scaled(log_weights)[0], scaled(log_accept)[0]
    heavy = w[log_weights > log_beta]
    # ½ E |x - y| = E [x - y where x > y]. To first order, estimating where x > y adds nothing to the error.
    short = w / w.mean() > m / m.mean()
    columns = np.stack([w, m, w * short, m * short])
    if len(heavy) < 2:
        # TVD(g, p) is at most the probability, under g, of a weight above β. Its upper end is that of Clopper and
        # Pearson, with the effective sample size as the number of draws of g.
        draws = kong(w)
        share = float(heavy.sum() / w.sum()) * draws
        high = float(betaincinv(share + 1, draws - share, 0.975)) if draws > share else 1.0
        return Estimate(float(_tvd(columns.mean(axis=1))), 0.0, high)
    tvd = jackknife(columns, _tvd, len(heavy) - 1)
    if np.ptp(w[w > 0]) == 0:  # equal weights, maybe of one text: their spread shows nothing about weights not seen
        tvd = tvd._replace(high=tvd.high + 1 - 0.025 ** (1 / kong(w)))
    return clip(tvd, high=1.0)


def _tvd(mean: Floats) -> Floats:
    w, m, short_w, short_m = mean
    return np.asarray(short_w / w - short_m / m)


def kl_gold_proposal(log_weights: ArrayLike) -> Estimate:
    """Estimate KL(g‖a') = E_{a'}[w log w] / Z - log Z from attempts of a'.

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0. See ``guardwrap.metrics.weights``.

    Returns
    -------
    Estimate
        Nats. Self-normalized importance sampling; jackknife. The upper end is infinite if the effective sample size is
        below 10, the weights' tail is too heavy, or they are too few to judge it (``pareto_k``). If fewer than two
        attempts satisfy b, the interval is the whole range.

    Raises
    ------
    UsageError
        If ``log_weights`` is empty, or one is NaN or +inf.
    NoAcceptance
        If no log-weight is finite.
    """
    log_w = read_weights(log_weights)
    return kl_to_sampler(log_w, np.zeros_like(log_w))


def kl_gold_guarded(log_weights: ArrayLike) -> Estimate:
    """Estimate KL(g‖g') = KL(g‖a') + log AR_{a'} (Theorem 2) from attempts of a'.

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0. See ``guardwrap.metrics.weights``.

    Returns
    -------
    Estimate
        Nats. Self-normalized importance sampling, where AR_{a'} is the share of finite log-weights; jackknife. The
        upper end is infinite if the effective sample size is below 10, the weights' tail is too heavy, or they are too
        few to judge it (``pareto_k``). If fewer than two attempts satisfy b, the interval is the whole range.

    Raises
    ------
    UsageError
        If ``log_weights`` is empty, or one is NaN or +inf.
    NoAcceptance
        If no log-weight is finite.
    """
    log_w = read_weights(log_weights)
    return kl_to_sampler(log_w, _satisfied(log_w))


def tvd_gold_guarded(log_weights: ArrayLike) -> Estimate:
    """Estimate TVD(g, g') = ``½ Σ |g(y) - g'(y)|`` from attempts of a'.

    Parameters
    ----------
    log_weights
        log w(y) of each attempt in nats, ``[attempts]``; -inf where b(y) = 0. See ``guardwrap.metrics.weights``.

    Returns
    -------
    Estimate
        Between 0 and 1. Self-normalized importance sampling (Eikema et al. 2022); jackknife. The upper end is 1 if the
        weights' tail is too heavy, or they are too few to judge it (``pareto_k``). If fewer than two attempts satisfy
        b, the interval is the whole range.

    Raises
    ------
    UsageError
        If ``log_weights`` is empty, or one is NaN or +inf.
    NoAcceptance
        If no log-weight is finite.
    """
    log_w = read_weights(log_weights)
    return tvd_to_sampler(log_w, _satisfied(log_w))


def _satisfied(log_weights: Floats) -> Floats:
    """Return log b ``[attempts]``."""
    return np.where(log_weights > -math.inf, 0.0, -math.inf)


def kl_gold_base(accepted: int, attempts: int, *, stopped_on_acceptance: bool = False) -> Estimate:
    """Estimate KL(g‖a) = -log Z = -log AR_a (paper App. B.5) from attempts of the model itself.

    Parameters
    ----------
    accepted, attempts
        Number of accepted attempts, and of all attempts.
    stopped_on_acceptance
        Whether drawing stopped at the last acceptance, so that the number of attempts was random; see
        ``acceptance_rate``.

    Returns
    -------
    Estimate
        Nats; the ends follow from the exact interval for AR_a (Clopper and Pearson 1934). Without an acceptance the
        value and the upper end are infinite, and the lower end still follows from the number of attempts.

    Raises
    ------
    UsageError
        If there is no attempt, or ``accepted`` is not between 0 and ``attempts``.
    """
    rate = log_estimate(_rate((accepted, attempts), "(accepted, attempts)", stopped_on_acceptance))
    return clip(Estimate(-rate.value, -rate.high, -rate.low))


def kl_gold_proposal_from_gold(log_ratios: ArrayLike, base: tuple[int, int] | Estimate) -> Estimate:
    """Estimate KL(g‖a') = E_g log(a/a') - log AR_a from draws of g.

    Parameters
    ----------
    log_ratios
        log a(y) - log a'(y) on iid draws of g, e.g. the accepted attempts of rejection from a; ``[draws]``, nats.
    base
        (accepted, attempts) of a fixed number of attempts from a, or the result of ``acceptance_rate`` for them. They
        may be the attempts from which the draws were accepted.

    Returns
    -------
    Estimate
        Nats. Mean log-ratio (paper App. D) with a t interval and the exact interval of AR_a, combined by MOVER.

    Raises
    ------
    UsageError
        If there is no draw, a log-ratio is not finite, or the counts are impossible.
    NoAcceptance
        If no attempt from a was accepted.
    """
    return clip(combine((1, _mean_ratio(log_ratios)), (-1, _log_rate(base, "base"))))


def kl_gold_guarded_from_gold(
    log_ratios: ArrayLike, base: tuple[int, int] | Estimate, proposal: tuple[int, int] | Estimate
) -> Estimate:
    """Estimate KL(g‖g') = E_g log(a/a') - log(AR_a / AR_{a'}) from draws of g: the paper's own estimator.

    Parameters
    ----------
    log_ratios
        log a(y) - log a'(y) on iid draws of g; ``[draws]``, nats.
    base
        (accepted, attempts) of a fixed number of attempts from a, or the result of ``acceptance_rate`` for them.
    proposal
        The same counts, or rate, for attempts from a'.

    Returns
    -------
    Estimate
        Nats. Mean log-ratio with a t interval and exact intervals of the rates (paper App. D), combined by MOVER.

    Raises
    ------
    UsageError
        If there is no draw, a log-ratio is not finite, or the counts are impossible.
    NoAcceptance
        If no attempt from a, or from a', was accepted.
    """
    return clip(
        combine((1, _mean_ratio(log_ratios)), (-1, _log_rate(base, "base")), (1, _log_rate(proposal, "proposal")))
    )


def theorem2_residual(kl_proposal: Estimate, kl_guarded: Estimate, acceptance: tuple[int, int] | Estimate) -> Estimate:
    """Estimate KL(g‖a') - KL(g‖g') + log AR_{a'}, which is 0 by Theorem 2.

    Parameters
    ----------
    kl_proposal, kl_guarded
        KL(g‖a') and KL(g‖g') in nats.
    acceptance
        (accepted, attempts) of a', or the result of ``acceptance_rate`` for them.

    Returns
    -------
    Estimate
        Nats; combined by MOVER. The interval is valid if the three come from different runs, e.g.
        ``kl_gold_proposal`` of one set of attempts, ``kl_gold_guarded_from_gold`` of draws of g with the counts of a
        second one, and the counts of a third. Computed from a single set of attempts, the residual is 0 by construction
        and shows nothing.

    Raises
    ------
    UsageError
        If the counts are impossible.
    NoAcceptance
        If no attempt from a' was accepted.
    """
    return combine((1, kl_proposal), (-1, kl_guarded), (1, _log_rate(acceptance, "acceptance")))


def _mean_ratio(log_ratios: ArrayLike) -> Estimate:
    ratios = numbers(log_ratios, "log_ratios")
    if not np.isfinite(ratios).all():
        index = int(np.isinf(ratios).argmax())
        raise UsageError(
            f"log_ratios contains {ratios[index]} at index {index}; give draws of g for which a and a' are both above 0"
        )
    return mean_interval(ratios)


def _log_rate(rate: tuple[int, int] | Estimate, name: str) -> Estimate:
    estimate = rate if isinstance(rate, Estimate) else _rate(rate, name)
    if not estimate.value > 0:
        raise NoAcceptance(None if isinstance(rate, Estimate) else rate[1])
    return log_estimate(estimate)


def _rate(counts: tuple[int, int], name: str, stopped_on_acceptance: bool = False) -> Estimate:
    accepted, attempts = counts
    if not 0 <= accepted <= attempts or attempts == 0:
        raise UsageError(
            f"{name}: {accepted} accepted of {attempts} attempts; give 0 <= accepted <= attempts, attempts > 0"
        )
    return acceptance_rate(accepted, attempts, stopped_on_acceptance=stopped_on_acceptance)
