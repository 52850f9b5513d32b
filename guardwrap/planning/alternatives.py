"""Ways to draw the texts of a call, as a pilot saw them: what each costs, and which is the cheapest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from guardwrap.budget import Budget
from guardwrap.formatting import counted, digits, upwards
from guardwrap.metrics import acceptance_rate, effective_sample_size, log_beta_for_tvd, qrs_acceptance, tvd_gold_guarded
from guardwrap.outcomes import Outcome
from guardwrap.samplers import Attempt
from guardwrap.samplers.qrs import NEAR, PILOT

__all__ = [
    "ENOUGH",
    "Alternative",
    "alternative_of",
    "attempts_before",
    "cheapest",
    "sampler_for",
    "satisfied_in",
    "texts_of",
    "worth_in",
]

ENOUGH = 200
"""Attempts of a pilot for each prompt from which it says something that none of them gave a text."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to draw the texts, as the pilot saw it.

    Parameters
    ----------
    source
        What attempts are drawn from, in words.
    sampler
        Which sampler brings its texts near g, in words.
    acceptance
        Share of attempts that give a text with it, over all prompts.
    tokens
        That the model is run for, a text, with the attempts that QRS draws before its first text; infinite where a
        prompt had no text. What was computed for one attempt is known to the next, so a longer run costs no more than
        this, and often less.
    attempts
        That the prompt takes which takes most, with those; infinite where one had no text.
    computed
        Tokens that the model is run for, for all texts of the prompt that takes most.
    before
        Of ``attempts`` those that QRS draws before its first text.
    without
        Prompts that had no text.
    least
        Where a prompt had no text: tokens a text at the least, by the upper end of the 95 % interval of its acceptance
        rate.
    others
        Tokens a text of the prompts that had one; infinite where none had.
    pilot
        Attempts of the pilot for each prompt, at the least.
    """

    source: str
    sampler: str
    acceptance: float
    tokens: float
    attempts: float
    computed: float
    before: float = 0.0
    without: int = 0
    least: float = 0.0
    others: float = math.inf
    pilot: int = 0

    def __str__(self) -> str:
        begin, share = f"{self.source}, {self.sampler}", f"{digits(100 * self.acceptance)} % of attempts give one"
        if not self.without:
            pilot = f"its pilot, {self.before:,.0f} attempts for a prompt, gives none; then " if self.before else ""
            return f"{begin}: {digits(self.tokens)} computed tokens a text; {pilot}{share}"
        some = math.isfinite(self.others)
        whose = f" for {counted(self.without, 'prompt')}, {digits(self.others)} for the others" if some else ""
        none = f"none in {counted(self.pilot, 'attempt')}{whose}"
        return f"{begin}: at least {digits(self.least)} computed tokens a text ({none})"


def alternative_of(
    outcomes: Sequence[Outcome], attempts: Sequence[Sequence[Attempt]], *, kind: str, texts: int
) -> Alternative:
    """Say what a pilot has seen of one way to draw texts.

    Parameters
    ----------
    outcomes, attempts
        Of the pilot, one for each prompt.
    kind
        The sampler: ``"rejection"``, or ``"qrs"`` for attempts with weights.
    texts
        How many will be asked for, for each prompt.
    """
    given = [texts_of(drawn, kind) for drawn in attempts]
    each = [_prompt(*one, kind, texts) for one in zip(outcomes, attempts, given, strict=True)]
    needed, before, _, _ = max(each)
    some = [cost for *_, cost, _ in each if math.isfinite(cost)]
    without = len(each) - len(some)
    least = [bound for *_, bound in each]
    tokens = sum(some) / len(each) / texts if not without else math.inf
    return Alternative(
        outcomes[0].report.proposal or "the model itself",
        kind,
        sum(given) / max(1, sum(map(len, attempts))),
        tokens,
        needed,
        max(cost for *_, cost, _ in each),
        before,
        without,
        sum(least) / len(least) / texts,
        sum(some) / len(some) / texts if some else math.inf,
        min(map(len, attempts)),
    )


def _prompt(
    outcome: Outcome, drawn: Sequence[Attempt], given: float, kind: str, texts: int
) -> tuple[float, float, float, float]:
    """Return a prompt's attempts, those of them before the first text, the tokens computed, and these at the least."""
    count = len(drawn)
    length = outcome.report.usage.computed_tokens / max(count, 1)
    if not given:
        most = acceptance_rate(0, count, stopped_on_acceptance=False).high
        return math.inf, 0.0, math.inf, length * texts / most
    before = attempts_before(satisfied_in(drawn, kind), count)
    needed = before + texts * count / given
    return needed, before, length * needed, length * needed


