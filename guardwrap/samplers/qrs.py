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
from guardwrap.metrics.divergence import kl_to_sampler, tvd_to_sampler
from guardwrap.metrics.intervals import Floats
from guardwrap.metrics.weights import unseen_share
from guardwrap.outcomes import FEW, Closeness, Distribution, Draw, Estimate, heavy_tail, without_end
from guardwrap.samplers.protocol import NEAR, Attempt, Goal, Sampler, Trace, checked_weight

PILOT = 100
"""The most attempts that satisfy the constraint in a pilot of the default length. β is set again at twice as many, etc.

Where large weights are rare, 100 attempts may have none of them. With log-normal weights, σ = 2, and a target of .1,
300 texts then are at .14 and not at .27, for 31 instead of 12 attempts each (``benchmarks/pilots.py``).
"""

ALIKE = {6: 0.95, 7: 0.91, 8: 0.89, 10: 0.85, 12: 0.83, 14: 0.81, 17: 0.79}
ALIKE |= dict.fromkeys((21, 25, 32, 40, 50, 63, 80), 0.7)
"""After how many satisfying attempts a pilot of the default length may end, and which share of them their effective
sample size must reach for that. Few weights look alike by chance, so the shortest pilots need the largest share.

For 8 texts at a target TVD of .1 with weights as of a mask (log-normal, σ = .3 and .46), requests take 1.8 and 2.7
satisfying attempts a text, and 3.7 and 3.9 if no pilot is shorter than 21 and its texts are lost, at a TVD of .09 and
.10. With heavy tails pilots stay long (``benchmarks/pilots.py``).
"""

OPTIMISM = 2
"""With n weights β aims at n / (n + 2) of the target TVD: estimated from the weights that chose β, a TVD is too low."""

_LARGEST = math.log(sys.float_info.max)

FEWEST = 1e-9
"""The smallest ``target_acceptance``."""


class _State(NamedTuple):
    """What QRS has seen and returned, and the pilot's attempts that wait for a β from the weights of others."""

    log_beta: float | None  # of the next attempt; None during the pilot
    seen: Trace | None = None  # log-weights of all attempts
    satisfied: int = 0  # all attempts that satisfied the constraint
    pilot: int = 0  # the pilot's attempts
    pilot_satisfied: int = 0
    held: tuple[Attempt, ...] | None = ()  # the pilot's that satisfied the constraint; None once they are decided
    pilot_beta: float | None = None  # log β for these, from as many later attempts as a pilot of their weights takes
    quota: int = 0  # that number, which is that of the texts to return before the pilot's
    pilot_returned: int = 0
    laws: tuple[tuple[float, int], ...] = ()  # log β and the texts that were returned by it
    most_weight: float = math.inf  # the largest weight to allow for in texts that were not drawn
    rate: float = 1.0  # share of the attempts that satisfy the constraint that this β accepts, as estimated

    def with_beta(self, log_beta: float, log_weights: list[float]) -> _State:
        """Return the state in which the next attempts are accepted by this β, which was chosen from these weights."""
        accept = [math.exp(min(weight - log_beta, 0.0)) for weight in log_weights if weight > -math.inf]
        return self._replace(log_beta=log_beta, rate=max(sum(accept) / self.satisfied, 1e-9))

    @property
    def returned(self) -> int:
        """The number of texts returned."""
        return sum(count for _, count in self.laws)

    def with_texts(self, log_beta: float, count: int) -> _State:
        """Return the state after so many more texts that were accepted by this β."""
        laws = dict(self.laws)
        laws[log_beta] = laws.get(log_beta, 0) + count
        return self._replace(laws=tuple(laws.items())) if count else self


