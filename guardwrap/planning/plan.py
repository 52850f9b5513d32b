"""Plans: what a run will cost, estimated from a small pilot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guardwrap.budget import Budget
from guardwrap.formatting import blamed, counted
from guardwrap.outcomes import Estimate, Outcome, bounded, heavy_tail, plain, tail_and_limit
from guardwrap.planning.advice import Means, advice_of, too_few
from guardwrap.planning.alternatives import Alternative
from guardwrap.planning.forecast import Forecast, forecast_of
from guardwrap.samplers import Attempt
from guardwrap.samplers.protocol import Goal

_LIMITS = {
    "max_attempts": "attempts",
    "max_tokens": "tokens",
    "max_computed_tokens": "computed tokens",
    "max_seconds": "seconds",
    "deadline": "seconds (deadline)",
    "timeout": "seconds (timeout)",
}
"""The limits of a budget, and what each counts."""

_SHOWN = 3
"""How many parts of the constraint are shown with their rejections, at most."""


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
        Ways to draw the texts: that of the call, and its alternatives, the model itself with and without a mask or a
        twist.
    spent
        Attempts and seconds that the plan itself took, over all prompts and ways, with those that a twist learned from.
    chosen
        Whether ``sampler`` differs from the one that the call would use by default.
    left_out
        Ways that were not tried, and why, in words; empty if none was left out.
    """

    forecasts: tuple[Forecast, ...]
    sampler: str
    budget: Budget | None
    advice: str
    ways: tuple[Alternative, ...] = ()
    spent: tuple[int, float] = (0, 0.0)
    chosen: bool = False
    left_out: str = ""

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
            "left_out": self.left_out,
        }

    def __str__(self) -> str:
        lines = [f"recommended: {self.advice}"]
        if self.chosen:
            lines.append(
                f"(planned for sampler={self.sampler!r}: pass it to the run as well; otherwise texts are not "
                "distributed as g)"
            )
        for each, heading in zip(self.forecasts, _headings(self.forecasts), strict=True):
            worst = [f"{label}: {of}" for label, of in blamed(each.rejections, each.pilot).items()]
            rate = bounded(each.acceptance) if each.acceptance.value else f"below {each.acceptance.high:.2g} (95 %)"
            rate += " for QRS" if self.sampler == "qrs" else ""
            first = f", the first {each.before:,.0f} for QRS's pilot" if each.before else ""
            basis = each.basis or f"{counted(each.pilot, 'attempt')} of the pilot"
            lines += [
                f"{counted(each.texts, 'text')} for {heading}",
                f"  acceptance   {rate}, from {basis}",
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
        if self.left_out:
            lines.append(f"({self.left_out})")
        return "\n".join(lines)


def _headings(forecasts: Sequence[Forecast]) -> list[str]:
    """Return the place of each prompt, if it has one, and its beginning. Prompts that look alike are numbered."""
    shown = [_short(each.prompt) for each in forecasts]
    alike = {text for text in shown if shown.count(text) > 1}
    places = [
        each.place or (f"prompt {number}" if text in alike else "")
        for number, (each, text) in enumerate(zip(forecasts, shown, strict=True), 1)
    ]
    return [f"{place}: {text}" if place else text for place, text in zip(places, shown, strict=True)]


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
        return f"unknown: {too_few(forecast)}"
    sure = forecast.suffices
    if math.isnan(sure):
        return "unknown: the acceptance rate is not known well enough"
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
    goal: Goal = Goal(),  # noqa: B008
    rates: Sequence[Estimate | None] | None = None,
    means: Means = Means(),  # noqa: B008
) -> Plan:
    """Make a plan from a pilot.

    ``rates``: for each prompt, a better estimate of its acceptance rate than the pilot's own; None for none.
    """
    pilot_attempts, wall = spent(outcomes)
    seconds = wall / pilot_attempts if pilot_attempts else 0.0
    # Attempts run in rounds, and a round takes as long as a whole attempt, even if the batch is not full.
    side_by_side = min(rows, pilot_attempts) / max(1, len(outcomes))
    known = [None] * len(outcomes) if rates is None else rates
    forecasts = [
        forecast_of(
            outcome,
            drawn,
            kind=kind,
            goal=goal,
            texts=texts,
            budget=budget,
            rate=rate,
            seconds=seconds,
            side_by_side=side_by_side,
        )
        for outcome, drawn, budget, rate in zip(outcomes, attempts, budgets, known, strict=True)
    ]
    needed = [each.budget for each in forecasts]
    enough = None if None in needed or not needed else Budget(max_attempts=max(n for n in needed if n is not None))
    advice = advice_of(forecasts, kind, enough, budgets, itself=itself, weighed=weighed, means=means)
    return Plan(tuple(forecasts), kind, enough, advice, spent=(pilot_attempts, wall))


def spent(outcomes: Sequence[Outcome]) -> tuple[int, float]:
    """Return the attempts and the seconds that outcomes took, in total."""
    usages = [outcome.report.usage for outcome in outcomes]
    return sum(of.attempts + of.surplus_attempts for of in usages), sum(of.seconds for of in usages)
