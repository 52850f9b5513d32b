"""Alternative ways to draw the texts of a call: the cost of each, estimated from a pilot, and the cheapest.

The acceptance rate of the model itself is estimated from its own attempts and from weighed attempts of a proposal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from guardwrap.formatting import counted, digits
from guardwrap.metrics import (
    acceptance_rate,
    effective_sample_size,
    log_beta_for_tvd,
    partition,
    qrs_acceptance,
    tvd_gold_guarded,
)
from guardwrap.metrics.intervals import sum_of
from guardwrap.metrics.weights import too_heavy
from guardwrap.outcomes import FEW, Estimate, Origin, Outcome, bounded, plain
from guardwrap.samplers import Attempt
from guardwrap.samplers.protocol import Goal
from guardwrap.samplers.qrs import pilot_lengths

ENOUGH = 200
"""Attempts per prompt after which a pilot without a text is evidence that texts are rare."""

CLEARLY = 0.8
"""A way is recommended if the upper end of its cost is below this share of the lower end of the call's own."""

MARKOV = 0.025
"""The share of an unbiased estimate Ẑ that Z falls below with probability 0.025 at most, by Markov's inequality."""

WIDER = 1.3
"""Factor by which the interval of a mean weight is widened on the scale of logarithms.

It is that of 99 %. A twist may miss a way to satisfy the constraint, and then the weights vary less than they should.
"""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to draw the texts, and its cost as estimated from the pilot."""

    drawn_from: Origin  # what attempts are drawn from
    sampler: str  # the name of the sampler that makes the texts follow g or come close to it
    acceptance: float  # share of attempts that give a text with this sampler, over all prompts
    # Computed tokens per text, with those of ``learning`` and of the attempts that QRS draws before its first text, and
    # the 95 % interval, which follows from that of the acceptance rate. The value is infinite if a prompt had no text,
    # and the upper end as well if the weights' tail is too heavy to tell the cost of QRS. Attempts reuse what was
    # computed for earlier ones, so a longer run costs at most this.
    tokens: Estimate
    # attempts for the most expensive prompt, with those that QRS draws before its first text; infinite if a prompt had
    # no text
    attempts: float
    computed: float  # computed tokens for all texts of the most expensive prompt
    before: float = 0.0  # the part of ``attempts`` that QRS draws before its first text
    without: int = 0  # number of prompts that had no text
    others: float = math.inf  # computed tokens per text of the prompts that had one; infinite if none had
    pilot: int = 0  # the smallest number of attempts that the pilot drew for a prompt
    learning: int = 0  # attempts that a twist is learned from before the first text, once for all prompts

    @property
    def source(self) -> str:
        """What attempts are drawn from, in words."""
        return str(self.drawn_from)

    def to_dict(self) -> dict[str, Any]:
        """Return the alternative as plain JSON types; infinite figures are None."""
        return {"source": self.source} | {name: value for name, value in plain(self).items() if name != "drawn_from"}

    def __str__(self) -> str:
        begin, share = f"{self.source}, {self.sampler}", f"{digits(100 * self.acceptance)} % of attempts give one"
        if not self.without:
            pilot = f"its pilot, {self.before:,.0f} attempts per prompt, gives no text; then " if self.before else ""
            learned = f"{counted(self.learning, 'attempt')} to learn from; " if self.learning else ""
            return f"{begin}: {bounded(self.tokens)} computed tokens per text; {learned}{pilot}{share}"
        some = math.isfinite(self.others)
        whose = f" for {counted(self.without, 'prompt')}, {digits(self.others)} for the others" if some else ""
        none = f"no text in {counted(self.pilot, 'attempt')}{whose}"
        return f"{begin}: at least {digits(self.tokens.low)} computed tokens per text ({none})"


class _Cost(NamedTuple):
    """The cost of one prompt: attempts before the first text and in total, computed tokens."""

    before: float
    attempts: Estimate
    tokens: Estimate


def alternative_of(
    outcomes: Sequence[Outcome],
    attempts: Sequence[Sequence[Attempt]],
    *,
    kind: str,
    texts: int,
    goal: Goal = Goal(),  # noqa: B008
    rates: Sequence[Estimate | None] | None = None,
    learning: tuple[int, int] = (0, 0),
) -> Alternative:
    """Estimate the cost of one way to draw texts from a pilot of it.

    ``rates``: for each prompt, a better estimate of its acceptance rate than the pilot's own; None for none.
    """
    known = [None] * len(outcomes) if rates is None else rates
    each = [_cost(*one, kind, texts, goal) for one in zip(outcomes, attempts, known, strict=True)]
    accepted = sum(
        len(drawn) * rate.value if rate is not None else texts_of(drawn, kind, goal)
        for drawn, rate in zip(attempts, known, strict=True)
    )
    most = max(each, key=lambda cost: cost.attempts.value)
    some = [cost.tokens.value for cost in each if math.isfinite(cost.tokens.value)]
    total = _sum([cost.tokens for cost in each])
    return Alternative(
        outcomes[0].report.origin,
        kind,
        accepted / max(1, sum(map(len, attempts))),
        Estimate(*((end + learning[1]) / len(each) / texts for end in total)),
        most.attempts.value,
        max(cost.tokens.value for cost in each),
        most.before,
        len(each) - len(some),
        sum(some) / len(some) / texts if some else math.inf,
        min(map(len, attempts)),
        learning[0],
    )


def _sum(figures: Sequence[Estimate]) -> Estimate:
    """Add independent estimates, of which some may be infinite."""
    if all(math.isfinite(figure.value) for figure in figures):
        return sum_of(figures)
    return Estimate(math.inf, sum(figure.low for figure in figures), math.inf)


def _cost(
    outcome: Outcome, drawn: Sequence[Attempt], rate: Estimate | None, kind: str, texts: int, goal: Goal
) -> _Cost:
    """Return the expected cost of a prompt's texts."""
    length = outcome.report.usage.computed_tokens / max(len(drawn), 1)
    share = _share(drawn, kind, goal) if rate is None else rate
    before = Estimate(0.0, 0.0, 0.0)
    if kind == "qrs":
        passing = acceptance_rate(sum(attempt.satisfied for attempt in drawn), len(drawn), stopped_on_acceptance=False)
        first = mean_pilot(pilots_of(drawn, goal))
        before = _over(first, passing) if first else before
    attempts = Estimate(*map(sum, zip(before, _over(texts, share), strict=True)))
    finite = before.value if math.isfinite(before.value) else 0.0
    return _Cost(finite, attempts, Estimate(*(length * end for end in attempts)))


