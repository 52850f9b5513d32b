"""Inclusive limits on a count or a share: whether it is between them, in words, and for a text that still grows."""

from __future__ import annotations

from guardwrap.constraints.verdicts import Verdict
from guardwrap.formatting import digits


def is_between(number: float, least: float | None, most: float | None) -> bool:
    """Whether a number is between two limits; None is no limit."""
    return (least is None or number >= least) and (most is None or number <= most)


def number_in_words(number: float) -> str:
    """Return a count in full, and a share with three digits."""
    return str(number) if isinstance(number, int) else digits(number)


def limits_in_words(least: float | None, most: float | None) -> str:
    """Return two limits, as in ``at least 2 and at most 5``; None is no limit."""
    limits = (("least", least), ("most", most))
    return " and ".join(f"at {word} {number_in_words(limit)}" for word, limit in limits if limit is not None)


def verdict_on_count(count: int, least: float | None, most: float | None) -> Verdict:
    """Return the verdict on a text whose count never falls when text is added."""
    if most is not None:
        return Verdict.VIOLATED if count > most else Verdict.UNDECIDED
    return Verdict.SATISFIED if is_between(count, least, most) else Verdict.UNDECIDED
