"""Rounds of attempts, after which a request may know enough to skip those that would be rejected.

What an attempt is drawn from may depend on attempts that were decided before it, and on nothing else; it must not
depend on the batch size. So attempts come in rounds of fixed sizes. After a round without enough texts the next one
waits until all of this one is decided, and the backend leaves out what is known by then (``backends.narrowing``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from guardwrap.scheduling.backend import Ids, ReducedDistribution

__all__ = ["Rounds"]

FIRST = 10_000
"""Attempts of a round of which all must be rejected before anything is left out. Until then it is cheaper to walk along
known prefixes: for a constraint that one attempt in 2 000 satisfies, a text took 20 computed tokens, and 46 with 1 000
here. Requests that are served before have the texts that they would have without all this."""

LATER = 64
"""Attempts of a round after that. Where a quarter of them satisfies the constraint, nothing more is left out."""

KEPT, DEPTH = 1000, 64
"""How many of a round's attempts are kept until it is over, the last ones, and how many tokens of each."""

WORTH = 0.5
"""Leaving out less than this share of the law is not worth the while."""


@dataclass(eq=False)
class Rounds:
    """The rounds of one request.

    Attributes
    ----------
    narrowed : Narrowed or None
        What its attempts are drawn from now; None for the whole law.
    """

    narrowed: ReducedDistribution | None = None
    _begin: int = 0
    _size: int = field(default_factory=lambda: FIRST)
    _satisfied: int = 0
    _ended: dict[int, tuple[Ids, bool]] = field(default_factory=dict)

    def room(self, launched: int) -> int:
        """Return how many more attempts may be launched before this round must be over."""
        if self._enough:
            self._next()
        return self._begin + self._size - launched

    def over(self, decided: int) -> bool:
        """Whether all attempts of a round without enough texts are decided."""
        return decided == self._begin + self._size and not self._enough

    def note(self, attempt: int, token_ids: Ids, satisfied: bool) -> None:
        """Keep what became of an attempt of this round."""
        if attempt >= self._begin:
            self._satisfied += satisfied
        if attempt >= self._begin + self._size - KEPT:
            rejected = not satisfied and len(token_ids) <= DEPTH
            self._ended[attempt] = token_ids[:DEPTH], rejected

    def ended(self) -> list[tuple[Ids, bool]]:
        """Return this round's last attempts in launch order: tokens, and whether each ended so and was rejected."""
        return [ended for _, ended in sorted(self._ended.items())]

    def take(self, found: ReducedDistribution) -> None:
        """Begin the next round with what the backend has left."""
        before = 0.0 if self.narrowed is None else self.narrowed.log_live
        self._next()
        if found.log_live <= math.log(WORTH) + before:
            self.narrowed, self._size = found, LATER
        else:
            self._size *= 2
            # What grew in place has to be kept; the number of those skipped must be of what is drawn from.
            self.narrowed = found if self.narrowed is not None else None

    @property
    def _enough(self) -> bool:
        return self._satisfied >= (1 if self.narrowed is None else self._size // 4)

    def _next(self) -> None:
        self._begin += self._size
        self._satisfied = 0
        self._ended = {}
