"""How Markov chains mix: autocorrelation and R-hat of a figure of their states, e.g. log a(y) or a position.

``chains`` is an array ``[chains, steps]`` of independent chains. Intervals are jackknifed over the chains, so one chain alone
has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from guardwrap.draws import Estimate
from guardwrap.errors import UsageError
from guardwrap.metrics.intervals import Floats, clip, mean_interval

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
        Mean of (x_t - μ)(x_{t+lag} - μ) over all pairs of all chains, over the mean of (x_t - μ)², with μ the mean of all
        chains: with a mean for each chain, short chains would seem to mix better than they do. NaN, within [-1, 1], where
        all states are equal.

    Raises
    ------
    UsageError
        If there is no state, one is not finite, or the lag is out of range.
    """
    states = _read(chains, 1)
    if not 0 <= lag < states.shape[1]:
        raise UsageError(f"lag={lag}: chains of {states.shape[1]} steps have lags from 0 to {states.shape[1] - 1}")
    if np.ptp(states) == 0:
        return Estimate(math.nan, -1.0, 1.0)

    def figure(part: Floats) -> float:
        centred = part - part.mean()
        variance = float((centred**2).mean())
        covariance = float((centred[:, : part.shape[1] - lag] * centred[:, lag:]).mean())
        return covariance / variance if variance else 1.0

    return clip(_over_chains(states, figure), -1.0, 1.0)


def r_hat(chains: ArrayLike) -> Estimate:
    """Estimate split R-hat: by how much the chains' spread may still shrink with more steps.

    Parameters
    ----------
    chains
        ``[chains, steps]``, at least 4 steps; of an odd number of steps the middle one is left out.

    Returns
    -------
    Estimate
        sqrt(((n - 1) W + B) / (n W)) over the halves of all chains, with n the steps of a half, W the mean of their variances
        and B / n the variance of their means (Gelman et al., BDA3, 11.4; Vehtari et al. 2021 without ranks). Near 1 where
        chains agree; the latter ask for less than 1.01. Where no chain moves: infinite if they stand at different
        states; if all states are equal, which says nothing, NaN within [0, inf].

    Raises
    ------
    UsageError
        If there is no state, fewer than 4 steps, or a state that is not finite.
    """
    states = _read(chains, 4)
    if np.ptp(states) == 0:
        return Estimate(math.nan, 0.0, math.inf)
    if not _split_r_hat(states) < math.inf:
        return Estimate(math.inf, math.inf, math.inf)
    return clip(_over_chains(states, _split_r_hat))


def _split_r_hat(chains: Floats) -> float:
    half = chains.shape[1] // 2
    halves = np.concatenate([chains[:, :half], chains[:, -half:]])
    within = float(halves.var(axis=1, ddof=1).mean())
    between = float(halves.mean(axis=1).var(ddof=1))  # B / n
    if within == 0:
        return math.inf if between else 1.0
    return math.sqrt((half - 1) / half + between / within)


def _over_chains(chains: Floats, figure: Callable[[Floats], float]) -> Estimate:
    count, whole = len(chains), figure(chains)
    if count == 1:
        return Estimate(whole, -math.inf, math.inf)
    others = np.array([figure(np.delete(chains, i, axis=0)) for i in range(count)])
    if not np.isfinite(others).all():  # one chain alone moves, so nothing is known of how chains differ
        return Estimate(whole, -math.inf, math.inf)
    _, low, high = mean_interval(count * whole - (count - 1) * others)
    return Estimate(whole, min(low, whole), max(high, whole))


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
