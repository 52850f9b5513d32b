"""Plans: what a run will cost, estimated from a small pilot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from guardwrap.budget import Budget
from guardwrap.formatting import blamed, counted, digits, upwards
from guardwrap.metrics import acceptance_rate
from guardwrap.outcomes import FEW, SAMPLER, Estimate, Outcome, bounded, heavy_tail, plain, tail_and_limit
from guardwrap.planning.alternatives import (
    ENOUGH,
    Alternative,
    attempts_before,
    satisfied_in,
    tail_in,
    texts_of,
    worth_in,
)
from guardwrap.planning.probability import MOST, SURE, enough_for, reached
from guardwrap.samplers import Attempt

__all__ = ["Forecast", "Plan", "planned", "spent"]

_FEW = 10
"""With fewer texts in the pilot, a plan may be wrong by a third or more."""

_MORE = 256
"""The least number of attempts to suggest for a pilot after a smaller one had no text."""

_LIMITS = {
    "max_attempts": "attempts",
    "max_tokens": "tokens",
    "max_computed_tokens": "computed tokens",
    "max_seconds": "seconds",
    "deadline": "seconds (deadline)",
}
"""The limits of a budget, and what each counts."""

_SHOWN = 3
"""How many parts of the constraint are shown with their rejections, at most."""


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
        ten draws from g, because the acceptance rate of QRS often falls with more attempts.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """The expected cost of a call, and a recommendation.

    Parameters
    ----------
    forecasts
        One forecast per prompt.
    sampler
        The name of the recommended sampler.
    budget
        The recommended budget, in attempts per prompt; None if even the largest that would be suggested is too small.
    advice
        The recommendation, in one sentence.
    ways
        Ways to draw the texts: that of the call, and its alternatives, the model itself with and without a mask.
    spent
        Attempts and seconds that the plan itself took, over all prompts and ways.
    chosen
        Whether ``sampler`` differs from the one that the call would use by default.
    """

    forecasts: tuple[Forecast, ...]
    sampler: str
    budget: Budget | None
    advice: str
    ways: tuple[Alternative, ...] = ()
    spent: tuple[int, float] = (0, 0.0)
    chosen: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON types; infinite figures are None."""
        budget = None if self.budget is None else self.budget.max_attempts
        return {
            "forecasts": plain(self.forecasts),
            "sampler": self.sampler,
            "max_attempts": budget,
            "advice": self.advice,
            "ways": plain(self.ways),
            "spent": plain(self.spent),
            "chosen": self.chosen,
        }

    def __str__(self) -> str:
        lines = []
        if self.chosen:
            lines.append(
                f"(planned for sampler={self.sampler!r}: pass it to the run as well; otherwise texts are not "
                "distributed as g)"
            )
        for each in self.forecasts:
            worst = [f"{label}: {of}" for label, of in blamed(each.rejections, each.pilot).items()]
            rate = str(each.acceptance) if each.acceptance.value else f"below {each.acceptance.high:.2g} (95 %)"
            rate += " for QRS" if self.sampler == "qrs" else ""
            first = f", the first {each.before:,.0f} for QRS's pilot" if each.before else ""
            lines += [
                f"{counted(each.texts, 'text')} for {_short(each.prompt)}",
                f"  acceptance   {rate}, from {counted(each.pilot, 'attempt')} of the pilot",
                f"  attempts     {bounded(each.attempts)}{first}",
                f"  tokens       {bounded(each.tokens)} drawn",
                f"  seconds      {bounded(each.seconds)}",
                f"  suffices     {_suffices(each)}",
                *_tail_row(each),
            ]
            lines += [f"  rejected by  {part}" for part in worst[:_SHOWN]]
        if self.ways:
            every = ", over all prompts" if len(self.forecasts) > 1 else ""
            lines += [f"ways to draw{every}", *(f"  {way}" for way in self.ways)]
        if any(each.allowed.max_tokens or each.allowed.max_computed_tokens for each in self.forecasts):
            lines.append("(max_tokens counts drawn tokens; a beginning that attempts share is computed once)")
        if self.forecasts:
            alone = "" if len(self.forecasts) == 1 else "; seconds are each prompt's share of the batch"
            lines.append(f"([...]: 95 % intervals of the mean; a single run may take less or more{alone})")
        attempts, seconds = self.spent
        if attempts:
            lines.append(f"(this plan itself took {counted(attempts, 'attempt')} and {seconds:.1f} s)")
        return "\n".join([*lines, f"recommended: {self.advice}"])


