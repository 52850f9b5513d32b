"""When to find out whether a request's settings leave any text that satisfies its constraint.

Under a pipeline's default settings, such as ``top_k=50``, a constraint may be out of reach: none of the 50 most likely
first tokens begins a text that satisfies it. Then every attempt is rejected with its first token. The backend looks for
the reason once per request (``Backend.diagnose``): after ``LOOK`` such attempts, or when the budget ends and no attempt
has satisfied the constraint. No attempt is drawn differently, and a request continues unless all further attempts are
certain to be rejected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from guardwrap.errors import own_error
from guardwrap.outcomes import Obstacle
from guardwrap.scheduling.backend import Diagnosis

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