def cheapest(ways: Sequence[Alternative], budgets: Sequence[Budget]) -> str | None:
    """Recommend the cheapest way, if it is surely cheaper than the first, by a fifth at least.

    Where a prompt had no text the first may be far cheaper than a small pilot shows: it is compared by what it costs at
    the least.
    """
    first, best = ways[0], min(ways, key=lambda way: way.tokens)
    least = first.least if first.without else first.tokens
    surely, in_vain = best.tokens < 0.8 * least, first.without and first.pilot >= ENOUGH
    if math.isinf(best.tokens) or not (surely or in_vain):
        return None
    much = f"takes {'at least ' if first.without else ''}{digits(least / best.tokens)} times fewer tokens"
    if not surely:
        much = f"gives texts where this gave none in {counted(first.pilot, 'attempt')}"
    near = ", approximately g" if best.sampler == "qrs" else ""
    needed = {"max_attempts": 2 * best.attempts, "max_computed_tokens": 2 * best.computed}
    limits = [
        f"{name}={upwards(most)}"
        for name, most in needed.items()
        if any((getattr(budget, name) or most) < most for budget in budgets)
    ]
    allowed = f", with Budget({', '.join(limits)}), twice what it is expected to take" if limits else ""
    return f"draw from {best.source} with sampler={best.sampler!r}{near}, which {much}{allowed}"


def sampler_for(attempts: Sequence[Sequence[Attempt]]) -> str:
    """Choose rejection where what the proposal gives is surely near g, else QRS."""
    for drawn in attempts:
        weights = _weights(drawn)
        if sum(weight > -math.inf for weight in weights) < 2 or tvd_gold_guarded(weights).high > NEAR:
            return "qrs"
    return "rejection"


def texts_of(drawn: Sequence[Attempt], kind: str) -> float:
    """Return how many texts a pilot's attempts would have given, or are expected to give."""
    accepted = sum(attempt.satisfied for attempt in drawn)
    if kind == "qrs" and accepted > 1:
        weights = _weights(drawn)
        return qrs_acceptance(weights, log_beta_for_tvd(weights, NEAR)).value * len(drawn)
    return accepted


def satisfied_in(drawn: Sequence[Attempt], kind: str) -> int | None:
    """Return how many attempts satisfy the constraint, which the pilot of QRS counts; None for another sampler."""
    return sum(attempt.satisfied for attempt in drawn) if kind == "qrs" else None


def worth_in(drawn: Sequence[Attempt], kind: str) -> float | None:
    """Return how many draws of g a pilot's attempts are worth, for QRS; None for another sampler."""
    if kind != "qrs" or not any(attempt.satisfied for attempt in drawn):
        return None
    return effective_sample_size(_weights(drawn)).value


def attempts_before(satisfied: int | None, attempts: int) -> float:
    """Return how many attempts QRS draws before its first text: until its own pilot is complete."""
    return PILOT * attempts / satisfied if satisfied else 0.0


def _weights(drawn: Sequence[Attempt]) -> list[float]:
    return [attempt.log_weight for attempt in drawn if attempt.log_weight is not None]
