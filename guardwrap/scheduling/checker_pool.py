"""What may take long is done in threads of its own: judging texts, and looking for what may be skipped.

In a batch of several callers the others go on meanwhile. The user's functions cannot be interrupted, and a function
that never returns holds up its own requests only. Nothing ends it here; a server gives it so many seconds
(``serve/checking.py``). What guardwrap itself judges slowly is done one text after the other, and gives way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.documents.time_limits import CHECK_SECONDS, giving_way
from guardwrap.errors import own_error
from guardwrap.scheduling.backend import AttemptState, grouped
from guardwrap.scheduling.judge_attempts import Failures, judge_attempts
from guardwrap.scheduling.request import Request
from guardwrap.scheduling.request_state import JudgedAttempt

__all__ = ["CheckerPool"]

SHORT = 0.05
"""Seconds from which on a judgement is followed by a rest."""

_turn = threading.Lock()
"""Held while guardwrap's own code judges a text aside: however many do, they take one core."""


@dataclass(eq=False)
class _Work:
    """Attempts under one constraint, in a thread; ``found`` when it is done."""

    attempts: Sequence[AttemptState]
    dropped: set[Request] = field(default_factory=set)
    found: tuple[list[JudgedAttempt], Failures] | None = None


@dataclass(eq=False)
class _Search:
    """What may be skipped for a request, looked for in a thread; ``found`` or ``error`` when it is done."""

    done: bool = False
    found: Any = None
    error: Exception | None = None


class CheckerPool:
    """Judges attempts in threads, one at a time for each constraint."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._at_work: dict[Constraint, _Work] = {}
        self._waiting: list[AttemptState] = []
        self._searches: dict[Request, _Search] = {}

    def take(self, attempts: Sequence[AttemptState]) -> None:
        """Judge these as soon as their constraint's thread is free."""
        self._waiting += attempts
        self._begin()

    def drop(self, requests: Collection[Request]) -> None:
        """Forget what nobody waits for any more. A text that is being judged is judged to its end."""
        self._waiting = [each for each in self._waiting if _request(each) not in requests]
        for work in self._at_work.values():
            work.dropped.update(requests)

    def busy(self, requests: Collection[Request]) -> bool:
        """Whether a thread is at work for one of these, dropped or not."""
        working = (work for work in self._at_work.values() if work.found is None)
        return any(request in requests and not search.done for request, search in self._searches.items()) or any(
            _request(each) in requests for work in working for each in work.attempts
        )

    @property
    def attempts(self) -> Iterator[AttemptState]:
        """Those that are not judged yet."""
        yield from self._waiting
        for work in self._at_work.values():
            yield from work.attempts

    def judge_attempts(self) -> tuple[list[JudgedAttempt], Failures]:
        """Return what has been judged since it was asked last, and which requests have failed."""
        self._done.clear()
        items: list[JudgedAttempt] = []
        failures: Failures = {}
        for constraint, work in list(self._at_work.items()):
            if work.found is not None:
                del self._at_work[constraint]
                items += work.found[0]
                failures |= work.found[1]
        self._begin()
        return items, failures

    def search(self, request: Request, look: Callable[[], Any]) -> Callable[[], Any] | None:
        """Look for something on behalf of a request, unless that is done already.

        Returns
        -------
        callable or None
            What returns what was found, or raises its error, once it is done; None while it is looked for.
        """
        search = self._searches.get(request)
        if search is None:
            search = self._searches[request] = _Search()
            _start(self._search, search, look)
        if not search.done:
            return None
        del self._searches[request]
        return _answer_of(search)

    def tidy(self, active: Collection[Request]) -> None:
        """Forget what was found for requests that have ended."""
        for request in [of for of, search in self._searches.items() if search.done and of not in active]:
            del self._searches[request]

    def wait(self, seconds: float) -> None:
        """Wait until something has been judged, at most so long."""
        self._done.wait(seconds)

    def _begin(self) -> None:
        free = [i for i, each in enumerate(self._waiting) if _request(each).constraint not in self._at_work]
        for places in grouped(free, lambda i: _request(self._waiting[i]).constraint):
            work = _Work([self._waiting[i] for i in places])
            self._at_work[_request(work.attempts[0]).constraint] = work
            _start(self._judge, work)
        self._waiting = [each for i, each in enumerate(self._waiting) if i not in set(free)]

    def _judge(self, work: _Work) -> None:
        constraint = _request(work.attempts[0]).constraint
        try:
            work.found = judge_attempts(work.attempts) if not constraint.interruptible else self._judged_in_turn(work)
        except BaseException as error:  # of nobody's in particular
            work.found = [], dict.fromkeys(map(_request, work.attempts), own_error(error))
        self._done.set()

    def _judged_in_turn(self, work: _Work) -> tuple[list[JudgedAttempt], Failures]:
        """Judge one text after the other, while others are let go first."""
        items: list[JudgedAttempt] = []
        failures: Failures = {}
        for attempt in work.attempts:
            if _request(attempt) in work.dropped or _request(attempt) in failures:
                continue
            with _turn, giving_way():
                began = time.monotonic()
                found, failed = judge_attempts([attempt])
                if (took := time.monotonic() - began) > SHORT:  # a match looks at no clock, so it rests afterwards
                    time.sleep(min(took, CHECK_SECONDS))
            items += found
            failures |= failed
        return items, failures

    def _search(self, search: _Search, look: Callable[[], Any]) -> None:
        try:
            with giving_way():
                search.found = look()
        except BaseException as error:
            search.error = own_error(error)
        search.done = True
        self._done.set()


def _answer_of(search: _Search) -> Callable[[], Any]:
    def answer() -> Any:
        if search.error is not None:
            raise search.error
        return search.found

    return answer


def _start(work: Callable[..., None], *given: Any) -> None:
    threading.Thread(target=work, args=given, name="guardwrap-judge", daemon=True).start()


def _request(attempt: AttemptState) -> Request:
    request: Request = attempt.launch.request
    return request
