"""Claims: plain sentences, each with what the interval of its figure says about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from guardwrap.outcomes import Estimate
from guardwrap.report.blocks import Table
from guardwrap.report.plain_words import in_words

__all__ = ["Answer", "Claim", "above", "below", "cheaper", "table_of", "worst"]

Answer = Literal["holds", "does not hold", "cannot be told"]

_SIGNS: dict[Answer, str] = {"holds": "✓", "does not hold": "✗", "cannot be told": "?"}
_SEVERITY: tuple[Answer, ...] = ("holds", "cannot be told", "does not hold")


@dataclass(frozen=True)
class Claim:
    """A sentence and whether it is true.

    Parameters
    ----------
    sentence
        What is claimed.
    answer
        As from ``above`` and ``below``.
    figure
        What it was read off.
    rule
        What the figure's interval has to be for the claim to hold, and why it is not told where it could be.
    """

    sentence: str
    answer: Answer
    figure: Estimate
    rule: str


def above(figure: Estimate, limit: float) -> Answer:
    """Say whether a figure is above a limit: its whole interval has to be."""
    if figure.low > limit:
        return "holds"
    return "does not hold" if figure.high <= limit else "cannot be told"  # not for NaN


def below(figure: Estimate, limit: float) -> Answer:
    """Say whether a figure is at most a limit: its whole interval has to be."""
    if figure.high <= limit:
        return "holds"
    return "does not hold" if figure.low > limit else "cannot be told"


def worst(answers: Iterable[Answer]) -> Answer:
    """Return the answer of "all of them": one that does not hold is enough, and all have to be told to hold."""
    return max(answers, key=_SEVERITY.index)


def cheaper(name: str, saved: Estimate, answer: Answer, every: str = "", rule: str = "above 1") -> Claim:
    """Claim that something costs fewer attempts than the model.

    Parameters
    ----------
    name
        What to call it.
    saved
        How many times fewer.
    answer
        Whether that is so.
    every
        Over which prompts, in words.
    rule
        As in ``Claim``.
    """
    fewer = f"{in_words(saved.value)} times fewer" if 1 < saved.value < math.inf else "fewer"
    return Claim(f"{name} costs {fewer} attempts than the model{every}", answer, saved, rule)


def table_of(claims: Sequence[Claim]) -> Table:
    """Return claims as a block."""
    rows = [(claim.sentence, f"{_SIGNS[claim.answer]} {claim.answer}", claim.figure, claim.rule) for claim in claims]
    return Table(
        "Claims, and what the 95 % intervals say", ("claim", "does it hold?", "figure", "holds if"), tuple(rows)
    )
