"""The recommendation of a plan, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from guardwrap.budget import Budget
from guardwrap.formatting import counted, digits, one_of
from guardwrap.outcomes import FEW
from guardwrap.planning.alternatives import ENOUGH
from guardwrap.planning.forecast import Forecast
from guardwrap.planning.probability import MOST, SURE

_FEW = 10
"""With fewer texts in the pilot, a plan may be wrong by a third or more."""

_MORE = 256
"""The least number of attempts to suggest for a pilot after a smaller one had no text."""


class Means(NamedTuple):
    """What a call can change so that more texts pass: its prompt, a hint as proposal, an adapter."""

    prompt: bool = True
    hint: bool = True
    adapter: bool = True


def too_few(forecast: Forecast) -> str:
    """Say that a pilot cannot tell what QRS costs, and why."""
    return (
        f"the pilot's {counted(forecast.pilot, 'attempt')} are worth less than {FEW:.0f} of your model's own texts, "
        "and QRS often accepts a smaller share of more attempts"
    )


def advice_of(
    forecasts: Sequence[Forecast],
    kind: str,
    enough: Budget | None,
    budgets: Sequence[Budget],
    *,
    itself: bool,
    weighed: bool,
    means: Means = Means(),  # noqa: B008
) -> str:
    """Return the recommendation, in one sentence."""
    if not forecasts:
        return "there is no prompt; pass one"
    hints = itself and means.hint
    at_once = "; or ask for it at once, with a hint (proposal=Prompt(...))" if hints else ""
    known = {
        "ask for it in the prompt": means.prompt,
        "hint at it (proposal=Prompt(...))": hints,
        "train an adapter": means.adapter,
    }
    help_ = one_of([*(words for words, can in known.items() if can), "weaken the constraint"])
    hopeless = [number for number, each in enumerate(forecasts, start=1) if not each.acceptance.value]
    if hopeless:
        many = f"{len(hopeless)} of {len(forecasts)} prompts (the first is number {hopeless[0]})"
        which = many if len(hopeless) > 1 else "the prompt" if len(forecasts) == 1 else f"prompt {hopeless[0]}"
        least = min((forecasts[number - 1] for number in hopeless), key=lambda each: each.pilot)
        none = f"{which} had no text in {counted(least.pilot, 'attempt')}"
        if least.pilot < ENOUGH:
            share = f"at most {digits(100 * least.acceptance.high)} % of them give one (95 %)"
            return f"a larger pilot first, pilot={max(_MORE, 4 * least.pilot)}: {none}, so {share}{at_once}"
        return f"{help_}: {none}"
    if any(each.more for each in forecasts):
        unsure = max(forecasts, key=lambda each: each.more)
        return f"a larger pilot first, pilot={unsure.more}: {too_few(unsure)}"
    vague = [number for number, each in enumerate(forecasts, start=1) if math.isnan(each.suffices)]
    if vague:
        larger = max(_MORE, 4 * max(each.pilot for each in forecasts))
        which = f" of prompt {vague[0]}" if len(forecasts) > 1 else ""
        vaguely = f"the acceptance rate{which} is not known to within a factor of fifty"
        return f"a larger pilot first, pilot={larger}: {vaguely}{at_once}"
    near = "" if weighed or itself else " (texts of the proposal that satisfy it, not g)"
    worst = min(forecasts, key=lambda each: each.suffices)
    if worst.suffices >= SURE:
        return f"sampler={kind!r}{near} and the budget as it is, which suffices"
    if enough is None:
        return f"{help_}: even {MOST:,} attempts may not be enough"
    others = [
        name
        for name in ("max_tokens", "max_computed_tokens", "max_seconds", "deadline", "timeout")
        if any(getattr(budget, name) for budget in budgets)
    ]
    without = f" without {' and '.join(others)}" if others else ""
    few = worst.acceptance.value * worst.pilot < _FEW and not worst.basis
    more = f"; few attempts gave a text, so pilot={4 * worst.pilot} would give a better estimate" if few else ""
    cheaper = "" if not itself or worst.acceptance.value > 0.01 else f"; cheaper: {help_}"
    whose = ""
    if len(forecasts) > 1:
        most = max(range(len(forecasts)), key=lambda i: forecasts[i].budget or 0)
        whose = f" for prompt {most + 1}, which needs most"
    allowed = f"Budget(max_attempts={enough.max_attempts}){without}, enough with probability {SURE}{whose}"
    return f"sampler={kind!r}{near} and {allowed}{more}{cheaper}"
