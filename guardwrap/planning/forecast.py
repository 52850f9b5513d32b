"""Forecasts: the expected cost of one prompt, and the probability that a budget suffices, from a pilot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guardwrap.budget import Budget
from guardwrap.formatting import upwards
from guardwrap.metrics import acceptance_rate, effective_sample_size, pareto_k, pareto_k_limit
from guardwrap.outcomes import FEW, Estimate, Outcome
from guardwrap.planning.alternatives import mean_pilot, pilots_of, texts_of, weights_of
from guardwrap.samplers import Attempt
from guardwrap.samplers.protocol import Goal

SURE = 0.99
"""Probability with which a suggested budget suffices."""

MOST = 10_000_000
"""The largest budget that is suggested, in attempts."""


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


def forecast_of(
    outcome: Outcome,
    drawn: Sequence[Attempt],
    *,
    kind: str,
    goal: Goal,
    texts: int,
    budget: Budget,
    rate: Estimate | None,
    seconds: float,
    side_by_side: float,
) -> Forecast:
    """Estimate the cost of a prompt.

    ``rate``: a better estimate of the share of attempts that give a text than the pilot's own; None for none.
    """
    usage = outcome.report.usage
    pilot, length = usage.attempts, usage.tokens / max(usage.attempts, 1)
    computed = usage.computed_tokens / max(usage.attempts + usage.surplus_attempts, 1)
    accepted, is_qrs, weights = texts_of(drawn, kind, goal), kind == "qrs", weights_of(drawn)
    satisfied = sum(each.satisfied for each in drawn) if is_qrs else None  # QRS's own pilot counts them
    finite = sum(weight > -math.inf for weight in weights) if is_qrs else 0
    counted = acceptance_rate(math.floor(accepted), pilot, stopped_on_acceptance=False)
    share = rate or (counted._replace(value=accepted / pilot) if pilot else counted)
    pilots = pilots_of(drawn, goal)
    before = mean_pilot(pilots) * pilot / satisfied if satisfied else 0.0
    attempts = Estimate(*(before + texts / end if end else math.inf for end in (share.value, share.high, share.low)))
    worth = effective_sample_size(weights).value if satisfied else FEW
    more = 0 if worth >= FEW else upwards(max(4.0, 2 * FEW / worth) * pilot)
    allowed = min(
        math.inf if budget.max_attempts is None else budget.max_attempts,
        math.inf if budget.max_tokens is None else budget.max_tokens / max(length, 1),
        math.inf if budget.max_computed_tokens is None else budget.max_computed_tokens / max(computed, 1e-9),
        math.inf if budget.max_seconds is None else budget.max_seconds / max(seconds, 1e-9),
        math.inf if budget.deadline is None else budget.deadline / max(seconds, 1e-9),
        math.inf if budget.timeout is None else budget.timeout / max(seconds, 1e-9),
    )
    # A rate from weights is as certain as one from this many attempts, of which so many give a text.
    seen = (accepted, float(pilot)) if rate is None else _as_counts(rate)
    unknown = bool(more) or seen is None
    return Forecast(
        prompt=outcome.prompt,
        texts=texts,
        pilot=pilot,
        acceptance=share,
        attempts=attempts,
        tokens=Estimate(*(length * count for count in attempts)),
        seconds=Estimate(*(seconds * max(count, side_by_side * _rounds(count / texts)) for count in attempts)),
        suffices=math.nan if unknown or seen is None else reached(texts, allowed, *seen, satisfied, pilots),
        rejections=outcome.report.rejected,
        budget=None if unknown or seen is None else enough_for(texts, *seen, satisfied, pilots),
        before=before,
        allowed=budget,
        more=more,
        pareto_k=pareto_k(weights) if finite else None,
        pareto_k_limit=pareto_k_limit(finite) if finite else None,
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


def reached(
    texts: int,
    attempts: float,
    accepted: float,
    pilot: float,
    satisfied: int | None = None,
    before: Mapping[int, float] | None = None,
) -> float:
    """Return the probability of at least ``texts`` texts in further attempts: beta-binomial, Jeffreys' prior.

    ``satisfied``: for QRS, how many of the pilot's attempts satisfy the constraint. The run begins with QRS's own
    pilot.

    ``before``: the numbers of attempts that must satisfy the constraint before that pilot ends, each with its
    probability; None without QRS.
    """
    if attempts == math.inf:
        return 1.0
    import numpy as np
    from scipy.stats import betabinom  # a third of a second to import

    def chance(count: int, attempts: Any, seen: float) -> Any:
        return betabinom.sf(count - 1, attempts, seen + 0.5, pilot - seen + 0.5)

    if satisfied is None or before is None:
        return float(chance(texts, int(attempts), accepted))
    total = 0.0
    for length, share in before.items():
        ends = np.unique(np.linspace(length, max(length, int(attempts)), 65).astype(int))  # lengths of QRS's pilot
        ended = np.diff(chance(length, ends, satisfied), prepend=0.0)
        total += share * float(np.sum(ended * chance(texts, np.maximum(0, int(attempts) - ends), accepted)))
    return total


def enough_for(
    texts: int,
    accepted: float,
    pilot: float,
    satisfied: int | None = None,
    before: Mapping[int, float] | None = None,
) -> int | None:
    """Return the fewest attempts, to two digits, that give ``texts`` with probability 0.99; None if above ``MOST``."""
    if not accepted:
        return None
    low, high = texts - 1, texts
    while reached(texts, high, accepted, pilot, satisfied, before) < SURE:
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        enough = reached(texts, middle, accepted, pilot, satisfied, before) >= SURE
        low, high = (low, middle) if enough else (middle, high)
    return high
