"""Quasi-rejection sampling (Eikema et al., TMLR 2022; the paper's App. G)."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from guardwrap.errors import UsageError, strict_arguments
from guardwrap.metrics import (
    effective_sample_size,
    log_beta_for_acceptance,
    log_beta_for_tvd,
    pareto_k,
    pareto_k_limit,
    qrs_acceptance,
    qrs_kl,
    qrs_tvd,
)
from guardwrap.metrics.intervals import Floats
from guardwrap.metrics.weights import unseen_share
from guardwrap.outcomes import FEW, Closeness, Distribution, Draw, Estimate, heavy_tail, without_end
from guardwrap.samplers.protocol import NEAR, Attempt, Goal, Sampler, Trace, checked_weight

PILOT = 100
"""The most attempts that satisfy the constraint in a pilot of the default length."""

CHECKED = (21, 25, 32, 40, 50, 63, 80)
"""After how many such attempts a pilot of the default length may end."""

ALIKE = 0.7
"""The share of the satisfying attempts that their effective sample size must reach for a pilot to end early.

For 8 texts at a target TVD of .05 with weights as of a mask, a pilot that may end early takes 5.1 satisfying attempts a
text, one of ``PILOT`` 14.1, and both have a TVD of .05. With heavy tails it does not end early, unless the weights that
matter have not been drawn: log-normal weights with σ = 1 take 16.5 of 17.4 (``benchmarks/pilots.py``).
"""


_LARGEST = math.log(sys.float_info.max)

FEWEST = 1e-9
"""The smallest ``target_acceptance``."""


class _State(NamedTuple):
    """log β, or None during the pilot; all log-weights; the pilot's attempts, and how many satisfied the constraint.

    Last the largest weight to allow for in texts that were not drawn.
    """

    log_beta: float | None
    seen: Trace | None = None
    pilot: int = 0
    satisfied: int = 0
    most_weight: float = math.inf


@strict_arguments
def qrs(
    beta: float | None = None,
    *,
    target_tvd: float | None = None,
    target_acceptance: float | None = None,
    pilot: int | None = None,
) -> Sampler:
    """Return the sampler that accepts y with probability min(1, P(y) / (β a'(y))), where P(y) = a(y) b(y).

    As β → 0 this is rejection sampling from the proposal (g'); if β is at least max P / a', it is exact (g). In
    between, a larger β means a smaller total variation distance to g and a higher cost.

    Parameters
    ----------
    beta
        β > 0, in units of P(y) / a'(y). The paper's text uses the normalized g = P / Z instead of P, so its β is this
        one divided by Z; its remark that β = Z is a reasonable compromise refers to P, as here.
    target_tvd
        Target from which β is chosen: the total variation distance to g, in (0, 1).
    target_acceptance
        Target from which β is chosen: the share of attempts to accept, in [1e-9, 1).
    pilot
        With a target: the number of attempts that must satisfy the constraint before β is set from the weights of all
        attempts so far and sampling begins. None for 21 to 100, as the weights require: the pilot ends as soon as their
        effective sample size is at least 0.7 times their number. Pilot attempts count against the budget. None of them
        is returned, because β depends on them.

    Returns
    -------
    Sampler
        Its report gives β and the target TVD; the acceptance rate, TVD(p_β, g), KL(g‖p_β) in nats and the effective
        sample size of the weights, each with an interval; and, with a target, the number of pilot attempts and how many
        of them satisfied the constraint. If the effective sample size is below 10, the report says that the distance
        is unknown. It also gives the Pareto k of the weights and its limit. If k is above that, or unknown, the
        distances have no upper end, and the report says that the target cannot be confirmed.

    Raises
    ------
    UsageError
        If a parameter is out of range, or more than one of ``beta``, ``target_tvd`` and ``target_acceptance`` is given.
        Giving none means ``target_tvd=0.05``.
    """
    _require_sound(beta, target_tvd, target_acceptance, pilot)
    goal = Goal(target_tvd or NEAR, pilot if beta is None else 0)

    def chosen(weights: list[float]) -> float:
        if target_acceptance is not None:
            return log_beta_for_acceptance(weights, target_acceptance)
        return log_beta_for_tvd(weights, goal.tvd)

    def init() -> _State:
        return _State(None if beta is None else math.log(beta))

    def step(state: _State, attempt: Attempt) -> tuple[_State, Draw | None]:
        weight = checked_weight(attempt)
        after = state._replace(seen=Trace(weight, state.seen), most_weight=attempt.most_weight)
        if state.log_beta is None:
            after = after._replace(pilot=state.pilot + 1, satisfied=state.satisfied + attempt.satisfied)
            if attempt.satisfied and _suffices(after, pilot):
                after = after._replace(log_beta=chosen(Trace.values(after.seen)))
            return after, None
        accepted = weight > -math.inf and (
            weight >= state.log_beta or attempt.uniform < math.exp(weight - state.log_beta)
        )
        return after, attempt.draw if accepted else None

    report = partial(_report, pilot=pilot, target=target_tvd if beta or target_acceptance else goal.tvd)
    options = (
        ("beta", beta),
        ("target_tvd", target_tvd),
        ("target_acceptance", target_acceptance),
        ("pilot", pilot),
    )
    return Sampler("qrs", init, step, report, weighs=True, goal=goal, options=options)


def _require_sound(
    beta: float | None, target_tvd: float | None, target_acceptance: float | None, pilot: int | None
) -> None:
    """Raise UsageError unless the parameters of ``qrs`` are in range and name one goal at most."""
    goals = [value for value in (beta, target_tvd, target_acceptance) if value is not None]
    if len(goals) > 1:
        raise UsageError("qrs takes only one of beta, target_tvd and target_acceptance; leave out the others")
    if beta is not None and not (0 < beta < math.inf):
        raise UsageError(f"beta={beta!r}: give a number above 0, or use sampler='rejection', the limit at 0")
    for name, value in (("target_tvd", target_tvd), ("target_acceptance", target_acceptance)):
        if value is not None and not 0 < value < 1:
            raise UsageError(f"{name}={value!r}: give a number between 0 and 1")
    if target_acceptance is not None and target_acceptance < FEWEST:
        raise UsageError(
            f"target_acceptance={target_acceptance!r}: no budget is large enough; give at least {FEWEST:g}"
        )
    if pilot is not None and (not isinstance(pilot, int) or pilot < 2):
        raise UsageError(f"pilot={pilot!r}: give a whole number of at least 2, or leave it out")


def _suffices(state: _State, pilot: int | None) -> bool:
    """Return whether β can be set from a pilot, which has just grown by an attempt that satisfies the constraint."""
    if pilot is not None or state.satisfied >= PILOT:
        return state.satisfied >= (PILOT if pilot is None else pilot)
    if state.satisfied not in CHECKED:
        return False
    passing = _passing(Trace.values(state.seen))
    return len(passing) >= CHECKED[0] and bool(_alike(passing))


def _passing(weights: Sequence[float]) -> Floats:
    """Return the weights of the attempts that satisfy the constraint, the largest as 1, from log-weights."""
    passing = np.array([weight for weight in weights if weight > -math.inf])
    return np.exp(passing - passing.max(initial=-math.inf)) if len(passing) else passing


def _alike(weights: Floats) -> Any:
    """Return whether the effective sample size of weights, ``[..., attempts]``, lets a pilot end early."""
    return weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1) >= ALIKE * weights.shape[-1]


def pilot_lengths(weights: Sequence[float]) -> dict[int, float]:
    """Return the probability of each number of attempts that must satisfy the constraint in a default pilot.

    Parameters
    ----------
    weights
        Log-weights of some attempts in nats; minus infinity for those that do not satisfy the constraint. Pilots draw
        their weights from these, with replacement.
    """
    passing = _passing(weights)
    if len(passing) < 2:
        return {PILOT: 1.0}
    drawn = np.random.default_rng(0).choice(passing, (200, CHECKED[-1]))
    suffices = np.stack([_alike(drawn[:, :length]) for length in CHECKED], axis=1)
    lengths = np.where(suffices.any(axis=1), np.array(CHECKED)[suffices.argmax(axis=1)], PILOT)
    length, count = np.unique(lengths, return_counts=True)
    return dict(zip(length.tolist(), (count / len(lengths)).tolist(), strict=True))


def _report(
    state: _State, pilot: int | None, target: float | None
) -> tuple[Distribution, Mapping[str, Estimate | float]]:
    figures: dict[str, Estimate | float] = {}
    if state.pilot:
        figures = {"pilot_attempts": state.pilot, "pilot_satisfied": state.satisfied}
    if state.log_beta is None:
        most = PILOT if pilot is None else pilot
        upto, by = ("up to ", "") if pilot is None else ("", f", by qrs(pilot={pilot})")
        needs = f"QRS first needs {upto}{most} attempts that satisfy the constraint{by}"
        about = "" if not state.satisfied else f": some {math.ceil(most * state.pilot / state.satisfied):,} would do"
        lacked = f"{needs}, and had {state.satisfied} in {state.pilot}{about}"
        return Distribution(Closeness.NOTHING, lacked), figures
    beta_text = f"log β = {state.log_beta:.4g}"
    if state.log_beta < _LARGEST:  # with huge log-weights, β itself may overflow a float
        figures["beta"] = beta = math.exp(state.log_beta)
        beta_text = f"β = {beta:.3g}"
    weights = Trace.values(state.seen)
    passing = sum(weight > -math.inf for weight in weights)
    if not passing:
        return Distribution(Closeness.APPROXIMATE, f"QRS, {beta_text}"), figures
    tvd, kl = qrs_tvd(weights, state.log_beta), qrs_kl(weights, state.log_beta)
    worth = effective_sample_size(weights)
    if state.most_weight < math.inf:
        unseen = unseen_share(weights, state.most_weight)
        tvd = tvd._replace(high=min(tvd.high + unseen, 1.0))
        lost = unseen * max(math.log(state.most_weight) - state.log_beta, 0.0)
        kl = kl._replace(high=kl.high + lost - math.log1p(-unseen) if unseen < 1 else math.inf)
    figures |= {
        "qrs_acceptance": qrs_acceptance(weights, state.log_beta),
        "tvd": tvd,
        "near_enough": NEAR if target is None else target,
        "kl": kl,
        "effective_sample_size": worth,
        "pareto_k": pareto_k(weights),
        "pareto_k_limit": pareto_k_limit(passing),
    }
    known = worth.value >= FEW
    distance = f"distance (TVD) {_compared(tvd, target, heavy_tail(figures))}" if known else "distance (TVD) unknown"
    return Distribution(Closeness.APPROXIMATE, f"QRS, {beta_text}, {distance}"), figures


def _compared(tvd: Estimate, target: float | None, heavy: float | None) -> str:
    """Compare the distance with the target, or with ``NEAR`` if there is no target.

    ``heavy``: the Pareto k of weights whose tail is too heavy to tell the distance, NaN if it is unknown; None if it
    is light.
    """
    enough = NEAR if target is None else target
    what = f"{NEAR:g}" if target is None else f"the target of {target:g}"
    if heavy is None:
        return f"{tvd}, {_within(tvd, enough, what)}"
    reached = f"above {what}" if tvd.low > enough else f"{what} cannot be confirmed"
    return f"{without_end(tvd, heavy)}; {reached}"


def _within(tvd: Estimate, enough: float, what: str) -> str:
    """Compare the distance with the one that is near enough, which is called ``what``."""
    if tvd.high <= enough:
        return f"within {what}"
    if tvd.value <= enough:
        return f"within {what} as estimated, but not certain"
    return f"above {what}" + ("" if tvd.low > enough else " as estimated")
