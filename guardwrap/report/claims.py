"""Claims: sentences, each with a verdict from the 95 % interval of a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from guardwrap.outcomes import Estimate
from guardwrap.report.blocks import Table, in_words


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