def _over(count: float, share: Estimate) -> Estimate:
    """Return how many attempts give ``count`` texts, from the share that do."""
    return Estimate(*(count / end if end > 0 else math.inf for end in (share.value, share.high, share.low)))


def _share(drawn: Sequence[Attempt], kind: str, goal: Goal) -> Estimate:
    """Estimate the share of attempts that give a text.

    For QRS, the lower end is 0 if the weights' tail is too heavy, or their effective sample size too small: further
    attempts may then have weights that make QRS accept far fewer of the others.
    """
    passing = sum(attempt.satisfied for attempt in drawn)
    counted_ = acceptance_rate(passing, len(drawn), stopped_on_acceptance=False)
    if kind != "qrs" or not passing:
        return counted_
    if passing < 2:
        return counted_._replace(low=0.0)
    weights = weights_of(drawn)
    share = qrs_acceptance(weights, log_beta_for_tvd(weights, goal.tvd))
    # With β below all weights QRS accepts what passes, and the mean of the weights has no error.
    low = min(share.low, counted_.low) if share.low < share.high else counted_.low
    return Estimate(share.value, low if tells_cost([drawn]) else 0.0, min(share.high, counted_.high))


def tells_cost(attempts: Sequence[Sequence[Attempt]]) -> bool:
    """Return whether the weights of each prompt's attempts can tell what QRS costs.

    They can if their effective sample size is at least 10 and the Pareto k of their tail at most its limit.
    """
    return all(can_tell(weights_of(drawn)) for drawn in attempts)