def _short(prompt: Any) -> str:
    last = prompt[-1] if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt else None
    content = last.get("content") if isinstance(last, Mapping) else prompt  # a chat is shown by its last message
    text = content if isinstance(content, str) else repr(prompt)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _suffices(forecast: Forecast) -> str:
    if not forecast.acceptance.value:
        return "unknown: no attempt of the pilot gave a text"
    limits = [f"{limit:,} {what}" for name, what in _LIMITS.items() if (limit := getattr(forecast.allowed, name))]
    if not limits:
        return "certain: the budget has no limit"
    if forecast.more:
        return f"unknown: {_too_few(forecast)}"
    sure = forecast.suffices
    chance = "above 0.99" if sure > 0.99 else "below 0.01" if sure < 0.01 else f"{sure:.2g}"
    return f"a budget of {' and '.join(limits)} is enough with probability {chance}"


def _tail_row(forecast: Forecast) -> list[str]:
    """Return the row on the tail of the weights, for QRS; no row for other samplers."""
    k, limit = forecast.pareto_k, forecast.pareto_k_limit
    if k is None or limit is None:
        return []
    heavy = heavy_tail({"pareto_k": k, "pareto_k_limit": limit}) is not None
    unsure = "; the distance to g would be unknown from these attempts" if heavy else ""
    return [f"  Pareto k     {tail_and_limit(k, limit)}{unsure}"]


def _too_few(forecast: Forecast) -> str:
    return (
        f"the pilot's {counted(forecast.pilot, 'attempt')} are worth less than {FEW:.0f} of your model's own texts, "
        "and QRS often accepts a smaller share of more attempts"
    )


def planned(
    outcomes: Sequence[Outcome],
    attempts: Sequence[Sequence[Attempt]],
    *,
    texts: int,
    budgets: Sequence[Budget],
    rows: int,
    kind: str,
    itself: bool,
    weighed: bool,
) -> Plan:
    """Make a plan from a pilot.

    Parameters
    ----------
    outcomes, attempts
        Outcome and attempts of the pilot, per prompt.
    texts
        Texts per prompt in the planned call.
    budgets
        The budgets of the planned call, one per prompt.
    rows
        The most attempts drawn in parallel.
    kind
        The sampler: ``"rejection"``, or ``"qrs"`` for attempts with weights.
    itself, weighed
        Whether attempts are drawn from the model itself, and whether they have weights.
    """
    pilot_attempts, wall = spent(outcomes)
    seconds = wall / pilot_attempts if pilot_attempts else 0.0
    # Attempts run in rounds, and a round takes as long as a whole attempt, even if the batch is not full.
    side_by_side = min(rows, pilot_attempts) / max(1, len(outcomes))
    forecasts = []
    for outcome, drawn, budget in zip(outcomes, attempts, budgets, strict=True):
        accepted, satisfied = texts_of(drawn, kind), satisfied_in(drawn, kind)
        forecasts.append(
            _forecast(
                outcome,
                texts,
                accepted,
                satisfied,
                budget,
                worth=worth_in(drawn, kind),
                tail=tail_in(drawn, kind),
                seconds=seconds,
                side_by_side=side_by_side,
            )
        )
    needed = [each.budget for each in forecasts]
    enough = None if None in needed or not needed else Budget(max_attempts=max(n for n in needed if n is not None))
    advice = _advice(forecasts, kind, enough, budgets, itself=itself, weighed=weighed)
    return Plan(tuple(forecasts), kind, enough, advice, spent=(pilot_attempts, wall))


def spent(outcomes: Sequence[Outcome]) -> tuple[int, float]:
    """Return the attempts and the seconds that outcomes took, in total."""
    usages = [outcome.report.usage for outcome in outcomes]
    return sum(of.attempts + of.surplus_attempts for of in usages), sum(of.seconds for of in usages)


