"""Alternative ways to draw the texts of a call: the cost of each, estimated from a pilot, and the cheapest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from guardwrap.budget import Budget
from guardwrap.formatting import counted, digits, upwards
from guardwrap.metrics import (
    acceptance_rate,
    effective_sample_size,
    log_beta_for_tvd,
    pareto_k,
    pareto_k_limit,
    qrs_acceptance,
    tvd_gold_guarded,
)
from guardwrap.outcomes import Estimate, Outcome
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
    "tail_in",
    "texts_of",
    "worth_in",
]

ENOUGH = 200
"""Attempts per prompt after which a pilot without a text is evidence that texts are rare."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to draw the texts, and its cost as estimated from the pilot.

    Parameters
    ----------
    source
        A description of what attempts are drawn from.
    sampler
        The name of the sampler that makes the texts follow g or come close to it.
    acceptance
        Share of attempts that give a text with this sampler, over all prompts.
    tokens
        Computed tokens per text, with those of the attempts that QRS draws before its first text; infinite if a prompt
        had no text. Attempts reuse what was computed for earlier ones, so a longer run costs at most this.
    attempts
        Attempts for the most expensive prompt, with those that QRS draws before its first text; infinite if a prompt
        had no text.
    computed
        Computed tokens for all texts of the most expensive prompt.
    before
        The part of ``attempts`` that QRS draws before its first text.
    without
        Number of prompts that had no text.
    least
        A lower bound of ``tokens`` for use if a prompt had no text, from the upper end of the 95 % interval of its
        acceptance rate.
    others
        Computed tokens per text of the prompts that had one; infinite if none had.
    pilot
        The smallest number of attempts that the pilot drew for a prompt.
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
            pilot = f"its pilot, {self.before:,.0f} attempts per prompt, gives no text; then " if self.before else ""
            return f"{begin}: {digits(self.tokens)} computed tokens per text; {pilot}{share}"
        some = math.isfinite(self.others)
        whose = f" for {counted(self.without, 'prompt')}, {digits(self.others)} for the others" if some else ""
        none = f"no text in {counted(self.pilot, 'attempt')}{whose}"
        return f"{begin}: at least {digits(self.least)} computed tokens per text ({none})"


def alternative_of(
    outcomes: Sequence[Outcome], attempts: Sequence[Sequence[Attempt]], *, kind: str, texts: int
) -> Alternative:
    """Estimate the cost of one way to draw texts from a pilot of it.

    Parameters
    ----------
    outcomes, attempts
        Outcome and attempts of the pilot, per prompt.
    kind
        The sampler: ``"rejection"``, or ``"qrs"`` for attempts with weights.
    texts
        Texts per prompt in the planned call.
    """
    accepted = [texts_of(drawn, kind) for drawn in attempts]
    each = [_prompt(*one, kind, texts) for one in zip(outcomes, attempts, accepted, strict=True)]
    needed, before, _, _ = max(each)
    some = [cost for *_, cost, _ in each if math.isfinite(cost)]
    without = len(each) - len(some)
    least = [bound for *_, bound in each]
    tokens = sum(some) / len(each) / texts if not without else math.inf
    return Alternative(
        outcomes[0].report.proposal or "the model itself",
        kind,
        sum(accepted) / max(1, sum(map(len, attempts))),
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
    outcome: Outcome, drawn: Sequence[Attempt], accepted: float, kind: str, texts: int
) -> tuple[float, float, float, float]:
    """Return a prompt's expected attempts, those before the first text, its computed tokens, and their lower bound."""
    count = len(drawn)
    length = outcome.report.usage.computed_tokens / max(count, 1)
    if not accepted:
        most = acceptance_rate(0, count, stopped_on_acceptance=False).high
        return math.inf, 0.0, math.inf, length * texts / most
    before = attempts_before(satisfied_in(drawn, kind), count)
    needed = before + texts * count / accepted
    return needed, before, length * needed, length * needed


def cheapest(ways: Sequence[Alternative], budgets: Sequence[Budget]) -> str | None:
    """Recommend the cheapest way, if it saves at least a fifth of the first one's cost; None otherwise.

    If a prompt had no text, the first way may be far cheaper than a small pilot suggests. Its lower bound is compared
    then.
    """
    first, best = ways[0], min(ways, key=lambda way: way.tokens)
    least = first.least if first.without else first.tokens
    surely, in_vain = best.tokens < 0.8 * least, first.without and first.pilot >= ENOUGH
    if math.isinf(best.tokens) or not (surely or in_vain):
        return None
    much = f"takes {'at least ' if first.without else ''}{digits(least / best.tokens)} times fewer tokens"
    if not surely:
        much = f"gives texts, while this gave none in {counted(first.pilot, 'attempt')}"
    near = ", approximately g" if best.sampler == "qrs" else ""
    needed = {"max_attempts": 2 * best.attempts, "max_computed_tokens": 2 * best.computed}
    limits = [
        f"{name}={upwards(most)}"
        for name, most in needed.items()
        if any((getattr(budget, name) or most) < most for budget in budgets)
    ]
    allowed = f", with Budget({', '.join(limits)}), twice its expected cost" if limits else ""
    return f"draw from {best.source} with sampler={best.sampler!r}{near}, which {much}{allowed}"


def sampler_for(attempts: Sequence[Sequence[Attempt]]) -> str:
    """Choose rejection if the texts of the proposal are surely close to g, otherwise QRS."""
    for drawn in attempts:
        weights = _weights(drawn)
        if sum(weight > -math.inf for weight in weights) < 2 or tvd_gold_guarded(weights).high > NEAR:
            return "qrs"
    return "rejection"


def texts_of(drawn: Sequence[Attempt], kind: str) -> float:
    """Return how many texts a pilot's attempts give with a sampler; the expected number for QRS."""
    accepted = sum(attempt.satisfied for attempt in drawn)
    if kind == "qrs" and accepted > 1:
        weights = _weights(drawn)
        return qrs_acceptance(weights, log_beta_for_tvd(weights, NEAR)).value * len(drawn)
    return accepted


def satisfied_in(drawn: Sequence[Attempt], kind: str) -> int | None:
    """Return how many attempts satisfy the constraint, for QRS, whose own pilot counts them; None for others."""
    return sum(attempt.satisfied for attempt in drawn) if kind == "qrs" else None


def worth_in(drawn: Sequence[Attempt], kind: str) -> float | None:
    """Return the effective sample size of a pilot's attempts as draws from g, for QRS; None for other samplers."""
    if kind != "qrs" or not any(attempt.satisfied for attempt in drawn):
        return None
    return effective_sample_size(_weights(drawn)).value


def tail_in(drawn: Sequence[Attempt], kind: str) -> tuple[Estimate, float] | None:
    """Return the Pareto k of a pilot's weights and its limit, for QRS; None for other samplers or without weights."""
    weights = _weights(drawn)
    passing = sum(weight > -math.inf for weight in weights)
    return (pareto_k(weights), pareto_k_limit(passing)) if kind == "qrs" and passing else None


def attempts_before(satisfied: int | None, attempts: int) -> float:
    """Return how many attempts QRS draws before its first text, which are its own pilot."""
    return PILOT * attempts / satisfied if satisfied else 0.0


def _weights(drawn: Sequence[Attempt]) -> list[float]:
    return [attempt.log_weight for attempt in drawn if attempt.log_weight is not None]