def cheapest(ways: Sequence[Alternative]) -> tuple[Alternative | None, bool]:
    """Compare the first way, which is the call's own, with the others.

    Returns
    -------
    Alternative or None
        The cheapest of the others, if its cost is below ``CLEARLY`` times that of the first one; None otherwise.
    bool
        Whether their intervals can tell: the upper end of its cost is below that share of the first one's lower end.
    """
    if not ways:
        return None, False
    first, best = ways[0], min(ways, key=lambda way: way.tokens.value)
    clear = [way for way in ways[1:] if way.tokens.high < CLEARLY * first.tokens.low]
    if clear:
        return min(clear, key=lambda way: way.tokens.value), True
    cheaper = math.isfinite(best.tokens.value) and best.tokens.value < CLEARLY * first.tokens.value
    return best if cheaper else None, False


def sampler_for(attempts: Sequence[Sequence[Attempt]], goal: Goal = Goal()) -> str:  # noqa: B008
    """Choose rejection if the texts of the proposal are surely close to g, otherwise QRS."""
    for drawn in attempts:
        weights = weights_of(drawn)
        if sum(weight > -math.inf for weight in weights) < 2 or tvd_gold_guarded(weights).high > goal.tvd:
            return "qrs"
    return "rejection"


def texts_of(drawn: Sequence[Attempt], kind: str, goal: Goal) -> float:
    """Return how many texts a pilot's attempts give with a sampler; the expected number for QRS."""
    accepted = sum(attempt.satisfied for attempt in drawn)
    if kind == "qrs" and accepted > 1:
        weights = weights_of(drawn)
        return qrs_acceptance(weights, log_beta_for_tvd(weights, goal.tvd)).value * len(drawn)
    return accepted


def pilots_of(drawn: Sequence[Attempt], goal: Goal) -> dict[int, float]:
    """Return how many attempts must satisfy the constraint before QRS draws its first text, with probabilities."""
    return pilot_lengths(weights_of(drawn)) if goal.pilot is None else {goal.pilot: 1.0}


def mean_pilot(pilots: Mapping[int, float]) -> float:
    """Return the mean number of attempts that must satisfy the constraint."""
    return sum(length * share for length, share in pilots.items())


def weights_of(drawn: Sequence[Attempt]) -> list[float]:
    """Return the log-weights of attempts in nats; none for attempts that were not weighed."""
    return [attempt.log_weight for attempt in drawn if attempt.log_weight is not None]


def can_tell(log_weights: Sequence[float]) -> bool:
    """Return whether weights can tell a mean, and so what QRS costs.

    They can if their effective sample size is at least 10 and the Pareto k of their tail at most its limit.
    """
    passing = any(weight > -math.inf for weight in log_weights)
    return passing and effective_sample_size(log_weights).value >= FEW and not too_heavy(np.array(log_weights))


def model_rate(plain: Sequence[Attempt], weighed: Sequence[Attempt]) -> tuple[Estimate, bool]:
    """Estimate Z = Σ a(y) b(y), the acceptance rate of the model itself.

    Parameters
    ----------
    plain
        Attempts of the model itself.
    weighed
        Attempts of a proposal with log-weights, whose mean weight is an unbiased estimate of Z (``metrics.partition``).

    Returns
    -------
    Estimate
        The mean weight with its interval, widened by ``WIDER``, if the weights can tell it: their effective sample size
        is at least 10, the Pareto k of their tail is at most its limit, and the interval is compatible with the share
        of ``plain`` attempts that satisfy the constraint. Otherwise the mean weight in an interval that assumes nothing
        about the weights: its lower end is the larger one of the binomial interval's (Clopper and Pearson 1934) and of
        Markov's bound, as P(Ẑ >= Z / 0.025) <= 0.025; its upper end is the binomial one. Without a weight above 0 it is
        the binomial estimate.
    bool
        Whether the weights can tell it.
    """
    passing = sum(attempt.satisfied for attempt in plain)
    counted = acceptance_rate(passing, len(plain), stopped_on_acceptance=False)
    log_weights = weights_of(weighed)
    if not any(attempt.satisfied for attempt in weighed) or not log_weights:
        return counted, False
    mean = partition(log_weights)
    if can_tell(log_weights) and mean.low <= counted.high and mean.high >= counted.low:
        low, high = (mean.value * (end / mean.value) ** WIDER for end in (mean.low, mean.high))
        return Estimate(mean.value, low, high), True
    low = min(max(counted.low, MARKOV * mean.value), counted.high)
    return Estimate(min(max(mean.value, low), counted.high), low, counted.high), False
