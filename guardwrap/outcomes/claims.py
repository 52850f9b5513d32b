"""What pages of results share: claims with verdicts from 95 % intervals, and the chart of cost against distance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from guardwrap.outcomes import Estimate
from guardwrap.outcomes.blocks import Points, Spot, Spots, Table, in_words


class Answer(StrEnum):
    """Whether a claim holds, from the best answer to the worst; shown as it is."""

    HOLDS = "holds"
    UNDECIDED = "undecided"
    FAILS = "does not hold"


_SIGNS = {Answer.HOLDS: "✓", Answer.FAILS: "✗", Answer.UNDECIDED: "?"}
_SEVERITY = tuple(Answer)


@dataclass(frozen=True)
class Claim:
    """A sentence and whether it holds."""

    sentence: str  # the claim
    answer: Answer  # whether it holds, from ``above`` or ``below``
    figure: Estimate  # the estimate that decides it
    # the condition on the figure's interval under which the claim holds, and, if an undecided claim seems to meet it,
    # the reason
    rule: str


def above(figure: Estimate, limit: float) -> Answer:
    """Return whether a figure is above a limit with its whole interval."""
    if figure.low > limit:
        return Answer.HOLDS
    return Answer.FAILS if figure.high <= limit else Answer.UNDECIDED  # NaN is undecided


def below(figure: Estimate, limit: float) -> Answer:
    """Return whether a figure is at most a limit with its whole interval."""
    if figure.high <= limit:
        return Answer.HOLDS
    return Answer.FAILS if figure.low > limit else Answer.UNDECIDED


def worst(answers: Iterable[Answer]) -> Answer:
    """Return the answer for all claims together: HOLDS only if each holds, FAILS if any does."""
    return max(answers, key=_SEVERITY.index)


def cheaper(name: str, saved: Estimate, answer: Answer, every: str = "", rule: str = "above 1") -> Claim:
    """Return the claim that a way to draw costs fewer attempts than the model itself."""
    fewer = f"{in_words(saved.value)} times fewer" if 1 < saved.value < math.inf else "fewer"
    return Claim(f"{name} costs {fewer} attempts than the model{every}", answer, saved, rule)


def table_of(claims: Sequence[Claim]) -> Table:
    """Return claims as a table."""
    rows = [(claim.sentence, f"{_SIGNS[claim.answer]} {claim.answer}", claim.figure, claim.rule) for claim in claims]
    return Table(
        "Claims, and what the 95 % intervals say", ("claim", "does it hold?", "figure", "holds if"), tuple(rows)
    )


def cost_against_distance(proposals: Mapping[str, Sequence[Spot]]) -> Points:
    """Return the chart of proposals, by name, with their cost and the distance of their texts to g.

    Of their spots, x is -log AR from ``minus_log`` and y is KL(g‖g'), both in nats.
    """
    shown = [spot for spots in proposals.values() for spot in spots]
    shown = [spot for spot in shown if math.isfinite(spot.x.value) and math.isfinite(spot.y.value)]
    most = max([spot.x.value for spot in shown], default=0) + max([spot.y.value for spot in shown], default=0)
    step = _nice(max(most, 0.5) / 5)
    return Points(
        "Cost against distance",
        "cost: -log acceptance rate [nats]",
        "KL(g‖g') [nats]",
        tuple(Spots(name, tuple(spots)) for name, spots in proposals.items()),
        tuple(i * step for i in range(1, 9)),
        "KL(g‖a') is constant along each dotted diagonal (Theorem 2); the label is its value in nats.",
    )


def minus_log(rate: Estimate) -> Estimate:
    """Return -log of an acceptance rate, in nats."""
    value, low, high = (-math.log(x) if x > 0 else math.inf for x in (rate.value, rate.high, rate.low))
    return Estimate(max(value, 0.0), max(low, 0.0), high)


def _nice(step: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(x * power for x in (1, 2, 5, 10) if x * power >= step * (1 - 1e-9))
