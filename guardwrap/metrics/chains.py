"""Mixing of Markov chains: autocorrelation and R-hat of a number per state, e.g. log a(y) or a position.

``chains`` is an array ``[chains, steps]`` of independent chains. Intervals are jackknifed over the chains, so for a
single chain the interval is the whole range.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from guardwrap.errors import UsageError
from guardwrap.metrics.intervals import Floats, clip, jackknife
from guardwrap.outcomes import Estimate


def autocorrelation(chains: ArrayLike, lag: int) -> Estimate:
    """Estimate the correlation between a chain's states ``lag`` steps apart.

    Parameters
    ----------
    chains
        The states of independent chains, ``[chains, steps]``.
    lag
        Number of steps between the two states, from 0 to steps - 1.

    Returns
    -------
    Estimate
        Mean of (x_t - μ)(x_{t+lag} - μ) over all pairs of all chains, divided by the mean of (x_t - μ)², where μ is the
        mean over all chains: with a separate mean for each chain, short chains would seem to mix better than they do.
        If all states are equal, the value is NaN and the interval [-1, 1].

    Raises
    ------
    UsageError
        If there is no state, a state is not finite, or the lag is out of range.
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
        return Estimate(value, -1.0, 1.0)  # only one chain, or only one that differs: no spread to measure
    return clip(_about(value, jackknife(columns, _correlation)), -1.0, 1.0)


def _correlation(mean: Floats) -> Floats:
    product, first, later, centre, square = mean
    return np.asarray((product - centre * (first + later) + centre**2) / (square - centre**2))


def r_hat(chains: ArrayLike) -> Estimate:
    """Estimate split R-hat: the factor by which the chains' spread may still shrink with more steps.

    Parameters
    ----------
    chains
        The states of independent chains, ``[chains, steps]``, with at least 4 steps. If the number of steps is odd, the
        middle one is left out.

    Returns
    -------
    Estimate
        sqrt(((n - 1) W + B) / (n W)) over the halves of all chains, where n is the number of steps in a half, W the
        mean of the halves' variances and B / n the variance of their means (Gelman et al., BDA3, 11.4; Vehtari et al.
        2021 without ranks). Near 1 if the chains agree; Vehtari et al. recommend less than 1.01. If no chain moves, the
        value is infinite if their states differ; if all states are equal, which shows nothing, it is NaN and the
        interval [0, inf].

    Raises
    ------
    UsageError
        If there is no state, there are fewer than 4 steps, or a state is not finite.
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
    if moving == 1:  # only one chain, or only one that moves: no spread to measure
        return Estimate(value, 0.0, math.inf)

    def figure(mean: Floats) -> Floats:
        spread, centre, square = mean
        return np.asarray(np.sqrt((half - 1) / half + (square - centre**2) / spread))

    columns = np.stack([within.mean(axis=0), means.mean(axis=0), (means**2).mean(axis=0)])
    return clip(_about(value, jackknife(columns, figure)))


def _about(value: float, estimate: Estimate) -> Estimate:
    """Combine the value by the plain formula with the jackknife's interval, extended to include that value."""
    return Estimate(value, min(estimate.low, value), max(estimate.high, value))


def _read(chains: ArrayLike, least: int) -> Floats:
    states = np.asarray(chains, dtype=np.float64)
    if states.ndim != 2:
        raise UsageError(f"chains has {states.ndim} dimensions; give an array [chains, steps]")
    if not states.size:
        raise UsageError(f"empty chains: {states.shape[0]} chains of {states.shape[1]} steps; give at least one state")
    if states.shape[1] < least:
        raise UsageError(f"chains of {states.shape[1]} steps are too short; give at least {least} steps")
    if not np.isfinite(states).all():
        raise UsageError("chains contains a state that is not finite; leave out chains with such states")
    return states
