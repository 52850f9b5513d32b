"""What to do while all attempts of a request are rejected: skip those that are known to be, and look for the reason.

The distribution that an attempt is drawn from may depend only on attempts that were decided before it, and must not
depend on the batch size. So attempts come in rounds of fixed sizes. After a round without enough accepted texts, the
next round waits until every attempt of this one is decided, and the backend then excludes what is known to be rejected
(``engine.dead_prefixes``).

Under a pipeline's default settings, such as ``top_k=50``, a constraint may be out of reach: none of the 50 most likely
first tokens begins a text that satisfies it. The backend looks for the reason once per request (``Backend.diagnose``):
after ``LOOK`` attempts that were rejected early, or when the budget ends and no attempt has satisfied the constraint.
No attempt is drawn differently, and a request continues unless all further attempts are certain to be rejected.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from guardwrap.engine.scheduling.backend import Diagnosis, Ids, ReducedDistribution
from guardwrap.errors import own_error
from guardwrap.outcomes import Obstacle

FIRST = 10_000
"""Attempts in a round while nothing is excluded; something is excluded only after all of them are rejected. Before
that, reusing cached prefixes is cheaper: for a constraint that one attempt in 2 000 satisfies, a text took 20 computed
tokens, but 46 with rounds of 1 000. Requests that end before that get the same texts as without rounds."""

LATER = 64
"""Attempts in a round once something is excluded. If a quarter of them satisfies the constraint, no more is."""

KEPT, DEPTH = 1000, 64
"""Number of a round's last attempts that are kept until it is over, and number of tokens kept of each."""

WORTH = 0.5
"""A reduction is worth its cost if at most this share of the current distribution remains. Otherwise the next round is
twice as long."""


@dataclass(eq=False)
class Rounds:
    """The rounds of one request."""

    # the distribution that attempts are drawn from now; None for the full distribution
    narrowed: ReducedDistribution | None = None
    _begin: int = 0
    _size: int = field(default_factory=lambda: FIRST)
    _satisfied: int = 0
    _ended: dict[int, tuple[Ids, bool]] = field(default_factory=dict)

    def room(self, launched: int) -> int:
        """Return how many more attempts may be launched in this round, after ``launched`` of the request."""
        if self._enough:
            self._next()
        return self._begin + self._size - launched

    def over(self, decided: int) -> bool:
        """Whether all attempts of this round are decided and too few satisfied the constraint."""
        return decided == self._begin + self._size and not self._enough

    def note(self, attempt: int, token_ids: Ids, satisfied: bool) -> None:
        """Record an attempt of this round: its new tokens, and whether it satisfied the constraint."""
        if attempt >= self._begin:
            self._satisfied += satisfied
        if attempt >= self._begin + self._size - KEPT:
            rejected = not satisfied and len(token_ids) <= DEPTH
            self._ended[attempt] = token_ids[:DEPTH], rejected

    def ended(self) -> list[tuple[Ids, bool]]:
        """Return this round's last attempts in launch order: tokens, and whether each ended with them and was rejected.

        An attempt that is longer than ``DEPTH`` tokens is cut to these, and counts as not rejected.
        """
        return [ended for _, ended in sorted(self._ended.items())]

    def take(self, reduced: ReducedDistribution) -> None:
        """Start the next round, with the backend's new reduced distribution."""
        before = 0.0 if self.narrowed is None else self.narrowed.log_live
        self._next()
        if reduced.log_live <= math.log(WORTH) + before:
            self.narrowed, self._size = reduced, LATER
        else:
            self._size *= 2
            # The backend extends its tree in place, so an earlier reduced distribution cannot be kept: the number of
            # skipped attempts must be drawn with the ``log_live`` of the distribution that attempts are drawn from.
            self.narrowed = reduced if self.narrowed is not None else None

    @property
    def _enough(self) -> bool:
        return self._satisfied >= (1 if self.narrowed is None else self._size // 4)

    def _next(self) -> None:
        self._begin += self._size
        self._satisfied = 0
        self._ended = {}


logger = logging.getLogger("guardwrap")

LOOK = 256
"""Number of attempts, all rejected early, after which the reason is looked for. Cached prefixes make them cheap."""

LONGEST = 4
"""Number of tokens within which these attempts must be rejected. Longer ones mean that the settings leave a choice."""

PATIENCE_AT_END = 5.0
"""Seconds that a request which has ended waits for the reason. Functions of users are not interrupted."""

_ENDS = frozenset({"max_attempts", "max_tokens", "max_computed_tokens", "max_seconds", "impossible"})


@dataclass(eq=False)
class Inquiry:
    """The search for the reason why no attempt of a request satisfies the constraint."""

    # whether the backend is to be asked, and nothing is decided about the request before its answer
    running: bool = False
    diagnosis: Diagnosis | None = None  # the backend's answer; None before it, and if the backend is not asked
    began: float = 0.0  # ``time.monotonic()`` when it began

    def begin(self, ended: str | None, decided: int, satisfied: int, longest: int) -> bool:
        """Begin if it is time to; return whether the search runs."""
        if not self.running and self.diagnosis is None and not satisfied:
            early = decided == LOOK and longest <= LONGEST
            self.running = early if ended is None else ended in _ENDS
            self.began = time.monotonic()
        return self.running

    @property
    def late(self) -> bool:
        """Whether a request that has ended should not wait any longer."""
        return time.monotonic() - self.began > PATIENCE_AT_END

    @property
    def obstacle(self) -> Obstacle | None:
        """The settings that are the reason; None if that is not known."""
        return None if self.diagnosis is None else self.diagnosis.obstacle

    def end(self, diagnosis: Diagnosis) -> None:
        """Take the backend's answer."""
        self.running, self.diagnosis = False, diagnosis


def safely(diagnose: Callable[[], Diagnosis]) -> Diagnosis:
    """Return a diagnosis; an empty one if making it raises, because the request itself is not at fault."""
    try:
        return diagnose()
    except BaseException as error:
        logger.debug("the reason why no text satisfies the constraint is not known: %s", own_error(error))
        return Diagnosis()
