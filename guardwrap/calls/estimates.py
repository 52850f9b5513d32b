"""What a pilot tells: the cost of a way to draw texts, a forecast for each prompt, and the model's acceptance rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from guardwrap.budget import Budget
from guardwrap.calls.twisting import Spent
from guardwrap.constraints.kinds.share import Share
from guardwrap.metrics import (
    acceptance_rate,
    effective_sample_size,
    log_beta_for_tvd,
    pareto_k,
    pareto_k_limit,
    partition,
    qrs_acceptance,
    tvd_gold_guarded,
)
from guardwrap.metrics.intervals import inverse, sum_of
from guardwrap.metrics.weights import too_heavy
from guardwrap.outcomes import FEW, Estimate, Origin, Outcome, bounded, plain
from guardwrap.samplers import Attempt
from guardwrap.samplers.protocol import Goal
from guardwrap.samplers.qrs import from_pilot, pilot_lengths
from guardwrap.samplers.shares import Tilt, needed
from guardwrap.support.formatting import counted, digits, upwards

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


SURE = 0.99
"""Probability with which a suggested budget suffices."""

MOST = 10_000_000
"""The largest budget that is suggested, in attempts."""


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
            pilot = f"its pilot takes {self.before:,.0f} attempts per prompt; then " if self.before else ""
            learned = f"{counted(self.learning, 'attempt')} to learn from; " if self.learning else ""
            return f"{begin}: {bounded(self.tokens)} computed tokens per text; {learned}{pilot}{share}"
        some = math.isfinite(self.others)
        whose = f" for {counted(self.without, 'prompt')}, {digits(self.others)} for the others" if some else ""
        none = f"no text in {counted(self.pilot, 'attempt')}{whose}"
        return f"{begin}: at least {digits(self.tokens.low)} computed tokens per text ({none})"


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected cost of one prompt.

    Parameters
    ----------
    prompt
        The prompt as the user gave it.
    texts
        The number of texts requested.
    pilot
        The number of attempts of the pilot.
    acceptance
        Share of attempts that give a text, with its 95 % interval.
    attempts, tokens, seconds
        Expected cost of ``texts``, with the attempts that QRS draws before its first text. The intervals follow from
        that of ``acceptance``, and are infinite if the pilot saw no acceptance. They are intervals of the mean: a
        single run may take less or more. ``tokens`` counts drawn tokens. With several prompts, ``seconds`` is each
        prompt's share of the batch.
    suffices
        Probability that the budget is enough, given the pilot: from the beta-binomial distribution of further
        acceptances under Jeffreys' prior. For QRS, its own pilot is counted first. NaN if the pilot is worth less than
        ten draws from g, because the acceptance rate of QRS often falls with more attempts, and if ``acceptance`` is
        not known to within a factor of fifty.
    rejections
        For each part of the constraint, the number of attempts that it was the first to reject.
    budget
        Attempts that give all texts with probability 0.99; None if that takes too many.
    before
        The part of ``attempts`` that QRS draws before its first text: its own pilot.
    allowed
        The budget of the planned call.
    more
        Attempts of a larger pilot that would be enough to estimate the cost of QRS; 0 if this one is.
    pareto_k
        For QRS, the Pareto k of the weights of the pilot's attempts, see ``guardwrap.metrics.pareto_k``; None for other
        samplers.
    pareto_k_limit
        The limit above which it shows that a distance to g has no known upper end.
    basis
        What ``acceptance`` was estimated from, in words, if not from the attempts of the pilot alone.
    place
        Where the prompt is in the input, such as ``prompts.jsonl:7``; empty if it is not from a file.
    """

    prompt: Any
    texts: int
    pilot: int
    acceptance: Estimate
    attempts: Estimate
    tokens: Estimate
    seconds: Estimate
    suffices: float
    rejections: Mapping[str, int]
    budget: int | None
    before: float = 0.0
    allowed: Budget = field(default_factory=Budget)
    more: int = 0
    pareto_k: Estimate | None = None
    pareto_k_limit: float | None = None
    basis: str = ""
    place: str = ""


