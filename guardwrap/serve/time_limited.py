"""The server's own functions, each call within a time limit: one that hangs must not hang the batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar

from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.kinds.function import Python
from guardwrap.constraints.verdicts import Verdict
from guardwrap.environment.threads import in_thread
from guardwrap.errors import CheckFailed
from guardwrap.outcomes import Draw

__all__ = ["TimeLimited"]

_Answer = TypeVar("_Answer")

LEFT_BEHIND = 8
"""Threads of one constraint that may still be at work after their time was over."""

_left_behind: dict[int, list[threading.Thread]] = {}  # by the constraint's id, which each thread holds alive


@dataclass(frozen=True, eq=False, repr=False)
class TimeLimited(Constraint):
    """Another constraint, each call of it within so many seconds.

    Parameters
    ----------
    of
        The constraint.
    seconds
        The limit. A call that takes longer is CheckFailed; its thread cannot be ended, and is left behind.
    """

    of: Constraint
    seconds: float
    kind: Literal["timed"] = field(default="timed", kw_only=True)

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The price of the constraint."""
        return self.of.cost

    @cached_property
    def title(self) -> str:
        """That of the constraint."""
        return self.of.title

    @cached_property
    def digest(self) -> str:
        """That of the constraint: the limit changes no judgement."""
        return self.of.digest

    @property
    def in_memory(self) -> bool:
        """True: no constraint file can spell it."""
        return True

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge, within the limit."""
        return self._within(lambda: self.of.check(draws))

    def verdict(self, prefix: str, /) -> Verdict:
        """Judge a prefix, within the limit."""
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
            reason = f"is still at work on {len(left)} calls that took more than {self.seconds:g} s; make it faster"
            raise CheckFailed(self.title, reason)
        answer, thread = in_thread(call, self.seconds, name="guardwrap-checker")
        if not answer:
            _left_behind.setdefault(id(self.of), []).append(thread)
            raise CheckFailed(self.title, f"took more than {self.seconds:g} s; make it faster, or raise the limit")
        return answer[0]
