"""Ways to draw the texts of a call, as a pilot saw them: what each costs, and which is the cheapest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from guardwrap.draws import Budget, Outcome
from guardwrap.metrics import log_beta_for_tvd, qrs_acceptance, tvd_gold_guarded
from guardwrap.samplers import Attempt
from guardwrap.samplers.qrs import NEAR, PILOT
from guardwrap.words import counted, digits, upwards

__all__ = ["Way", "attempts_before", "cheapest", "sampler_for", "satisfied_in", "texts_of", "way_of"]


@dataclass(frozen=True, slots=True)
class Way:
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
    """

    source: str
    sampler: str
    acceptance: float
    tokens: float
    attempts: float
    computed: float
    before: float = 0.0
    without: int = 0

    def __str__(self) -> str:
        begin = f"{self.source}, {self.sampler}"
        if self.without:
            none = "no text in the pilot" if not self.acceptance else f"none for {counted(self.without, 'prompt')}"
            return f"{begin}: {none}"
        cost = f"{digits(self.tokens)} tokens computed a text; {self.acceptance:.3g} of attempts give one"
        if not self.before:
            return f"{begin}: {cost}"
        pilot = f"after {self.sampler}'s pilot, {self.before:,.0f} of {self.attempts:,.0f} attempts for a prompt"
        return f"{begin}: {cost}, {pilot}"


def way_of(outcomes: Sequence[Outcome], attempts: Sequence[Sequence[Attempt]], *, kind: str, texts: int) -> Way:
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
    needed, before, _ = max(each)
    return Way(
        outcomes[0].report.proposal or "the model itself",
        kind,
        sum(given) / max(1, sum(map(len, attempts))),
        sum(cost for *_, cost in each) / len(each) / texts,
        needed,
        max(cost for *_, cost in each),
        before,
        sum(math.isinf(needed) for needed, *_ in each),
    )


def _prompt(
    outcome: Outcome, drawn: Sequence[Attempt], given: float, kind: str, texts: int
) -> tuple[float, float, float]:
    """Return a prompt's attempts, those of them before the first text, and the tokens that the model is run for."""
    if not given:
        return math.inf, 0.0, math.inf
    count = len(drawn)
    before = attempts_before(satisfied_in(drawn, kind), count)
    needed = before + texts * count / given
    return needed, before, outcome.report.usage.computed_tokens / count * needed


def cheapest(ways: Sequence[Way], budgets: Sequence[Budget]) -> str | None:
    """Recommend the cheapest way, if it is cheaper than the first by a fifth at least."""
    best = min(ways, key=lambda way: way.tokens)
    if not best.tokens < 0.8 * ways[0].tokens:
        return None
    ratio = ways[0].tokens / best.tokens
    much = f"takes {digits(ratio)} times fewer tokens" if math.isfinite(ratio) else "gives texts where this gave none"
    near = ", approximately g" if best.sampler == "qrs" else ""
    needed = {"max_attempts": 2 * best.attempts, "max_computed_tokens": 2 * best.computed}
    limits = [
        f"{name}={upwards(least)}"
        for name, least in needed.items()
        if any((getattr(budget, name) or least) < least for budget in budgets)
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


def attempts_before(satisfied: int | None, attempts: int) -> float:
    """Return how many attempts QRS draws before its first text: until its own pilot is complete."""
    return PILOT * attempts / satisfied if satisfied else 0.0


def _weights(drawn: Sequence[Attempt]) -> list[float]:
    return [attempt.log_weight for attempt in drawn if attempt.log_weight is not None]