@dataclass(frozen=True)
class PromptPilot:
    """The attempts of a pilot at one prompt, and the sampler that is to make texts of further ones."""

    outcome: Outcome
    attempts: Sequence[Attempt]
    sampler: str  # "rejection" or "qrs"
    goal: Goal
    rate: Estimate | None = None  # a better estimate of the share that gives a text than this pilot's; None for none
    basis: str = ""  # what ``rate`` is estimated from, in words
    first: float = 0.0  # how many attempts must satisfy the constraint before the first text, for the pilot of shares

    @property
    def is_qrs(self) -> bool:
        """Whether the sampler is QRS, whose own pilot comes before its first text."""
        return self.sampler == "qrs"

    def sharing(self, shares: Sequence[Share], texts: int) -> PromptPilot:
        """Return this pilot for texts with shares."""
        if not shares:
            return self
        first, each, rarest, tilt = needed(shares, texts, self.attempts, returns=not self.is_qrs)
        words = self.basis or counted(len(self.attempts), "attempt")
        seen = f"{rarest} of which decide what shares take" if rarest else "which cannot tell what shares take"
        pilot = replace(self, first=first, basis=f"{words}, {seen}")
        if self.is_qrs and tilt is not None:  # QRS sees the weights of p
            return replace(pilot, attempts=[_tilted(attempt, tilt) for attempt in self.attempts], rate=None)
        passing = self.share()
        return replace(
            pilot, rate=Estimate(passing.value / each.value, passing.low / each.high, passing.high / each.low)
        )

    @property
    def has_pilot(self) -> bool:
        """Whether a pilot comes before the first text."""
        return self.is_qrs or self.first > 0

    @property
    def pilot_yield(self) -> float:
        """Expected number of texts from each attempt of that pilot that satisfies the constraint."""
        return self.texts / self.passing if self.is_qrs and self.passing and not self.first else 0.0

    @cached_property
    def weights(self) -> list[float]:
        """Log-weights in nats of attempts that were weighed."""
        return weights_of(self.attempts)

    @cached_property
    def passing(self) -> int:
        """The number of attempts that satisfy the constraint."""
        return sum(attempt.satisfied for attempt in self.attempts)

    @cached_property
    def texts(self) -> float:
        """How many texts the attempts give; the expected number for QRS."""
        if self.is_qrs and self.passing > 1:
            return self._qrs_share.value * len(self.attempts)
        return self.passing

    @cached_property
    def _qrs_share(self) -> Estimate:
        return qrs_acceptance(self.weights, log_beta_for_tvd(self.weights, self.goal.tvd))

    @cached_property
    def lengths(self) -> Mapping[int, float]:
        """How many attempts must satisfy the constraint before the first text, with probabilities."""
        lengths: Mapping[int, float] = {0: 1.0}
        if self.is_qrs:
            lengths = pilot_lengths(self.weights) if self.goal.pilot is None else {self.goal.pilot: 1.0}
        return {length + round(self.first): share for length, share in lengths.items()}

    @property
    def mean_length(self) -> float:
        """The mean of ``lengths``."""
        return sum(length * share for length, share in self.lengths.items())

    def after(self, texts: int) -> float:
        """Return how many texts attempts after QRS's own pilot give, as expected; the pilot gives the others."""
        return texts - sum(
            share * from_pilot(texts, length, self.pilot_yield) for length, share in self.lengths.items()
        )

    def share(self) -> Estimate:
        """Estimate the share of attempts that give a text.

        For QRS, the lower end is 0 if the weights' tail is too heavy, or their effective sample size too small: further
        attempts may then have weights that make QRS accept far fewer of the others.
        """
        if self.rate is not None:
            return self.rate
        passing = self._passing_share()
        if not self.is_qrs or not self.passing:
            return passing
        if self.passing < 2:
            return passing._replace(low=0.0)
        share = self._qrs_share
        # With β below all weights QRS accepts what passes, and the mean of the weights has no error.
        low = min(share.low, passing.low) if share.low < share.high else passing.low
        return Estimate(share.value, low if can_tell(self.weights) else 0.0, min(share.high, passing.high))

    def before(self) -> Estimate:
        """Estimate how many attempts come before the first text."""
        return inverse(self._passing_share(), self.mean_length) if self.has_pilot else Estimate(0.0, 0.0, 0.0)

    def _passing_share(self) -> Estimate:
        return acceptance_rate(self.passing, len(self.attempts), stopped_on_acceptance=False)


def _tilted(attempt: Attempt, tilt: Tilt) -> Attempt:
    """Return an attempt with its weight under a distribution with shares; one that violates the constraint has none."""
    if attempt.log_weight is None or not attempt.satisfied:
        return attempt
    return replace(attempt, log_weight=attempt.log_weight + tilt(attempt.features))


