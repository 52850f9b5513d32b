"""How far g is from the model, from the proposal and from what rejection samples: KL in nats, and TVD.

From attempts of the proposal a' everything follows from their ``log_weights`` (see ``guardwrap.metrics.weights``). What a
sampler returns is p(y) ∝ a'(y) m(y), m being its acceptance probability: 1 for a' itself, b for g', min(1, w/β) for QRS. So
with w(y) = a(y) b(y) / a'(y)

    KL(g‖p) = E_{a'}[w log(w/m)] / E_{a'}[w] - log E_{a'}[w] + log E_{a'}[m]
    TVD(g, p) = ½ E_{a'} |w / E_{a'}[w] - m / E_{a'}[m]|

and each expectation is estimated by the attempts' mean (self-normalised importance sampling). Intervals are jackknifed. They
hold what they promise as long as the effective sample size is some hundreds; below, the weights that matter most may not
have been seen, and figures and intervals are too low, whatever the formula. The paper's own estimators (App. D), which
start from draws of g, have no such weakness but need a model whose own acceptance rate is not tiny.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from guardwrap.draws import Estimate
from guardwrap.errors import NoAcceptance, UsageError
from guardwrap.metrics.intervals import Floats, clip, combine, jackknife, log_estimate, mean_interval, numbers
from guardwrap.metrics.rates import acceptance_rate
from guardwrap.metrics.weights import read_weights, scaled

__all__ = [
    "kl_gold_base",
    "kl_gold_guarded",
    "kl_gold_guarded_from_gold",
    "kl_gold_proposal",
    "kl_gold_proposal_from_gold",
    "kl_to_sampler",
    "theorem2_residual",
    "tvd_gold_guarded",
    "tvd_to_sampler",
]


def kl_to_sampler(log_weights: Floats, log_accept: Floats) -> Estimate:
    """Estimate KL(g‖p) in nats for p ∝ a' m, from log w and log m, both ``[attempts]``."""
    w, top = scaled(log_weights)
    m, highest = scaled(log_accept)
    accepted = int((w > 0).sum())
    gain = np.zeros_like(w)
    gain[w > 0] = w[w > 0] * (np.log(w[w > 0]) - np.log(m[w > 0]))
    columns = np.stack([w, gain, m])
    if accepted < 2:
        value = float(_kl(columns.mean(axis=1)))
        return Estimate(max(value, 0.0), 0.0, math.inf)
    return clip(jackknife(columns, _kl, accepted - 1))


def _kl(mean: Floats) -> Floats:
    w, gain, m = mean
    # The scales that w and m were divided by cancel.
    return np.asarray(gain / w - np.log(w) + np.log(m))


def tvd_to_sampler(log_weights: Floats, log_accept: Floats) -> Estimate:
    """Estimate TVD(g, p) for p ∝ a' m, from log w and log m, both ``[attempts]``."""
    w, _ = scaled(log_weights)
    m, _ = scaled(log_accept)
    # ½ E |x - y| = E [x - y where x > y]. To first order the estimate of where that is adds nothing to the error.
    short = w / w.mean() > m / m.mean()
    columns = np.stack([w, m, w * short, m * short])
    accepted = int((w > 0).sum())
    if accepted < 2:
        return Estimate(float(_tvd(columns.mean(axis=1))), 0.0, 1.0)
    return clip(jackknife(columns, _tvd, accepted - 1), high=1.0)


def _tvd(mean: Floats) -> Floats:
    w, m, short_w, short_m = mean
    return np.asarray(short_w / w - short_m / m)


def kl_gold_base(accepted: int, attempts: int, *, stopped_on_acceptance: bool = False) -> Estimate:
    """Estimate KL(g‖a) = -log Z = -log AR_a (paper App. B.5) from attempts of the model itself.

    Parameters
    ----------
    accepted, attempts
        Counts.
    stopped_on_acceptance
        As in ``acceptance_rate``.

    Returns
    -------
    Estimate
        Nats; the ends are those of the exact interval for AR_a (Clopper and Pearson 1934). Without an acceptance the value
        and the upper end are infinite, and the lower end is what the attempts show.

    Raises
    ------
    UsageError
        If there is no attempt, or the counts make no sense.
    """
    rate = log_estimate(_rate((accepted, attempts), "(accepted, attempts)", stopped_on_acceptance))
    return clip(Estimate(-rate.value, -rate.high, -rate.low))


