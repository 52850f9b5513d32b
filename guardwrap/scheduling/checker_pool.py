"""Threads for work that may take long: judging texts, and computing reduced distributions.

In a batch with several callers, the others continue meanwhile. The user's functions cannot be interrupted; one that
never returns blocks only the requests that use it. No time limit is set here; a server sets one
(``serve/parsed_request.py``). guardwrap's own slow checks run one text at a time and yield to other threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.documents.time_limits import CHECK_SECONDS, giving_way
from guardwrap.environment.threads import started
from guardwrap.errors import own_error
from guardwrap.scheduling.backend import AttemptState, grouped
from guardwrap.scheduling.judge_attempts import Failures, judge_attempts
from guardwrap.scheduling.request import Request
from guardwrap.scheduling.request_state import JudgedAttempt

SHORT = 0.05
"""A judgement that takes longer than this, in seconds, is followed by a pause of the same length, up to a limit."""

_turn = threading.Lock()
"""Held while guardwrap's own code judges a text in a thread, so that all such threads together use one core."""


@dataclass(eq=False)
class _Work:
    """Attempts under one constraint, judged in a thread; ``found`` has the result when it is done."""

    attempts: Sequence[AttemptState]
    dropped: set[Request] = field(default_factory=set)
    found: tuple[list[JudgedAttempt], Failures] | None = None


@dataclass(eq=False)
class _Search:
    """A computation for a request in a thread; ``found`` has the result, or ``error`` the error, when it is done."""

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
        """Queue attempts, which are judged as soon as the thread of their constraint is free."""
        self._waiting += attempts
        self._begin()

    def drop(self, requests: Collection[Request]) -> None:
        """Drop queued attempts of requests that have ended. Judging a text that has begun is not interrupted."""
        self._waiting = [each for each in self._waiting if _request(each) not in requests]
        for work in self._at_work.values():
            work.dropped.update(requests)

    def busy(self, requests: Collection[Request]) -> bool:
        """Return whether a thread works for one of these requests, dropped or not."""
        working = (work for work in self._at_work.values() if work.found is None)
        return any(request in requests and not search.done for request, search in self._searches.items()) or any(
            _request(each) in requests for work in working for each in work.attempts
        )

    @property
    def attempts(self) -> Iterator[AttemptState]:
        """The attempts whose judgements have not been returned yet."""
        yield from self._waiting
        for work in self._at_work.values():
            yield from work.attempts

    def judge_attempts(self) -> tuple[list[JudgedAttempt], Failures]:
        """Return attempts judged since the last call, and the errors of requests that failed."""
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
        """Run a computation for a request in a thread, one at a time per request."""
        search = self._searches.get(request)
        if search is None:
            search = self._searches[request] = _Search()
            _start(self._search, search, look, runs_code=False)
        if not search.done:
            return None
        del self._searches[request]
        return _answer_of(search)

    def tidy(self, active: Collection[Request]) -> None:
        """Delete results that were computed for requests that have ended."""
        for request in [of for of, search in self._searches.items() if search.done and of not in active]:
            del self._searches[request]

    def wait(self, seconds: float) -> None:
        """Wait until a thread has finished something, at most ``seconds``."""
        self._done.wait(seconds)

    def _begin(self) -> None:
        free = [i for i, each in enumerate(self._waiting) if _request(each).spec.constraint not in self._at_work]
        for places in grouped(free, lambda i: _request(self._waiting[i]).spec.constraint):
            work = _Work([self._waiting[i] for i in places])
            self._at_work[_request(work.attempts[0]).spec.constraint] = work
            _start(self._judge, work, runs_code=_request(work.attempts[0]).runs_code)
        self._waiting = [each for i, each in enumerate(self._waiting) if i not in set(free)]

    def _judge(self, work: _Work) -> None:
        constraint = _request(work.attempts[0]).spec.constraint
        try:
            work.found = judge_attempts(work.attempts) if not constraint.interruptible else self._judged_in_turn(work)
        except BaseException as error:  # cannot be attributed to one request
            work.found = [], dict.fromkeys(map(_request, work.attempts), own_error(error))
        self._done.set()

    def _judged_in_turn(self, work: _Work) -> tuple[list[JudgedAttempt], Failures]:
        """Judge one text after the other, yielding to other threads."""
        items: list[JudgedAttempt] = []
        failures: Failures = {}
        for attempt in work.attempts:
            if _request(attempt) in work.dropped or _request(attempt) in failures:
                continue
            with _turn, giving_way():
                began = time.monotonic()
                judged, failed = judge_attempts([attempt])
                if (took := time.monotonic() - began) > SHORT:  # a regex match cannot yield, so pause afterwards
                    time.sleep(min(took, CHECK_SECONDS))
            items += judged
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


def _start(work: Callable[..., None], *arguments: Any, runs_code: bool) -> None:
    """Start a thread. The exit of the process waits for it, unless it runs the user's code, which may never return."""
    if runs_code:
        threading.Thread(target=work, args=arguments, name="guardwrap-judge", daemon=True).start()
    else:
        started(partial(work, *arguments), name="guardwrap-judge")


def _request(attempt: AttemptState) -> Request:
    request: Request = attempt.launch.request
    return request