def _forecast(
    outcome: Outcome,
    texts: int,
    accepted: float,
    satisfied: int | None,
    budget: Budget,
    *,
    worth: float | None,
    tail: tuple[Estimate, float] | None,
    seconds: float,
    side_by_side: float,
) -> Forecast:
    """Estimate the cost of a prompt.

    Parameters
    ----------
    outcome
        The outcome of the pilot.
    texts
        The number of texts in the planned call.
    accepted
        How many of the pilot's attempts give a text; the expected number for QRS, which accepts at random.
    satisfied
        For QRS, how many of the pilot's attempts satisfy the constraint.
    budget
        The budget of the planned call.
    worth
        For QRS, the effective sample size of the pilot's attempts; None if none satisfies the constraint.
    tail
        For QRS, the Pareto k of their weights and its limit; None if none satisfies the constraint.
    seconds
        Seconds per attempt when many are drawn in parallel.
    side_by_side
        Attempts per prompt that are drawn in the time of one.
    """
    usage = outcome.report.usage
    pilot, length = usage.attempts, usage.tokens / max(usage.attempts, 1)
    computed = usage.computed_tokens / max(usage.attempts + usage.surplus_attempts, 1)
    counted = acceptance_rate(math.floor(accepted), pilot, stopped_on_acceptance=False)
    rate = counted._replace(value=accepted / pilot) if pilot else counted
    before = attempts_before(satisfied, pilot)
    attempts = Estimate(*(before + texts / share if share else math.inf for share in (rate.value, rate.high, rate.low)))
    more = 0 if worth is None or worth >= FEW else upwards(max(4.0, 2 * FEW / worth) * pilot)
    allowed = min(
        math.inf if budget.max_attempts is None else budget.max_attempts,
        math.inf if budget.max_tokens is None else budget.max_tokens / max(length, 1),
        math.inf if budget.max_computed_tokens is None else budget.max_computed_tokens / max(computed, 1e-9),
        math.inf if budget.max_seconds is None else budget.max_seconds / max(seconds, 1e-9),
        math.inf if budget.deadline is None else budget.deadline / max(seconds, 1e-9),
    )
    return Forecast(
        prompt=outcome.prompt,
        texts=texts,
        pilot=pilot,
        acceptance=rate,
        attempts=attempts,
        tokens=Estimate(*(length * count for count in attempts)),
        seconds=Estimate(*(seconds * max(count, side_by_side * _rounds(count / texts)) for count in attempts)),
        suffices=math.nan if more else reached(texts, allowed, accepted, pilot, satisfied),
        rejections={label: count for label, count in outcome.report.rejections.items() if label != SAMPLER},
        budget=None if more else enough_for(texts, accepted, pilot, satisfied),
        before=before,
        allowed=budget,
        more=more,
        pareto_k=tail and tail[0],
        pareto_k_limit=tail and tail[1],
    )


def _rounds(attempts: float) -> float:
    """Return how many rounds a text takes with so many attempts: rounds double (1, 2, 4, ...) while all fail."""
    return math.log2(1 + attempts)


def _advice(
    forecasts: Sequence[Forecast],
    kind: str,
    enough: Budget | None,
    budgets: Sequence[Budget],
    *,
    itself: bool,
    weighed: bool,
) -> str:
    """Return the recommendation, in one sentence."""
    if not forecasts:
        return "there is no prompt; pass one"
    hint = "hint at it (proposal=Prompt(...)), " if itself else ""
    help_ = f"ask for it in the prompt, {hint}train an adapter, or weaken the constraint"
    hopeless = [number for number, each in enumerate(forecasts, start=1) if not each.acceptance.value]
    if hopeless:
        many = f"{len(hopeless)} of {len(forecasts)} prompts (the first is number {hopeless[0]})"
        which = many if len(hopeless) > 1 else "the prompt" if len(forecasts) == 1 else f"prompt {hopeless[0]}"
        least = min((forecasts[number - 1] for number in hopeless), key=lambda each: each.pilot)
        none = f"{which} had no text in {counted(least.pilot, 'attempt')}"
        if least.pilot < ENOUGH:
            share = f"at most {digits(100 * least.acceptance.high)} % of them give one (95 %)"
            return f"a larger pilot first, pilot={max(_MORE, 4 * least.pilot)}: {none}, so {share}"
        return f"{help_}: {none}"
    if any(each.more for each in forecasts):
        unsure = max(forecasts, key=lambda each: each.more)
        return f"a larger pilot first, pilot={unsure.more}: {_too_few(unsure)}"
    near = "" if weighed or itself else " (texts of the proposal that satisfy it, not g)"
    worst = min(forecasts, key=lambda each: each.suffices)
    if worst.suffices >= SURE:
        return f"sampler={kind!r}{near} and the budget as it is, which suffices"
    if enough is None:
        return f"{help_}: even {MOST:,} attempts may not be enough"
    others = [
        name
        for name in ("max_tokens", "max_computed_tokens", "max_seconds", "deadline")
        if any(getattr(budget, name) for budget in budgets)
    ]
    without = f" without {' and '.join(others)}" if others else ""
    few = worst.acceptance.value * worst.pilot < _FEW
    more = f"; few attempts gave a text, so pilot={4 * worst.pilot} would give a better estimate" if few else ""
    cheaper = "" if not itself or worst.acceptance.value > 0.01 else f"; cheaper: {help_}"
    whose = ""
    if len(forecasts) > 1:
        most = max(range(len(forecasts)), key=lambda i: forecasts[i].budget or 0)
        whose = f" for prompt {most + 1}, which needs most"
    allowed = f"Budget(max_attempts={enough.max_attempts}){without}, enough with probability {SURE}{whose}"
    return f"sampler={kind!r}{near} and {allowed}{more}{cheaper}"