def kl_gold_proposal(log_weights: ArrayLike) -> Estimate:
    """Estimate KL(g‖a') = E_{a'}[w log w] / Z - log Z from attempts of a'.

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats; see ``guardwrap.metrics.weights``.

    Returns
    -------
    Estimate
        Nats. Self-normalised importance sampling; jackknife. Where fewer than two attempts satisfy b the interval is
        everything.

    Raises
    ------
    UsageError
        If there is no weight, or one is NaN or +inf.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    return kl_to_sampler(log_w, np.zeros_like(log_w))


def kl_gold_guarded(log_weights: ArrayLike) -> Estimate:
    """Estimate KL(g‖g') = KL(g‖a') + log AR_{a'} (Theorem 2) from attempts of a'.

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats; see ``guardwrap.metrics.weights``.

    Returns
    -------
    Estimate
        Nats. Self-normalised importance sampling, AR_{a'} being the share of finite weights; jackknife. Where fewer than
        two attempts satisfy b the interval is everything.

    Raises
    ------
    UsageError
        If there is no weight, or one is NaN or +inf.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    return kl_to_sampler(log_w, _satisfied(log_w))


def tvd_gold_guarded(log_weights: ArrayLike) -> Estimate:
    """Estimate TVD(g, g') = ½ Σ |g(y) - g'(y)| from attempts of a'.

    Parameters
    ----------
    log_weights
        ``[attempts]``, nats; see ``guardwrap.metrics.weights``.

    Returns
    -------
    Estimate
        Between 0 and 1. Self-normalised importance sampling (Eikema et al. 2022); jackknife. Where fewer than two attempts
        satisfy b the interval is everything.

    Raises
    ------
    UsageError
        If there is no weight, or one is NaN or +inf.
    NoAcceptance
        If no weight is finite.
    """
    log_w = read_weights(log_weights)
    return tvd_to_sampler(log_w, _satisfied(log_w))


def _satisfied(log_weights: Floats) -> Floats:
    """Return log b ``[attempts]``."""
    return np.where(log_weights > -math.inf, 0.0, -math.inf)


def kl_gold_proposal_from_gold(log_ratios: ArrayLike, base: tuple[int, int] | Estimate) -> Estimate:
    """Estimate KL(g‖a') = E_g log(a/a') - log AR_a from draws of g.

    Parameters
    ----------
    log_ratios
        log a(y) - log a'(y) on iid draws of g, e.g. the accepted attempts of rejection from a; ``[draws]``, nats.
    base
        (accepted, attempts) of a fixed number of attempts from a, or what ``acceptance_rate`` says of them. They may be
        the attempts that gave the draws.

    Returns
    -------
    Estimate
        Nats. Mean log-ratio (paper App. D) with a t interval, exact interval of AR_a, combined by MOVER.

    Raises
    ------
    UsageError
        If there is no draw, a log-ratio is not finite, or the counts make no sense.
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
    log_ratios, base
        As in ``kl_gold_proposal_from_gold``.
    proposal
        The same counts, or rate, of attempts from a'.

    Returns
    -------
    Estimate
        Nats. Mean log-ratio with a t interval, exact intervals of the rates (paper App. D), combined by MOVER.

    Raises
    ------
    UsageError
        If there is no draw, a log-ratio is not finite, or the counts make no sense.
    NoAcceptance
        If no attempt from a, or from a', was accepted.
    """
    return clip(
        combine((1, _mean_ratio(log_ratios)), (-1, _log_rate(base, "base")), (1, _log_rate(proposal, "proposal")))
    )


def theorem2_residual(
    kl_proposal: Estimate, kl_guarded: Estimate, acceptance: tuple[int, int] | Estimate
) -> Estimate:
    """Estimate KL(g‖a') - KL(g‖g') + log AR_{a'}, which Theorem 2 says is 0.

    Parameters
    ----------
    kl_proposal, kl_guarded
        KL(g‖a') and KL(g‖g') in nats.
    acceptance
        (accepted, attempts) of a', or what ``acceptance_rate`` says of them.

    Returns
    -------
    Estimate
        Nats; combined by MOVER. The interval is right where the three come from different runs, e.g. ``kl_gold_proposal``
        of one set of attempts, ``kl_gold_guarded_from_gold`` of draws of g with the counts of a second one, and the
        counts of a third. From one and the same set of attempts the residual is 0 by construction and shows nothing.

    Raises
    ------
    UsageError
        If the counts make no sense.
    NoAcceptance
        If no attempt from a' was accepted.
    """
    return combine((1, kl_proposal), (-1, kl_guarded), (1, _log_rate(acceptance, "acceptance")))


def _mean_ratio(log_ratios: ArrayLike) -> Estimate:
    ratios = numbers(log_ratios, "log_ratios")
    if not np.isfinite(ratios).all():
        raise UsageError(
            f"log_ratios holds {ratios[~np.isfinite(ratios)][0]} at index {int((~np.isfinite(ratios)).argmax())}: a and "
            "a' must both give every draw of g a probability above 0"
        )
    return mean_interval(ratios)


def _log_rate(rate: tuple[int, int] | Estimate, name: str) -> Estimate:
    known = rate if isinstance(rate, Estimate) else _rate(rate, name)
    if not known.value > 0:
        raise NoAcceptance(None if isinstance(rate, Estimate) else rate[1])
    return log_estimate(known)


def _rate(counts: tuple[int, int], name: str, stopped_on_acceptance: bool = False) -> Estimate:
    accepted, attempts = counts
    if not 0 <= accepted <= attempts or attempts == 0:
        raise UsageError(f"{name}: {accepted} accepted of {attempts} attempts; give 0 <= accepted <= attempts, attempts > 0")
    return acceptance_rate(accepted, attempts, stopped_on_acceptance=stopped_on_acceptance)
