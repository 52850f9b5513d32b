"""The scheduler: launches attempts of many requests in fair shares, and isolates the errors of each request."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from guardwrap.constraints.base import EXPENSIVE
from guardwrap.engine.scheduling.backend import AttemptState, Backend, Diagnosis, Launch
from guardwrap.engine.scheduling.judging import CheckerPool, Failures, judge_attempts
from guardwrap.engine.scheduling.request import OrderedDelivery, Request, RequestStream, Served
from guardwrap.engine.scheduling.request_outcome import outcome_of, with_earlier
from guardwrap.engine.scheduling.request_state import JudgedAttempt, RequestState
from guardwrap.errors import ContextExceeded, own_error
from guardwrap.outcomes import Outcome
from guardwrap.support.time_limits import StepOver

logger = logging.getLogger("guardwrap")

WINDOW = 4
"""Requests of one caller in progress at once, in multiples of the batch size: later requests finish while a hard one is
in progress, and memory stays bounded."""

JUDGED_TOGETHER = 16
"""Attempts with an expensive constraint are judged when there are this many, or when nothing else is left to do."""

STEP_SHARE = 0.02
"""The share of the shortest timeout that a step may take to launch attempts."""

FIRST_LAUNCHES = 2
"""The most attempts of a step, with timeouts, before it is known how long a launch takes."""

PATIENCE = 0.02
"""Seconds that a step waits for judgements in other threads if nothing else is left to do."""

LAUNCH_ROUNDS = 32
"""Maximum number of launches in a row before the running attempts are advanced by a token. If most attempts end before
the model is run, more are better: for a constraint that one attempt in 2 000 satisfies, 4 took 98 passes, and 32 take
33."""


class _Following(NamedTuple):
    """The request that follows up another one; None for no such request."""

    request: Request | None


class Scheduler:
    """Draws attempts for requests until each has its texts or has used up its budget. Requests end in any order.

    Requests come from sources, one per caller. The requests of a source start in order. With several sources, each gets
    a fair share of the backend, and none waits for another to end.

    ``aside``: judges texts in threads if this runs the user's code or is slow. None judges all texts within steps, so
    that all requests wait.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.aside: CheckerPool | None = None
        self.shared = False
        self._launch_seconds: float | None = None  # of one attempt in the last step that launched some
        self._sources: list[RequestStream] = []
        self._whose: dict[Request, RequestStream] = {}
        self._active: dict[Request, RequestState] = {}
        self._unjudged: list[AttemptState] = []
        self._failed: Failures = {}
        self._rounds = 0  # launches since the running attempts were last advanced
        self._began = 0.0  # ``time.monotonic()`` of the start of this step
        self._until = math.inf  # when the next timeout of a request is over
        self._new: bool | None = None  # whether to launch only one request that has no attempt yet, or only others

    def add(self, source: RequestStream) -> None:
        """Add the requests of a caller."""
        self._sources.append(source)

    def remove(self, source: RequestStream) -> None:
        """Remove a caller, and cancel the attempts of its requests at once."""
        if source in self._sources:
            self._sources.remove(source)
        gone = {request for request in source.numbers if request in self._active}
        source.numbers.clear()
        if gone:
            for request in gone:
                del self._active[request], self._whose[request]
            self.backend.cancel(lambda launch: launch.request in gone)
            self._unjudged = [attempt for attempt in self._unjudged if attempt.launch.request not in gone]
            self._drop(gone)

    def _drop(self, requests: Collection[Request]) -> None:
        if self.aside is not None:
            self.aside.drop(requests)

    def serve(self, requests: Iterable[Request], *, window: int) -> Iterator[tuple[Request, Outcome]]:
        """Serve the requests of a single caller."""
        source = RequestStream(requests, window)
        self.add(source)
        order = OrderedDelivery(source)
        while not source.over:
            yield from order.put(self.step())
        order.end()

    @property
    def idle(self) -> bool:
        """Whether all requests of all sources have ended."""
        return all(source.over for source in self._sources)

    def step(self) -> list[Served]:
        """Launch attempts if there is room, otherwise advance the running ones; return requests that ended."""
        self._began = time.monotonic()
        try:
            ended = self._draw()
        except BaseException as error:  # the backend lost all attempts, so their requests cannot continue
            return self._lost(own_error(error))
        for attempt in ended:
            if (progress := self._active.get(attempt.launch.request)) is not None:
                progress.has_enough_in_flight = False
            if attempt.error is not None:
                self._failed.setdefault(attempt.launch.request, attempt.error)
        self._unjudged += [attempt for attempt in ended if attempt.launch.request not in self._failed]
        return self._book()

    def _draw(self) -> list[AttemptState]:
        """Launch attempts if there is room, otherwise advance the running ones; return those that ended."""
        moments = [progress.timeout for progress in self._active.values()]
        self._until = min((moment for moment in moments if moment > self._began), default=math.inf)
        for request, progress in self._active.items():
            self._begin_step(progress)
            if progress.round_is_over:
                with caught(self._failed, request):
                    self._narrow(progress)
            elif progress.may_be_diagnosed:
                with caught(self._failed, request):
                    self._diagnose(progress)
        # New attempts may end with their first token, which makes room for launches again and again. The running
        # attempts must still be advanced now and then.
        timeouts = [progress.request.spec.budget.timeout for progress in self._active.values()]
        shortest = min((timeout for timeout in timeouts if timeout is not None), default=None)
        if self._rounds < (LAUNCH_ROUNDS if shortest is None else 1) or not self.backend.running:
            launched = self._launched(shortest)
            if launched is not None:
                self._rounds += 1
                return launched
        if self.backend.running:
            self._rounds = 0
            return self.backend.advance()
        if self.aside is not None and not self._unjudged:
            self.aside.wait(PATIENCE)
        return []

    def _narrow(self, progress: RequestState) -> None:
        """Exclude what a round has shown to be rejected, in a thread if possible: it runs the model and many checks."""
        look = partial(progress.known, self.backend)
        result: Callable[[], Any] | None = look if self.aside is None else self.aside.search(progress.request, look)
        if result is not None:
            progress.narrow(result())

    def _diagnose(self, progress: RequestState) -> None:
        """Look for the reason why nothing satisfies a constraint, in a thread if possible."""
        look = partial(progress.diagnosed, self.backend)
        if self.aside is None:
            progress.conclude(look())
        elif (result := self.aside.search(progress.request, look)) is not None:
            diagnosis = result()
            # A request that ended while it was narrowed gets that answer first, which is of no use any more.
            if isinstance(diagnosis, Diagnosis):
                progress.conclude(diagnosis)
        elif progress.ended is not None and progress.inquiry.late:
            progress.conclude(Diagnosis())

    def _next_launches(self, most: int | None) -> list[Launch]:
        """Return at most so many attempts to launch: first a fair share per caller, then any more that are needed."""
        launches: list[Launch] = []
        room = self.backend.room
        self._sources = [source for source in self._sources if not source.over]
        if len(self._sources) > 1:
            self._begin_waiting()
        room = room if most is None else min(room, most)
        if not room:
            return launches
        lengths = dict(self.backend.lengths())
        for attempt in (*self._unjudged, *(() if self.aside is None else self.aside.attempts)):
            if attempt.whole:
                lengths.setdefault(attempt.launch.request, []).append(attempt.length)
        if len(self._sources) == 1:
            self._fill(self._sources[0], room, lengths, launches)
            return launches
        running = {source: sum(len(lengths.get(of, ())) for of in source.numbers) for source in self._sources}
        by_need = sorted(self._sources, key=running.__getitem__)
        share = max(1, (self.backend.running + room) // max(1, len(by_need)))
        for source in by_need:
            self._fill(source, min(share - running[source], room - len(launches)), lengths, launches)
        for source in by_need:
            self._fill(source, room - len(launches), lengths, launches)
        return launches

    def _begin_step(self, progress: RequestState) -> None:
        """Give a request its time in this step."""
        alone = len(self._active) == 1
        progress.allowance.begin(self._began, limited=self.shared, alone=alone, until=self._until)

    def _launched(self, shortest: float | None) -> list[AttemptState] | None:
        """Launch attempts, and return those that ended at once; None if there are none to launch.

        With timeouts, of which ``shortest`` is the shortest, they are so few that the step is soon over, and attempts
        advance after each such step. The first launch of a request computes its whole prompt, so these follow one by
        one, while there is time: with 64 callers, one step computed 32 prompts and took 7 seconds.
        """
        launched: list[AttemptState] | None = None
        self._new = None if shortest is None else False
        while True:
            launches = self._next_launches(None if shortest is None else self._most_launches(shortest))
            if launches:
                began = time.monotonic()
                launched = (launched or []) + self.backend.launch(launches)
                self._launch_seconds = (time.monotonic() - began) / len(launches)
            if shortest is None or (self._new and (not launches or self._is_long(shortest))):
                return launched
            self._new = True

    def _is_long(self, shortest: float) -> bool:
        """Return whether this step has taken its share of the shortest timeout."""
        return time.monotonic() - self._began >= STEP_SHARE * shortest

    def _most_launches(self, shortest: float) -> int:
        """Return how many attempts may be launched in a step, given the shortest timeout."""
        if self._launch_seconds is None:
            return FIRST_LAUNCHES
        return max(1, int(STEP_SHARE * shortest / max(self._launch_seconds, 1e-9)))

    def _begin_waiting(self) -> None:
        """Begin a request of each caller that has none in progress: its timeout may end before there is room."""
        for source in self._sources:
            if not source.numbers and (request := source.take()) is not None:
                self._begin(request, source)

    def _fill(
        self,
        source: RequestStream,
        room: int,
        lengths: Mapping[Any, list[int]],
        launches: list[Launch],
    ) -> None:
        """Add launches of one caller: a fair share per request in progress, then new requests, then any more needed.

        While there are new requests, no attempts are launched that may be surplus.
        """
        most = len(launches) + room
        new = Counter(launch.request for launch in launches)

        def more(progress: RequestState, share: int, *, surplus: bool) -> list[Launch]:
            # If a request had enough attempts in flight, it still has, as these only grow. Skipping it here saves time,
            # because hundreds of requests may wait at each step.
            request = progress.request
            if progress.has_enough_in_flight or request in self._failed:
                return []
            if self._new is not None and (self._new == bool(progress.order.launched) or (self._new and launches)):
                return []
            coming: list[Launch] = []
            with caught(self._failed, request):
                running = lengths.get(request, []) + [0] * new[request]
                coming = progress.launches(min(share, most - len(launches)), running, surplus=surplus)
            new[request] += len(coming)
            return coming

        under_way = [self._active[request] for request in source.numbers]
        under_way = [progress for progress in under_way if progress.ended is None]

        def spread(share: int, *, surplus: bool) -> None:
            for progress in under_way:
                if len(launches) < most and progress.ended is None:
                    launches.extend(more(progress, share, surplus=surplus))

        def fair() -> int:
            return max(1, (most - len(launches)) // max(1, len(under_way)))

        spread(fair(), surplus=False)
        while (
            len(launches) < most
            and self._new is not False
            and not (self._new and launches)
            and (request := source.take()) is not None
        ):
            self._begin(request, source)
            launches += more(self._active[request], room, surplus=False)
        spread(fair(), surplus=True)
        spread(room, surplus=True)

    def _begin(self, request: Request, source: RequestStream) -> None:
        """Begin a request. The results of a beam search are attempts that need no launch."""
        self._whose[request] = source
        progress = self._active[request] = RequestState(request, self.backend.mode)
        self._begin_step(progress)
        with caught(self._failed, request):
            # A user-defined constraint may not be hashable, which would raise later, while grouping many requests.
            hash(request.rule)
            if request.spec.budget.timeout is not None:
                self.aside = self.aside or CheckerPool()  # only in another thread can a check be left behind
            progress.sampler_state = request.spec.sampler.init()
            self._unjudged += progress.beam_attempts()

    def _ready(self) -> list[AttemptState]:
        """Return the attempts to judge now. Those for a classifier or a weigher wait until there is a batch of them."""
        costly = [attempt for attempt in self._unjudged if _is_costly(attempt)]
        if len(costly) >= JUDGED_TOGETHER or self._keeps_waiting(costly):
            ready, self._unjudged = self._unjudged, []
            return ready
        ready, self._unjudged = [each for each in self._unjudged if not _is_costly(each)], costly
        return ready

    def _keeps_waiting(self, costly: Sequence[AttemptState]) -> bool:
        """Return whether a caller has nothing else in flight, so that it would wait for other callers' attempts."""
        if not self.backend.running or not costly:
            return not self.backend.running
        running = {self._whose[request] for request in self.backend.lengths() if isinstance(request, Request)}
        return any(self._whose[attempt.launch.request] not in running for attempt in costly)

    def _judged(self) -> tuple[list[JudgedAttempt], Failures]:
        ready = self._ready()
        if self.aside is None:
            return judge_attempts(ready)
        slow = [attempt.whole and self._is_slow(attempt.launch.request) for attempt in ready]
        self.aside.take([attempt for attempt, is_slow in zip(ready, slow, strict=True) if is_slow])
        here = [attempt for attempt, is_slow in zip(ready, slow, strict=True) if not is_slow]
        items, failures = judge_attempts(here, within=lambda request: self._active[request].allowance.spent())
        for request in [request for request, error in failures.items() if isinstance(error, StepOver)]:
            del failures[request]
            self._active[request].slow = True
            self.aside.take([attempt for attempt in here if attempt.launch.request is request])
        others, failed = self.aside.judge_attempts()
        self.aside.tidy(self._active)
        return items + others, failures | failed

    def _is_slow(self, request: Request) -> bool:
        """Return whether judging a text of a request may take longer than other callers, or its timeout, can wait."""
        # with a timeout, an expensive part may load a classifier first
        loads = request.spec.budget.timeout is not None and request.spec.constraint.cost >= EXPENSIVE
        return request.runs_code or loads or self._active[request].slow

    def _book(self) -> list[Served]:
        """Judge attempts that ended, decide about them, and stop those that are no longer needed."""
        shares = {progress: max(1, progress.order.under_way) for progress in self._active.values()}
        items, failures = self._judged()
        # Errors of attempts that are still judged after their request has ended have no effect.
        failed = {of: error for of, error in {**failures, **self._failed}.items() if not self._is_closing(of)}
        self._failed = {}
        by_request: dict[Request, list[JudgedAttempt]] = {}
        for item in items:
            by_request.setdefault(item.attempt.launch.request, []).append(item)
        for request, its in by_request.items():
            if request not in failed and request in self._active:
                with caught(failed, request):
                    self._active[request].commit(its)
        now = time.monotonic()
        for progress in self._active.values():
            progress.time_out(now)
        took = now - self._began
        for progress, share in shares.items():
            progress.seconds += took * share / sum(shares.values())
        over = {of for of, progress in self._active.items() if progress.ended is not None or of in failed}
        if over:
            for attempt in self.backend.cancel(lambda launch: launch.request in over):
                self._active[attempt.launch.request].discard(attempt)
            self._unjudged = [attempt for attempt in self._unjudged if attempt.launch.request not in over]
            self._drop(over)
        closing = [of for of in over if of in failed or not self._active[of].inquires()]
        return self._closed({of: failed.get(of) for of in self._active if of in closing})

    def _is_closing(self, request: Request) -> bool:
        """Return whether a request has ended, and waits for a thread before its outcome is returned."""
        progress = self._active.get(request)
        return progress is not None and progress.ended is not None and progress.waits_for_thread

    def _lost(self, error: Exception) -> list[Served]:
        """End the requests whose attempts were lost with the backend's error; raise the error if there are none."""
        self.backend.cancel(lambda launch: True)
        self._unjudged = []
        lost = [of for of, progress in self._active.items() if progress.order.under_way and progress.ended is None]
        if not lost:
            raise error
        return self._closed(dict.fromkeys(lost, error))

    def _closed(self, errors: Mapping[Request, Exception | None]) -> list[Served]:
        """Close requests, with the error that each has or None. Those that are followed up are not served yet."""
        served = [self._close(request, error) for request, error in errors.items()]
        return [each for each in served if each is not None]

    def _close(self, request: Request, error: Exception | None) -> Served | None:
        """Close a request. Returns None if another one follows it up, or if a thread still makes that one."""
        progress = self._active[request]
        if isinstance(error, ContextExceeded) and request.earlier is not None and not progress.accepted:
            # Only an endpoint itself knows that the chat of a repair turn is too long: the turns end before it.
            error, progress.outcome, progress.rejected = None, request.earlier[1], None
        failed: Failures = {} if error is None else {request: error}
        outcome = progress.outcome if not failed else None
        outcome = outcome or _outcome(progress, failed)
        following: _Following | None = _Following(None)
        if not failed and not outcome.ok and request.follow_up is not None and progress.rejected is not None:
            progress.outcome = outcome
            with caught(failed, request):
                following = self._follow_up(progress, partial(request.follow_up, request, outcome, progress.rejected))
            if following is None:
                return None
        del self._active[request]
        source = self._whose.pop(request)
        number = source.numbers.pop(request)
        if following is not None and following.request is not None:
            source.numbers[following.request] = number
            self._begin(following.request, source)
            return None
        if not failed and request.hooks.on_end is not None:
            with caught(failed, request):
                request.hooks.on_end(request.first, outcome)
        if not failed and not request.spec.sampler.records and logger.isEnabledFor(logging.INFO):
            report = outcome.report
            advice = "" if outcome.ok else f"; {report.advice()}"
            logger.info("prompt %d: %s%s", request.prompt.number + 1, report.headline(), advice)
        unfinished: list[tuple[int, Outcome]] = []
        if failed:
            others = ((its, self._active[of]) for of, its in source.numbers.items())
            begun = [(its, other) for its, other in others if other.accepted or other.request.earlier is not None]
            so_far = [(its, _outcome(other, {})) for its, other in begun]
            unfinished = [(its, each) for its, each in so_far if each.texts]
        return Served(source, number, request.first, outcome, failed.get(request), tuple(unfinished))

    def _follow_up(self, progress: RequestState, look: Callable[[], Request | None]) -> _Following | None:
        """Return what follows up a request; None while a thread makes it.

        It tokenizes a longer prompt and asks the constraint for its reasons, which takes too long for a step.
        """
        if self.aside is None:
            return _Following(look())
        if progress.is_timed_out(time.monotonic()):
            return _Following(None)
        while (result := self.aside.search(progress.request, lambda: _Following(look()))) is not None:
            # A request that ended while it was narrowed gets that answer first, which is of no use any more.
            if isinstance(answer := result(), _Following):
                return answer
        return None


class caught:  # noqa: N801  # reads as a function
    """A context that records an error in its body as the failure of one request, and suppresses it."""

    def __init__(self, failures: Failures, request: Request) -> None:
        self._failures, self._request = failures, request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self._failures.setdefault(self._request, own_error(error))
        return error is not None


def _outcome(progress: RequestState, failures: Failures) -> Outcome:
    """Return the outcome of a request, with a reduced report if its sampler, weigher or constraint raises."""
    earlier = None if progress.request.earlier is None else progress.request.earlier[1]
    with caught(failures, progress.request):
        return with_earlier(earlier, outcome_of(progress))
    return with_earlier(earlier, outcome_of(progress, asked=False))


def _is_costly(attempt: AttemptState) -> bool:
    request: Request = attempt.launch.request
    return request.spec.constraint.cost >= EXPENSIVE or request.drawing.weigh is not None