def alternative_of(pilots: Sequence[PromptPilot], texts: int, learning: Spent) -> Alternative:
    """Estimate the cost of one way to draw ``texts`` texts per prompt; ``learning`` is that of its twist."""
    before = [pilot.before() for pilot in pilots]
    attempts, tokens = [], []
    for pilot, first in zip(pilots, before, strict=True):
        attempts.append(_one_after_another(first, inverse(pilot.share(), pilot.after(texts))))
        length = pilot.outcome.report.usage.computed_tokens / max(len(pilot.attempts), 1)
        tokens.append(Estimate(*(length * end for end in attempts[-1])))
    accepted = sum(p.texts if p.rate is None else len(p.attempts) * p.rate.value for p in pilots)
    most = max(range(len(pilots)), key=lambda number: attempts[number].value)
    some = [cost.value for cost in tokens if math.isfinite(cost.value)]
    return Alternative(
        pilots[0].outcome.report.origin,
        pilots[0].sampler,
        accepted / max(1, sum(len(pilot.attempts) for pilot in pilots)),
        Estimate(*((end + learning.computed_tokens) / len(pilots) / texts for end in _sum(tokens))),
        attempts[most].value,
        max(cost.value for cost in tokens),
        before[most].value if math.isfinite(before[most].value) else 0.0,
        len(pilots) - len(some),
        sum(some) / len(some) / texts if some else math.inf,
        min(len(pilot.attempts) for pilot in pilots),
        learning.attempts,
    )


def _one_after_another(first: Estimate, then: Estimate) -> Estimate:
    """Add the attempts of two stages whose estimates come from the same attempts."""
    return Estimate(*map(sum, zip(first, then, strict=True)))


def _sum(figures: Sequence[Estimate]) -> Estimate:
    """Add independent estimates, of which some may be infinite."""
    if all(math.isfinite(figure.value) for figure in figures):
        return sum_of(figures)
    return Estimate(math.inf, sum(figure.low for figure in figures), math.inf)


def cheapest(ways: Sequence[Alternative]) -> tuple[Alternative | None, bool]:
    """Return the cheapest of the ways, if it clearly costs less than the first one, and whether intervals can tell.

    The first way is the call's own. Clearly less is below ``CLEARLY`` times its cost; intervals can tell if that holds
    for the upper end of the cheapest and the lower end of the first.
    """
    if not ways:
        return None, False
    first, best = ways[0], min(ways, key=lambda way: way.tokens.value)
    clear = [way for way in ways[1:] if way.tokens.high < CLEARLY * first.tokens.low]
    if clear:
        return min(clear, key=lambda way: way.tokens.value), True
    cheaper = math.isfinite(best.tokens.value) and best.tokens.value < CLEARLY * first.tokens.value
    return best if cheaper else None, False


def sampler_for(attempts: Sequence[Sequence[Attempt]], goal: Goal) -> str:
    """Choose rejection if the texts of the proposal are surely close to g, otherwise QRS."""
    for weights in map(weights_of, attempts):
        if sum(weight > -math.inf for weight in weights) < 2 or tvd_gold_guarded(weights).high > goal.tvd:
            return "qrs"
    return "rejection"


def weights_of(attempts: Sequence[Attempt]) -> list[float]:
    """Return the log-weights of attempts in nats; none for attempts that were not weighed."""
    return [attempt.log_weight for attempt in attempts if attempt.log_weight is not None]


def can_tell(log_weights: Sequence[float]) -> bool:
    """Return whether weights can tell a mean, and so what QRS costs.

    They can if their effective sample size is at least 10 and the Pareto k of their tail at most its limit.
    """
    passing = any(weight > -math.inf for weight in log_weights)
    return passing and effective_sample_size(log_weights).value >= FEW and not too_heavy(np.array(log_weights))


