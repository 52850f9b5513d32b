"""Plans: what a run will cost, estimated from a small pilot, and a recommendation in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from guardwrap.budget import Budget
from guardwrap.calls.estimates import ENOUGH, MOST, SURE, Alternative, Forecast, cheapest
from guardwrap.outcomes import FEW, Origin, bounded, heavy_tail, plain, tail_and_limit
from guardwrap.support.formatting import blamed, counted, digits, one_of, upwards

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

_FEW = 10
"""With fewer texts in the pilot, a plan may be wrong by a third or more."""

_MORE = 256
"""The least number of attempts to suggest for a pilot after a smaller one had no text."""


class Means(NamedTuple):
    """What a call draws from, and what it can change so that more texts pass: its prompt, a hint, an adapter."""

    prompt: bool = True
    hint: bool = True  # as proposal, if attempts are drawn from the model itself
    adapter: bool = True
    itself: bool = True  # whether attempts are drawn from the model itself
    weighed: bool = False  # whether attempts have weights


class Unplanned(NamedTuple):
    """Why there is no forecast: the plan's seconds were over before some of its prompts had an attempt."""

    seconds: float
    without: int
    prompts: int


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
    ways
        Ways to draw the texts: that of the call, and its alternatives, the model itself with and without a mask or a
        twist.
    spent
        Attempts and seconds that the plan itself took, over all prompts and ways, with those that a twist learned from.
    chosen
        Whether ``sampler`` differs from the one that the call would use by default.
    left_out
        Ways that were not tried, and why, in words; empty if none was left out.
    means
        What the call draws from, and what it can change.
    unplanned
        Why there is no forecast; None if there is one, or no prompt.
    """

    forecasts: tuple[Forecast, ...]
    sampler: str
    budget: Budget | None
    ways: tuple[Alternative, ...] = ()
    spent: tuple[int, float] = (0, 0.0)
    chosen: bool = False
    left_out: str = ""
    means: Means = field(default_factory=Means)
    unplanned: Unplanned | None = None

    @property
    def advice(self) -> str:
        """The recommendation, in one sentence."""
        return self.advised(lambda source: " with")

    def advised(self, switch: Callable[[Origin], str]) -> str:
        """Return the recommendation. ``switch`` says how to draw from a source, before the name of the sampler."""
        if self.unplanned is not None:
            seconds, without, prompts = self.unplanned
            whose = "" if prompts == 1 else f" for {counted(without, 'prompt')} of {prompts}"
            more = f"plan(max_seconds={upwards(2 * seconds)})"
            return f"give the plan more time, {more}: it was over before the first attempt was complete{whose}"
        if not self.forecasts:
            return "there is no prompt; pass one"
        better, is_sure = cheapest(self.ways)
        if better is not None and is_sure:
            return _of_another_way(self, better, switch)
        remark = ""
        if better is not None:
            tried = counted(min(self.ways[0].pilot, better.pilot), "attempt")
            remark = f"; {better.source} with {better.sampler} may be cheaper, which {tried} cannot tell"
        return _larger_pilot(self) or f"{_of_the_run(self)}{remark}"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON types; infinite figures are None."""
        budget = None if self.budget is None else self.budget.max_attempts
        return {
            "forecasts": plain(self.forecasts),
            "sampler": self.sampler,
            "max_attempts": budget,
            "advice": self.advice,
            "ways": [way.to_dict() for way in self.ways],
            "spent": plain(self.spent),
            "chosen": self.chosen,
            "left_out": self.left_out,
        }

    def __str__(self) -> str:
        return self.in_words(self.advice)

    def in_words(self, advice: str) -> str:
        """Return the plan as text, with its recommendation."""
        lines = [f"recommended: {advice}"]
        if self.chosen:
            lines.append(
                f"(planned for sampler={self.sampler!r}: pass it to the run as well; otherwise texts are not "
                "distributed as g)"
            )
        for each, heading in zip(self.forecasts, _headings(self.forecasts), strict=True):
            worst = [f"{label}: {of}" for label, of in blamed(each.rejections, each.pilot).items()]
            rate = bounded(each.acceptance) if each.acceptance.value else f"below {each.acceptance.high:.2g} (95 %)"
            rate += " for QRS" if self.sampler == "qrs" else ""
            whose = "QRS's" if self.sampler == "qrs" else "the shares'"
            first = f", the first {each.before:,.0f} for {whose} pilot" if each.before else ""
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
        return f"unknown: {_too_few(forecast)}"
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


