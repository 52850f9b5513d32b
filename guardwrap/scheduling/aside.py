"""Judging in threads of their own, where it may take long: the user's functions, which nothing can interrupt.

In a batch of several callers the others go on meanwhile, and a function that never returns holds up its own requests
only. Nothing ends it here; a server gives it so many seconds (``serve/checking.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guardwrap.constraints.base import Constraint
from guardwrap.errors import CheckFailed
from guardwrap.scheduling.account import Judged
from guardwrap.scheduling.backend import Decoded, grouped
from guardwrap.scheduling.judging import Failures, judged
from guardwrap.scheduling.request import Request

__all__ = ["Aside"]


@dataclass(eq=False)
class _Work:
    """Attempts under one constraint, in a thread; ``found`` when it is done."""

    attempts: Sequence[Decoded]
    found: tuple[list[Judged], Failures] | None = None


class Aside:
    """Judges attempts in threads, one at a time for each constraint."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._at_work: dict[Constraint, _Work] = {}
        self._waiting: list[Decoded] = []

    def take(self, attempts: Sequence[Decoded]) -> None:
        """Judge these as soon as their constraint's thread is free."""
        self._waiting += attempts
        self._begin()

    @property
    def attempts(self) -> Iterator[Decoded]:
        """Those that are not judged yet."""
        yield from self._waiting
        for work in self._at_work.values():
            yield from work.attempts

    def judged(self) -> tuple[list[Judged], Failures]:
        """Return what has been judged since it was asked last, and which requests have failed."""
        self._done.clear()
        items: list[Judged] = []
        failures: Failures = {}
        for constraint, work in list(self._at_work.items()):
            if work.found is not None:
                del self._at_work[constraint]
                items += work.found[0]
                failures |= work.found[1]
        self._begin()
        return items, failures

    def wait(self, seconds: float) -> None:
        """Wait until something has been judged, at most so long."""
        self._done.wait(seconds)

    def _begin(self) -> None:
        free = [i for i, each in enumerate(self._waiting) if _request(each).constraint not in self._at_work]
        for places in grouped(free, lambda i: _request(self._waiting[i]).constraint):
            work = _Work([self._waiting[i] for i in places])
            self._at_work[_request(work.attempts[0]).constraint] = work
            threading.Thread(target=self._judge, args=(work,), name="guardwrap-judge", daemon=True).start()
        self._waiting = [each for i, each in enumerate(self._waiting) if i not in set(free)]

    def _judge(self, work: _Work) -> None:
        try:
            work.found = judged(work.attempts)
        except BaseException as error:  # of nobody's in particular
            failed = (
                error if isinstance(error, Exception) else CheckFailed("a checker", f"raised {type(error).__name__}")
            )
            work.found = [], {_request(each): failed for each in work.attempts}
        self._done.set()


def _request(attempt: Decoded) -> Request:
    request: Request = attempt.launch.request
    return request
