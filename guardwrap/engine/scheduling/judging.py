"""Decoding and judging of attempts that ended, in the scheduler's step or in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from guardwrap.constraints.base import EXPENSIVE, Constraint
from guardwrap.constraints.checking import Judgement, judge_parts, run_check
from guardwrap.engine.scheduling.backend import AttemptState, grouped
from guardwrap.engine.scheduling.request import Request
from guardwrap.engine.scheduling.request_state import NO_CHECKS, JudgedAttempt, ModelChecks
from guardwrap.errors import own_error
from guardwrap.outcomes import Draw
from guardwrap.support.threads import started
from guardwrap.support.time_limits import CHECK_SECONDS, giving_way, judging

Within = Callable[[Request], AbstractContextManager[Any]]

Failures = dict[Request, Exception]
"""The error that judging a request's attempts raised, by request."""


@dataclass(eq=False, slots=True)
class _Decoded:
    """An attempt that is being judged."""

    attempt: AttemptState
    request: Request
    draw: Draw
    log_weight: float
    judgement: Judgement | None = None
    checks: ModelChecks = NO_CHECKS
    expensive: Sequence[Constraint] = ()  # the expensive parts that have not judged it yet

    @property
    def satisfied(self) -> bool:
        """Whether the parts that have judged it so far do not reject it."""
        return self.judgement is not None and self.judgement.satisfied


def judge_attempts(
    ended: Sequence[AttemptState], *, within: Within | None = None
) -> tuple[list[JudgedAttempt], Failures]:
    """Decode attempts, judge those that are whole, and compute log-weights of those that satisfy their constraint.

    All requests with the same constraint are judged together. Expensive parts, such as classifiers, judge the texts of
    all requests that use them in one batch, even if the requests' constraints differ in other parts. A checker that
    raises ends only the requests for whose attempts it raises. A text with a judgement in the backend's cache is not
    judged again.

    ``within`` returns a context for a request, in which the cheap parts of its constraint are judged. A request whose
    context runs out of time fails with StepOver. None sets no limit.

    Returns the attempts of requests without errors, those judged from the cache first, and the errors of the others.
    """
    failures: Failures = {}
    cached: list[JudgedAttempt] = []
    decoded: list[_Decoded] = []
    for attempt in ended:
        request = _request(attempt)
        before = None if attempt.memo is None else attempt.memo.by_request.get(request)
        if before is not None:
            cached.append(JudgedAttempt(attempt, *before))
            continue
        try:
            finished = attempt.status == "finished"
            draw = request.drawing.draw_of(request.prompt, attempt.grown, finished, attempt.log_probability)
        except BaseException as error:
            failures.setdefault(request, own_error(error))
            continue
        item = _Decoded(attempt, request, draw, attempt.log_weight)
        if not attempt.whole:
            item.judgement = Judgement(False, attempt.blame, _place(item))
        elif attempt.memo is not None:
            item.judgement = attempt.memo.judgements.get(_read_of(item.draw))
        decoded.append(item)
    with judging():
        _judge([item for item in decoded if item.judgement is None], failures, within)
    heavy = [
        item for item in decoded if item.attempt.whole and item.satisfied and item.request.drawing.weigh is not None
    ]
    for group in grouped(heavy, lambda item: id(item.request.drawing.weigh)):
        _isolated(group, failures, _weigh)
    judged = []
    for item in decoded:
        if item.request not in failures and item.judgement is not None:
            judged.append(JudgedAttempt(item.attempt, item.draw, item.judgement, item.log_weight, item.checks))
            if item.attempt.memo is not None:
                item.attempt.memo.by_request[item.request] = item.draw, item.judgement, item.log_weight
                item.attempt.memo.judgements[_read_of(item.draw)] = item.judgement
    return [*cached, *judged], failures


def _place(item: _Decoded) -> str | None:
    """Return where an attempt that ended early violates the constraint; None if that is not known."""
    watch, attempt = item.request.drawing.watch, item.attempt
    return None if watch is None or attempt.status not in ("aborted", "dead_end") else watch.place(attempt.grown)


def _read_of(draw: Draw) -> Hashable:
    """Return everything in a draw that a judgement may depend on, except its tokens and their log-probability.

    These are equal for all draws in a cache. The text need not be: it depends on how the call decodes tokens, and on
    the prompt before them.
    """
    message = draw.parts, draw.begun, draw.message
    return draw.prompt, draw.text, draw.full, draw.finished, draw.fault, message


def _request(attempt: AttemptState) -> Request:
    request: Request = attempt.launch.request
    return request


def _isolated(items: Sequence[_Decoded], failures: Failures, work: Callable[[Sequence[_Decoded]], None]) -> None:
    """Do the work for all items together; if that raises, for each request separately, to isolate the error."""
    try:
        work(items)
    except BaseException as error:
        own = own_error(error)
        groups = grouped(items, lambda item: item.request)
        if len(groups) > 1:
            for group in groups:
                _isolated(group, failures, work)
            return
        failures[items[0].request] = own
        for item in items:
            item.judgement = Judgement(False)


