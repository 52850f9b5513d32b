"""Finding what must not occur in a text, such as a card number, in a text that may still grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from guardwrap.documents.time_limits import matches

__all__ = ["HitRule", "first_hit"]


class HitRule(NamedTuple):
    """How one kind of hit is recognized.

    Parameters
    ----------
    run
        Compiled expression of a run of characters in which a hit may be. Where it matches, and where it ends, must
        depend on at most ``tail`` characters after the match, and it must fail at a place only for reasons that no
        continuation changes. So runs that are followed by that many characters are the same in all continuations.
    find
        Returns what kind of hit is in a run, for reports, or None. It sees nothing but the run.
    tail
        Number of characters after a run that may change it.
    """

    run: Any
    find: Callable[[str], str | None]
    tail: int = 1


def first_hit(rules: Iterable[HitRule], text: str, *, grows: bool = False) -> str | None:
    """Return what the first rule that has a hit in a text calls it; None if there is no hit.

    Parameters
    ----------
    rules
        The rules.
    text
        The text.
    grows
        Whether the text is a prefix, so that only hits count that no continuation can undo.

    Raises
    ------
    TimeLimit
        If a limit is exceeded.
    """
    for rule in rules:
        last = len(text) - rule.tail if grows else len(text)
        for match in matches(rule.run, text):
            if match.end() <= last:
                hit = rule.find(match.group())
                if hit is not None:
                    return hit
    return None