def accepts(log_beta: float, attempt: Attempt) -> bool:
    """Return whether QRS accepts an attempt: with probability min(1, w / β)."""
    weight = attempt.log_weight
    if weight is None or weight == -math.inf:
        return False
    return weight >= log_beta or attempt.uniform < math.exp(weight - log_beta)


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
        attempts so far and texts are returned. None for 6 to 100, as the weights require: the pilot ends as soon as
        their effective sample size is near their number, and β is set again from all attempts as they grow to 100, and
        whenever their number has doubled since. The pilot's own texts follow when as many others were returned as a
        pilot of the attempts after it takes; their β is that of those attempts, because no text may depend on its own
        weight. Pilot attempts count against the budget.

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

    lengths = ALIKE if target_acceptance is None else {length: share for length, share in ALIKE.items() if length > 20}
    lengths, most = (lengths, PILOT) if pilot is None else ({}, pilot)

    def chosen(weights: list[float]) -> float:
        if target_acceptance is None:
            number = len(_passing(weights))
            return log_beta_for_tvd(weights, goal.tvd * number / (number + OPTIMISM))
        return log_beta_for_acceptance(weights, target_acceptance)

    def suffices(weights: list[float], satisfied: int) -> bool:
        """Return whether weights, of which the last is of an attempt that satisfies the constraint, can set β."""
        if satisfied < most and satisfied not in lengths:
            return False
        passing = _passing(weights)
        least = max((length for length in lengths if length <= len(passing)), default=None)
        return (satisfied >= most and len(passing) > 0) or (least is not None and bool(_alike(passing, lengths[least])))

    def init() -> _State:
        return _State(None if beta is None else math.log(beta), held=() if beta is None else None)

    def step(state: _State, attempt: Attempt) -> tuple[_State, Draw | tuple[Draw, ...] | None]:
        seen, satisfied = Trace(checked_weight(attempt), state.seen), state.satisfied + attempt.satisfied
        after = state._replace(seen=seen, satisfied=satisfied, most_weight=attempt.most_weight)
        if state.log_beta is None:
            return piloted(after, attempt), None
        draws = (attempt.draw,) * accepts(state.log_beta, attempt)
        after = after.with_texts(state.log_beta, len(draws))
        if attempt.satisfied and beta is None:
            after = learned(after)
        # The pilot's texts have fixed places: when ``quota`` texts have come, which is the most that the attempts that
        # set their β can give. If they came at once, their own weights, on which the β of those attempts depends,
        # would decide which text is the n-th, and that would be biased.
        if after.held and after.pilot_beta is not None and after.returned >= after.quota:
            own = tuple(held.draw for held in after.held if accepts(after.pilot_beta, held))
            after = after.with_texts(after.pilot_beta, len(own))._replace(held=None, pilot_returned=len(own))
            draws += own
        return after, draws if len(draws) > 1 else draws[0] if draws else None

    def piloted(state: _State, attempt: Attempt) -> _State:
        """Hold an attempt of the pilot, and set β for the attempts after it if it is the last."""
        state = state._replace(pilot=state.pilot + 1, pilot_satisfied=state.satisfied)
        if attempt.satisfied:
            state = state._replace(held=(*(state.held or ()), attempt))
            weights = Trace.values(state.seen)
            if suffices(weights, state.satisfied):
                state = state.with_beta(chosen(weights), weights)
        return state

    def learned(state: _State) -> _State:
        """Set β for later attempts from all so far, in blocks that grow, and for the pilot from those after it."""
        weights: list[float] = []
        blocks, rest = divmod(state.satisfied, PILOT)
        if state.satisfied in lengths or (pilot is None and rest == 0 and blocks.bit_count() == 1):
            weights = Trace.values(state.seen)
            state = state.with_beta(chosen(weights), weights)
        later = state.satisfied - state.pilot_satisfied
        if state.held and state.pilot_beta is None and (later in lengths or later >= most):
            weights = (weights or Trace.values(state.seen))[state.pilot :]
            if suffices(weights, later):
                state = state._replace(pilot_beta=chosen(weights), quota=later)
        return state

    def needs(state: _State, missing: int) -> float:
        """Return how many further attempts must satisfy the constraint, as expected, for the texts that are missing."""
        last = state.satisfied - (0 if state.log_beta is None else state.pilot_satisfied)
        length = state.quota or min((length for length in lengths if length > last), default=most)
        if state.log_beta is None:
            return max(length - last, 1) + max(min(missing, length), missing - length)
        first = min(missing, max(length - state.returned, 0)) if state.held else missing
        rest = max(missing - first - state.rate * len(state.held or ()), 0)
        return (first + rest) / state.rate

    report = partial(_report, pilot=pilot, target=target_tvd if beta or target_acceptance else goal.tvd)
    options = (
        ("beta", beta),
        ("target_tvd", target_tvd),
        ("target_acceptance", target_acceptance),
        ("pilot", pilot),
    )
    plans = needs if beta is None else None
    return Sampler("qrs", init, step, report, weighs=True, goal=goal, options=options, needs=plans)


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


