"""Distances of g from the proposal and from the output of samplers: KL in nats, and TVD; and the cost of QRS.

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

QRS (Eikema et al. 2022; paper App. G) accepts an attempt with m = min(1, w/β), so it samples p_β ∝ a' m. Here w is not
normalized, as in the public implementations: β is in units of P/a'. The paper's text writes min(1, g / (β a')) with
g = P / Z: its β is ours divided by Z. β → 0 (``log_beta=-inf``, in nats) is rejection (Algorithm 1, g'); a β of at
least max w is exact. Intervals hold for a fixed β: they do not include the uncertainty of choosing it from the same
attempts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
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
from guardwrap.metrics.weights import EQUAL, kong, read_weights, scaled, too_heavy
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
    if np.ptp(np.log(w[w > 0])) <= EQUAL:  # maybe of one text: their spread shows nothing about weights not seen
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
    return clip(unclipped_from_gold(log_ratios, base))


def unclipped_from_gold(
    log_ratios: ArrayLike, base: tuple[int, int] | Estimate, proposal: tuple[int, int] | Estimate | None = None
) -> Estimate:
    """Estimate KL(g‖a'), or KL(g‖g') with ``proposal``, for means over prompts: values below 0 make up for others."""
    rate = [] if proposal is None else [(1, _log_rate(proposal, "proposal"))]
    return combine((1, _mean_ratio(log_ratios)), (-1, _log_rate(base, "base")), *rate)


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
    return clip(unclipped_from_gold(log_ratios, base, proposal))


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