def model_rate(plain: Sequence[Attempt], weighed: Sequence[Attempt]) -> tuple[Estimate, bool]:
    """Estimate Z = Σ a(y) b(y), the acceptance rate of the model itself, and return whether weights can tell it.

    ``plain`` are attempts of the model, ``weighed`` those of a proposal, whose mean weight is an unbiased estimate of Z
    (``metrics.partition``). Weights can tell it if their effective sample size is at least 10, the Pareto k of their
    tail at most its limit, and their interval, widened by ``WIDER``, compatible with the share of ``plain`` that
    satisfy the constraint. Otherwise the interval assumes nothing about weights: its lower end is the larger one of the
    binomial interval's (Clopper and Pearson 1934) and of Markov's bound, as P(Ẑ >= Z / 0.025) <= 0.025; its upper end
    is the binomial one. Without a weight above 0 it is the binomial estimate.
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


def forecast_of(pilot: PromptPilot, *, texts: int, budget: Budget, seconds: float, side_by_side: float) -> Forecast:
    """Estimate the cost of a prompt. ``seconds`` is that of an attempt, ``side_by_side`` how many run at a time."""
    usage, rate, weights = pilot.outcome.report.usage, pilot.rate, pilot.weights
    count, length = usage.attempts, usage.tokens / max(usage.attempts, 1)
    computed = usage.computed_tokens / max(usage.attempts + usage.surplus_attempts, 1)
    satisfied = pilot.passing if pilot.has_pilot else None  # such a pilot counts them
    finite = sum(weight > -math.inf for weight in weights) if pilot.is_qrs else 0
    counted = acceptance_rate(math.floor(pilot.texts), count, stopped_on_acceptance=False)
    share = rate or (counted._replace(value=pilot.texts / count) if count else counted)
    before = pilot.before()
    attempts = _one_after_another(before, inverse(share, pilot.after(texts)))
    worth = effective_sample_size(weights).value if pilot.is_qrs and satisfied else FEW
    more = 0 if worth >= FEW else upwards(max(4.0, 2 * FEW / worth) * count)
    limits = (
        (budget.max_attempts, 1),
        (budget.max_tokens, max(length, 1)),
        (budget.max_computed_tokens, max(computed, 1e-9)),
        *((limit, max(seconds, 1e-9)) for limit in (budget.max_seconds, budget.deadline, budget.timeout)),
    )
    allowed = min((limit / cost for limit, cost in limits if limit is not None), default=math.inf)
    # A rate from weights is as certain as one from this many attempts, of which so many give a text.
    seen = (pilot.texts, float(count)) if rate is None else _as_counts(rate)
    further = None
    if not more and seen is not None:
        alike = satisfied and satisfied * seen[1] / count
        further = Further(*seen, alike, pilot.lengths if pilot.has_pilot else {}, pilot.pilot_yield)
    return Forecast(
        prompt=pilot.outcome.prompt,
        texts=texts,
        pilot=count,
        acceptance=share,
        attempts=attempts,
        tokens=Estimate(*(length * end for end in attempts)),
        seconds=Estimate(*(seconds * max(end, side_by_side * _rounds(end / texts)) for end in attempts)),
        suffices=math.nan if further is None else further.reaches(texts, allowed),
        rejections=pilot.outcome.report.rejected,
        budget=None if further is None else further.enough_for(texts),
        before=before.value if satisfied else 0.0,
        allowed=budget,
        more=more,
        pareto_k=pareto_k(weights) if finite else None,
        pareto_k_limit=pareto_k_limit(finite) if finite else None,
        basis=pilot.basis if rate is not None else "",
    )


def _rounds(attempts: float) -> float:
    """Return how many rounds a text takes with so many attempts: rounds double (1, 2, 4, ...) while all fail."""
    return math.log2(1 + attempts)


def _as_counts(rate: Estimate) -> tuple[float, float] | None:
    """Return the accepted attempts, and all attempts, after which a rate has as wide an interval as this one.

    None if it is so wide that no attempt would have to be accepted.
    """
    if not rate.low > 0:
        return None
    # The logarithm of a rate from k accepted attempts has a standard error of 1 / √k.
    width = math.log(rate.high / rate.low)
    accepted = 1e6 if width < 0.004 else (2 * 1.96 / width) ** 2
    return None if accepted < 1 else (accepted, accepted / rate.value)


@dataclass(frozen=True)
class Further:
    """Attempts after those of a pilot: beta-binomial acceptances under Jeffreys' prior."""

    accepted: float  # attempts of the pilot that gave a text
    pilot: float  # all attempts of the pilot
    # How many of the pilot's attempts satisfy the constraint, if a run begins with a pilot of its own. None without.
    satisfied: float | None
    # the numbers of attempts that must satisfy the constraint before that pilot ends, each with its probability
    lengths: Mapping[int, float]
    pilot_yield: float = 0.0  # expected number of texts from each of these

    def _after(self, texts: int, length: int) -> int:
        """Return how many texts attempts after a pilot of this length have to give."""
        return math.ceil(texts - from_pilot(texts, length, self.pilot_yield))

    def reaches(self, texts: int, attempts: float) -> float:
        """Return the probability of at least ``texts`` texts in further attempts."""
        if attempts == math.inf:
            return 1.0
        from scipy.stats import betabinom  # a third of a second to import

        def chance(count: int, attempts: Any, seen: float) -> Any:
            return betabinom.sf(count - 1, attempts, seen + 0.5, self.pilot - seen + 0.5)

        if self.satisfied is None:
            return float(chance(texts, int(attempts), self.accepted))
        total = 0.0
        for length, share in self.lengths.items():
            ends = np.unique(np.linspace(length, max(length, int(attempts)), 65).astype(int))  # lengths of QRS's pilot
            ended = np.diff(chance(length, ends, self.satisfied), prepend=0.0)
            later = chance(self._after(texts, length), np.maximum(0, int(attempts) - ends), self.accepted)
            total += share * float(np.sum(ended * later))
        return total

    def enough_for(self, texts: int) -> int | None:
        """Return the fewest attempts, to two digits, that give texts with probability 0.99; None if above ``MOST``."""
        if not self.accepted:
            return None
        low, high = texts - 1, texts
        while self.reaches(texts, high) < SURE:
            low, high = high, 2 * high
            if high > MOST:
                return None
        while high - low > max(1, high // 100):
            middle = (low + high) // 2
            low, high = (low, middle) if self.reaches(texts, middle) >= SURE else (middle, high)
        return high
