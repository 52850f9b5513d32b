"""Time limits for the server's own Python functions, so that one that hangs does not block the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from guardwrap.constraints.base import Constraint, Wrapper, walk
from guardwrap.constraints.kinds.function import Python
from guardwrap.constraints.verdicts import Verdict
from guardwrap.environment.cached import cached_property
from guardwrap.environment.threads import in_thread
from guardwrap.errors import CheckFailed
from guardwrap.outcomes import Draw

_Answer = TypeVar("_Answer")

LEFT_BEHIND = 8
"""Threads of one constraint that may still run after their time limit. With more than these, calls fail at once."""

# By id(constraint). Each thread keeps its constraint alive, so the id stays unique.
_left_behind: dict[int, list[threading.Thread]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class TimeLimited(Wrapper):
    """A constraint that runs another one with a time limit for each call."""

    of: Constraint  # the constraint to run
    # Limit for one call, in seconds. A longer call raises ``CheckFailed``, but its thread cannot be stopped.
    seconds: float
    kind: Literal["timed"] = field(default="timed", kw_only=True)

    @cached_property
    def digest(self) -> str:
        """The digest of the inner constraint, because the limit changes no result."""
        return self.of.digest

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Check texts within the time limit."""
        return self._within(lambda: self.of.check(draws))

    def verdict(self, prefix: str, /) -> Verdict:
        """Return the verdict on a prefix within the time limit; undecided if the function only checks whole texts."""
        return self._within(lambda: self.of.verdict(prefix)) if self._judges_prefixes else Verdict.UNDECIDED

    @cached_property
    def _judges_prefixes(self) -> bool:
        functions = [part for part in walk(self.of) if isinstance(part, Python)]
        return len(functions) < 1 or self.of is not functions[0] or functions[0].prefix is not None

    def _within(self, call: Callable[[], _Answer]) -> _Answer:
        left = [thread for thread in _left_behind.pop(id(self.of), []) if thread.is_alive()]
        if left:
            _left_behind[id(self.of)] = left
        if len(left) >= LEFT_BEHIND:
            reason = f"is still running {len(left)} calls that took more than {self.seconds:g} s; make it faster"
            raise CheckFailed(self.title, reason)
        answer, thread = in_thread(call, self.seconds, name="guardwrap-checker")
        if not answer:
            _left_behind.setdefault(id(self.of), []).append(thread)
            raise CheckFailed(self.title, f"took more than {self.seconds:g} s; make it faster, or raise the limit")
        return answer[0]