def _judge(items: Sequence[_Decoded], failures: Failures, within: Within | None) -> None:
    """Judge whole texts: first by the cheap parts of each constraint, then those that passed by the expensive parts."""

    def by(parts: Sequence[Constraint], group: Sequence[_Decoded], clock: Within = nullcontext) -> None:
        def judge(some: Sequence[_Decoded]) -> None:
            with clock(some[0].request):
                judgements = judge_parts(parts, [item.draw for item in some], with_places=True)
            for item, judgement in zip(some, judgements, strict=True):
                item.judgement = judgement

        _isolated(group, failures, judge)

    for group in grouped(items, lambda item: item.request.rule if within is None else item.request):
        parts = group[0].request.spec.constraint.parts
        by([part for part in parts if part.cost < EXPENSIVE], group, within or nullcontext)
        for item in group:
            item.expensive = [part for part in parts if part.cost >= EXPENSIVE]
    while waiting := [item for item in items if item.expensive and item.satisfied]:
        for group in grouped(waiting, lambda item: item.expensive[0]):
            began = time.monotonic()
            by(group[0].expensive[:1], group)
            seconds = (time.monotonic() - began) / len(group)
            for item in group:
                item.expensive = item.expensive[1:]
                item.checks = ModelChecks(item.checks.texts + 1, item.checks.seconds + seconds)
    for group in grouped([item for item in items if item.satisfied], lambda item: item.request):
        if group[0].request.spec.sampler.features:
            _isolated(group, failures, partial(_look, within or nullcontext))


def _look(within: Within, items: Sequence[_Decoded]) -> None:
    """Judge texts that satisfy their constraint by the sampler's further rules, which reject none of them."""
    request, draws = items[0].request, [item.draw for item in items]
    features, began = request.spec.sampler.features, time.monotonic()
    with within(request):
        columns = [run_check(feature, draws) for feature in features]
    expensive = sum(feature.cost >= EXPENSIVE for feature in features)
    seconds = (time.monotonic() - began) / len(items) if expensive else 0.0
    for item, row in zip(items, zip(*columns, strict=True), strict=True):
        item.judgement = Judgement(True, features=row)
        item.checks = ModelChecks(item.checks.texts + expensive, item.checks.seconds + seconds)


def _weigh(items: Sequence[_Decoded]) -> None:
    """Compute the log-weights of attempts that have one weigher."""
    weigh = items[0].request.drawing.weigh
    if weigh is not None:
        weights = weigh([(item.request.prompt, item.draw, item.attempt.log_weight) for item in items])
        for item, weight in zip(items, weights, strict=True):
            item.log_weight = weight


SHORT = 0.05
"""A judgement that takes longer than this, in seconds, is followed by a pause of the same length, up to a limit."""

_turn = threading.Lock()
"""Held while guardwrap's own code judges a text in a thread, so that all such threads together use one core."""


@dataclass(eq=False)
class _Work:
    """Attempts under one constraint, judged in a thread; ``result`` is None until it is done."""

    attempts: Sequence[AttemptState]
    dropped: set[Request] = field(default_factory=set)
    result: tuple[list[JudgedAttempt], Failures] | None = None


class CheckerPool:
    """Threads for work that may take long: judging texts, one at a time for each constraint, and other searches.

    In a batch with several callers, the others continue meanwhile. The user's functions cannot be interrupted; one that
    never returns blocks only the requests that use it. No time limit is set here; a server sets one
    (``serve/parsed_request.py``). guardwrap's own slow checks run one text at a time and yield to other threads.
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._at_work: dict[Constraint, _Work] = {}
        self._waiting: list[AttemptState] = []
        self._searches: dict[Request, Future[Any]] = {}

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
        working = (work for work in self._at_work.values() if work.result is None)
        return any(request in requests and not search.done() for request, search in self._searches.items()) or any(
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
            if work.result is not None:
                del self._at_work[constraint]
                items += work.result[0]
                failures |= work.result[1]
        self._begin()
        return items, failures

    def search(self, request: Request, look: Callable[[], Any]) -> Callable[[], Any] | None:
        """Run a computation for a request in a thread, one at a time per request; return its result when it is done."""
        search = self._searches.get(request)
        if search is None:
            search = self._searches[request] = Future()
            _start(self._search, search, look, runs_code=False)
        if not search.done():
            return None
        del self._searches[request]
        return search.result

    def tidy(self, active: Collection[Request]) -> None:
        """Delete results that were computed for requests that have ended."""
        for request in [of for of, search in self._searches.items() if search.done() and of not in active]:
            del self._searches[request]

    def wait(self, seconds: float) -> None:
        """Wait until a thread has finished something, at most ``seconds``."""
        self._done.wait(seconds)

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        for attempts in grouped(waiting, lambda attempt: _request(attempt).spec.constraint):
            constraint = _request(attempts[0]).spec.constraint
            if constraint in self._at_work:
                self._waiting += attempts
                continue
            work = self._at_work[constraint] = _Work(attempts)
            _start(self._judge, work, runs_code=_request(attempts[0]).runs_code)

    def _judge(self, work: _Work) -> None:
        constraint = _request(work.attempts[0]).spec.constraint
        try:
            work.result = judge_attempts(work.attempts) if not constraint.interruptible else self._judged_in_turn(work)
        except BaseException as error:  # cannot be attributed to one request
            work.result = [], dict.fromkeys(map(_request, work.attempts), own_error(error))
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

    def _search(self, search: Future[Any], look: Callable[[], Any]) -> None:
        try:
            with giving_way():
                search.set_result(look())
        except BaseException as error:
            search.set_exception(own_error(error))
        self._done.set()


def _start(work: Callable[..., None], *arguments: Any, runs_code: bool) -> None:
    """Start a thread. The exit of the process waits for it, unless it runs the user's code, which may never return."""
    if runs_code:
        threading.Thread(target=work, args=arguments, name="guardwrap-judge", daemon=True).start()
    else:
        started(partial(work, *arguments), name="guardwrap-judge")