def _of_another_way(plan: Plan, best: Alternative, switch: Callable[[Origin], str]) -> str:
    """Recommend a way that is cheaper than the call's own."""
    first = plan.ways[0]
    least = first.tokens.low if first.without else first.tokens.value
    much = f"takes {'at least ' if first.without else ''}{digits(least / best.tokens.value)} times fewer tokens"
    near = ", approximately g" if best.sampler == "qrs" else ""
    limits = [
        f"{name}={upwards(most)}"
        for name, most in (("max_attempts", 2 * best.attempts), ("max_computed_tokens", 2 * best.computed))
        if any((getattr(each.allowed, name) or most) < most for each in plan.forecasts)
    ]
    allowed = f", with Budget({', '.join(limits)}), twice its expected cost" if limits else ""
    how = f"{switch(best.drawn_from)} sampler={best.sampler!r}"
    return f"draw from {best.source}{how}{near}, which {much}{allowed}"


def _larger_pilot(plan: Plan) -> str | None:
    """Recommend a larger pilot, if this one cannot tell what a run takes; None if it can."""
    forecasts, none = plan.forecasts, _without_text(plan.forecasts)
    at_once = "; or ask for it at once, with a hint (proposal=Prompt(...))" if plan.means.hint else ""
    if none:
        least = min((forecasts[number] for number in none), key=lambda each: each.pilot)
        if least.pilot >= ENOUGH:
            return None
        share = f"at most {digits(100 * least.acceptance.high)} % of them give one (95 %)"
        pilot, why = max(_MORE, 4 * least.pilot), f"{_in_words(none, forecasts)}, so {share}"
    elif any(each.more for each in forecasts):
        unsure = max(forecasts, key=lambda each: each.more)
        return f"a larger pilot first, pilot={unsure.more}: {_too_few(unsure)}"
    elif vague := [number for number, each in enumerate(forecasts) if math.isnan(each.suffices)]:
        which = f" of {_named(forecasts, vague[0])}" if len(forecasts) > 1 else ""
        pilot = max(_MORE, 4 * max(each.pilot for each in forecasts))
        why = f"the acceptance rate{which} is not known to within a factor of fifty"
    else:
        return None
    return f"a larger pilot first, pilot={pilot}: {why}{at_once}"


def _of_the_run(plan: Plan) -> str:
    """Recommend a sampler and a budget, or what makes more texts pass."""
    forecasts, means, none = plan.forecasts, plan.means, _without_text(plan.forecasts)
    known = {
        "ask for it in the prompt": means.prompt,
        "hint at it (proposal=Prompt(...))": means.hint,
        "train an adapter": means.adapter,
    }
    help_ = one_of([*(words for words, can in known.items() if can), "weaken the constraint"])
    if none:
        return f"{help_}: {_in_words(none, forecasts)}"
    near = "" if means.weighed or means.itself else " (texts of the proposal that satisfy it, not g)"
    worst = min(forecasts, key=lambda each: each.suffices)
    if worst.suffices >= SURE:
        return f"sampler={plan.sampler!r}{near} and the budget as it is, which suffices"
    if plan.budget is None:
        return f"{help_}: even {MOST:,} attempts may not be enough"
    others = [name for name in list(_LIMITS)[1:] if any(getattr(each.allowed, name) for each in forecasts)]
    without = f" without {' and '.join(others)}" if others else ""
    few = worst.acceptance.value * worst.pilot < _FEW and not worst.basis
    more = f"; few attempts gave a text, so pilot={4 * worst.pilot} would give a better estimate" if few else ""
    cheaper = "" if not means.itself or worst.acceptance.value > 0.01 else f"; cheaper: {help_}"
    whose = ""
    if len(forecasts) > 1:
        most = max(range(len(forecasts)), key=lambda i: forecasts[i].budget or 0)
        whose = f" for {_named(forecasts, most)}, which needs most"
    allowed = f"Budget(max_attempts={plan.budget.max_attempts}){without}, enough with probability {SURE}{whose}"
    return f"sampler={plan.sampler!r}{near} and {allowed}{more}{cheaper}"


def _without_text(forecasts: Sequence[Forecast]) -> list[int]:
    return [number for number, each in enumerate(forecasts) if not each.acceptance.value]


def _in_words(none: Sequence[int], forecasts: Sequence[Forecast]) -> str:
    """Say which prompts had no text."""
    which = "the prompt" if len(forecasts) == 1 else _named(forecasts, none[0])
    if len(none) > 1:
        first = forecasts[none[0]].place or f"number {none[0] + 1}"
        which = f"{len(none)} of {len(forecasts)} prompts (the first is {first})"
    return f"{which} had no text in {counted(min(forecasts[number].pilot for number in none), 'attempt')}"


def _named(forecasts: Sequence[Forecast], number: int) -> str:
    """Return the place of a prompt in the input, or its number."""
    return forecasts[number].place or f"prompt {number + 1}"


def _too_few(forecast: Forecast) -> str:
    """Say that a pilot cannot tell what QRS costs, and why."""
    return (
        f"the pilot's {counted(forecast.pilot, 'attempt')} are worth less than {FEW:.0f} of your model's own texts, "
        "and QRS often accepts a smaller share of more attempts"
    )
