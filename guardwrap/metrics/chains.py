"""How Markov chains mix: autocorrelation and R-hat of a figure of their states, e.g. log a(y) or a position.

``chains`` is an array ``[chains, steps]`` of independent chains. Intervals are jackknifed over the chains, so one
chain alone has none.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from guardwrap.errors import UsageError
from guardwrap.metrics.intervals import Floats, clip, jackknife
from guardwrap.outcomes import Estimate

__all__ = ["autocorrelation", "r_hat"]


def autocorrelation(chains: ArrayLike, lag: int) -> Estimate:
    """Estimate the correlation between a chain's states ``lag`` steps apart.

    Parameters
    ----------
    chains
        ``[chains, steps]``.
    lag
        Steps, from 0 to steps - 1.

    Returns
    -------
    Estimate
        Mean of (x_t - μ)(x_{t+lag} - μ) over all pairs of all chains, over the mean of (x_t - μ)², with μ the mean of
        all chains: with a mean for each chain, short chains would seem to mix better than they do. NaN, within [-1,
        1], where all states are equal.

    Raises
    ------
    UsageError
        If there is no state, one is not finite, or the lag is out of range.
    """
    states = _read(chains, 1)
    steps = states.shape[1]
    if not 0 <= lag < steps:
        raise UsageError(f"lag={lag}: chains of {steps} steps have lags from 0 to {steps - 1}")
    if np.ptp(states) == 0:
        return Estimate(math.nan, -1.0, 1.0)
    states = states - states.mean()
    first, later = states[:, : steps - lag], states[:, lag:]
    columns = np.stack([(first * later).mean(1), first.mean(1), later.mean(1), states.mean(1), (states**2).mean(1)])
    value = float(_correlation(columns.mean(axis=1)))
    ends = int(states.max(axis=1).argmax()), int(states.min(axis=1).argmin())
    if len(states) == 1 or any(np.ptp(np.delete(states, end, axis=0)) == 0 for end in ends):
        return Estimate(value, -1.0, 1.0)  # one chain alone, or one alone that differs
    return clip(_about(value, jackknife(columns, _correlation)), -1.0, 1.0)


def _correlation(mean: Floats) -> Floats:
    product, first, later, centre, square = mean
    return np.asarray((product - centre * (first + later) + centre**2) / (square - centre**2))


def r_hat(chains: ArrayLike) -> Estimate:
    """Estimate split R-hat: by how much the chains' spread may still shrink with more steps.

    Parameters
    ----------
    chains
        ``[chains, steps]``, at least 4 steps; of an odd number of steps the middle one is left out.

    Returns
    -------
    Estimate
        sqrt(((n - 1) W + B) / (n W)) over the halves of all chains, with n the steps of a half, W the mean of their
        variances and B / n the variance of their means (Gelman et al., BDA3, 11.4; Vehtari et al. 2021 without
        ranks). Near 1 where chains agree; the latter ask for less than 1.01. Where no chain moves: infinite if they
        stand at different states; if all states are equal, which says nothing, NaN within [0, inf].

    Raises
    ------
    UsageError
        If there is no state, fewer than 4 steps, or a state that is not finite.
    """
    states = _read(chains, 4)
    half = states.shape[1] // 2
    halves = np.stack([states[:, :half], states[:, -half:]])
    moving = int((np.ptp(halves, axis=2) > 0).any(axis=0).sum())
    if moving == 0:
        return Estimate(math.inf, math.inf, math.inf) if np.ptp(halves) else Estimate(math.nan, 0.0, math.inf)
    halves = halves - halves.mean()
    within, means = halves.var(axis=2, ddof=1), halves.mean(axis=2)
    between = float(means.var(ddof=1))  # B / n
    value = math.sqrt((half - 1) / half + between / float(within.mean()))
    if moving == 1:  # one chain alone, or one alone that moves
        return Estimate(value, 0.0, math.inf)

    def figure(mean: Floats) -> Floats:
        spread, centre, square = mean
        return np.asarray(np.sqrt((half - 1) / half + (square - centre**2) / spread))

    columns = np.stack([within.mean(axis=0), means.mean(axis=0), (means**2).mean(axis=0)])
    return clip(_about(value, jackknife(columns, figure)))


def _about(value: float, estimate: Estimate) -> Estimate:
    """Show a figure by its own formula, with an interval that the jackknife has corrected for bias."""
    return Estimate(value, min(estimate.low, value), max(estimate.high, value))


def _read(chains: ArrayLike, least: int) -> Floats:
    states = np.asarray(chains, dtype=np.float64)
    if states.ndim != 2:
        raise UsageError(f"chains must be an array [chains, steps], not of {states.ndim} dimensions")
    if not states.size:
        raise UsageError(f"empty chains: {states.shape[0]} chains of {states.shape[1]} steps")
    if states.shape[1] < least:
        raise UsageError(f"chains of {states.shape[1]} steps are too short: at least {least} are needed")
    if not np.isfinite(states).all():
        raise UsageError("chains hold a state that is not finite")
    return states