def _passing(weights: Sequence[float]) -> Floats:
    """Return the weights of the attempts that satisfy the constraint, the largest as 1, from log-weights."""
    passing = np.array([weight for weight in weights if weight > -math.inf])
    return np.exp(passing - passing.max(initial=-math.inf)) if len(passing) else passing


def _alike(weights: Floats, share: float) -> Any:
    """Return whether the effective sample size of weights, ``[..., attempts]``, reaches a share of their number."""
    return weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1) >= share * weights.shape[-1]


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
    drawn = np.random.default_rng(0).choice(passing, (200, max(ALIKE)))
    alike = np.stack([_alike(drawn[:, :length], share) for length, share in ALIKE.items()], axis=1)
    lengths = np.where(alike.any(axis=1), np.array(list(ALIKE))[alike.argmax(axis=1)], PILOT)
    length, count = np.unique(lengths, return_counts=True)
    return dict(zip(length.tolist(), (count / len(lengths)).tolist(), strict=True))


def from_pilot(texts: int, length: int, rate: float) -> float:
    """Return how many of some texts come from the pilot, as expected.

    Parameters
    ----------
    texts
        The texts that are requested.
    length
        The pilot's attempts that satisfy the constraint. A second pilot, which tells their β, is assumed as long.
    rate
        The share of these that QRS accepts.
    """
    return min(max(texts - length, 0.0), rate * length)


def _report(
    state: _State, pilot: int | None, target: float | None
) -> tuple[Distribution, Mapping[str, Estimate | float]]:
    figures: dict[str, Estimate | float] = {}
    if state.pilot:
        figures = {"pilot_attempts": state.pilot, "pilot_satisfied": state.pilot_satisfied}
        figures |= {"pilot_returned": state.pilot_returned} if state.held is None else {}
    if state.log_beta is None:
        most = PILOT if pilot is None else pilot
        upto, by = ("up to ", "") if pilot is None else ("", f", by qrs(pilot={pilot})")
        needs = f"QRS first needs {upto}{most} attempts that satisfy the constraint{by}"
        about = "" if not state.satisfied else f": some {math.ceil(most * state.pilot / state.satisfied):,} would do"
        lacked = f"{needs}, and had {state.satisfied} in {state.pilot}{about}"
        return Distribution(Closeness.NOTHING, lacked), figures
    laws = state.laws or ((state.log_beta, 1),)
    beta_text = f"log β = {_span(laws, '.4g')}"
    if max(state.log_beta, max(laws)[0]) < _LARGEST:  # with huge log-weights, β itself may overflow a float
        figures["beta"] = math.exp(state.log_beta)
        beta_text = f"β = {_span([(math.exp(log_beta), count) for log_beta, count in laws], '.3g')}"
    weights = np.array(Trace.values(state.seen))
    passing = int((weights > -math.inf).sum())
    if not passing:
        return Distribution(Closeness.APPROXIMATE, f"QRS, {beta_text}"), figures
    tvd, kl = _distances(weights, laws)
    worth, least = effective_sample_size(weights), min(laws)[0]
    if state.most_weight < math.inf:
        unseen = unseen_share(weights, state.most_weight)
        tvd = tvd._replace(high=min(tvd.high + unseen, 1.0))
        lost = unseen * max(math.log(state.most_weight) - least, 0.0)
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


def _span(laws: Sequence[tuple[float, int]], form: str) -> str:
    """Return the values of β, or of its logarithm, from the smallest to the largest."""
    low, high = format(min(laws)[0], form), format(max(laws)[0], form)
    return low if low == high else f"{low} to {high}"


def _distances(weights: Floats, laws: Sequence[tuple[float, int]]) -> tuple[Estimate, Estimate]:
    """Estimate TVD and KL between g and what texts were drawn from: the mean of p_β over the texts of each β."""
    if len(laws) == 1:
        return qrs_tvd(weights, laws[0][0]), qrs_kl(weights, laws[0][0])
    passing = weights > -math.inf
    accept = np.exp([np.minimum(weights[passing] - log_beta, 0.0) for log_beta, _ in laws])
    shares = np.array([count for _, count in laws]) / accept.mean(axis=1)
    log_accept, least = np.full_like(weights, -math.inf), min(laws)[0]
    log_accept[passing] = np.log(shares @ accept)
    return tvd_to_sampler(weights, log_accept, least), kl_to_sampler(weights, log_accept, least)


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
