"""KL divergences of g from the model, the proposal and g', from draws of g and acceptance rates (paper, App. D)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from guardwrap.errors import NoAcceptance, UsageError
from guardwrap.metrics.intervals import acceptance_rate, clip, combine, log_estimate, mean_interval, numbers
from guardwrap.outcomes import Estimate


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
