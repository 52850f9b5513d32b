"""Launching attempts of many requests and deciding about them: fair shares, launch order, errors where they belong."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from guardwrap.constraints.base import EXPENSIVE
from guardwrap.documents.time_limits import StepOver
from guardwrap.errors import own_error
from guardwrap.outcomes import Outcome
from guardwrap.scheduling.backend import AttemptState, Backend, Launch
from guardwrap.scheduling.checker_pool import CheckerPool
from guardwrap.scheduling.judge_attempts import Failures, judge_attempts
from guardwrap.scheduling.request import Request
from guardwrap.scheduling.request_state import JudgedAttempt, RequestState
from guardwrap.scheduling.request_stream import OrderedDelivery, RequestStream, Served

__all__ = ["WINDOW", "Scheduler"]

logger = logging.getLogger("guardwrap")

WINDOW = 4
"""Requests of one caller under way at once, in batches: those behind a hard one are finished meanwhile, in bounded
memory."""

JUDGED_TOGETHER = 16
"""Attempts with a costly constraint are judged when there are so many, or when nothing else is left to do."""

PATIENCE = 0.02
"""Seconds that a step waits for what is judged aside, where nothing else is left to do."""

LAUNCH_ROUNDS = 32
"""Rounds of launches in a row before the attempts that run are advanced by a token. Where most attempts are over before
the model is run, 4 rounds took 98 passes for a constraint that one attempt in 2 000 satisfies; 32 rounds take 33."""


class Scheduler:
    """Draws for requests until each has its texts or has spent its budget. They end in any order.

    Requests come from sources, one a caller. Those of one source are begun in their order; of several sources each gets
    a fair share, and none waits for another's end.

    Parameters
    ----------
    backend
        Draws attempts.

    Attributes
    ----------
    aside : Aside or None
        Where texts are judged by the user's own code; None judges them between two steps, so that all wait for it.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.aside: CheckerPool | None = None
        self._sources: list[RequestStream] = []
        self._whose: dict[Request, RequestStream] = {}
        self._active: dict[Request, RequestState] = {}
        self._unjudged: list[AttemptState] = []
        self._failed: Failures = {}
        self._rounds = 0  # of launches in a row
        self._began = 0.0  # this step

    def add(self, source: RequestStream) -> None:
        """Serve the requests of one more caller."""
        self._sources.append(source)

    def remove(self, source: RequestStream) -> None:
        """Forget a caller; attempts of its requests leave the batch at once."""
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
        """Serve the requests of one caller, alone.

        Yields
        ------
        Request, Outcome
            In the order in which they were taken.

        Raises
        ------
        Exception
            What the first request that failed has raised, at once. What taking a request raised, once those before it
            are done.
        """
        source = RequestStream(requests, window)
        self.add(source)
        order = OrderedDelivery(source)
        while not source.over:
            yield from order.put(self.step())
        order.end()

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return all(source.over for source in self._sources)

    def step(self) -> list[Served]:
        """Launch attempts where there is room, or else draw a token for those that run; return who has ended."""
        self._began = time.monotonic()
        try:
            ended = self._drawn()
        except BaseException as error:  # nothing runs any more: of no request that had attempts there can be more
            return self._lost(own_error(error))
        for attempt in ended:
            if (account := self._active.get(attempt.launch.request)) is not None:
                account.has_enough_in_flight = False
            if attempt.error is not None:
                self._failed.setdefault(attempt.launch.request, attempt.error)
        self._unjudged += [attempt for attempt in ended if attempt.launch.request not in self._failed]
        return self._book()

    def _drawn(self) -> list[AttemptState]:
        launches: list[Launch] = []
        found: list[AttemptState] = []
        for request, account in self._active.items():
            account.allowance.begin(self._began, limited=self.aside is not None)
            if account.round_is_over:
                with caught(self._failed, request):
                    self._narrow(account)
        # An attempt may end with its first token and make room again before the model is run; those that run must
        # get on all the same.
        if self._rounds < LAUNCH_ROUNDS or not self.backend.running:
            launches, found = self._next_launches()
        if launches:
            self._rounds += 1
            return found + self.backend.launch(launches)
        if self.backend.running:
            self._rounds = 0
            return found + self.backend.advance()
        if self.aside is not None and not found:
            self.aside.wait(PATIENCE)
        return found

    def _narrow(self, account: RequestState) -> None:
        """Leave out what a round has shown to be rejected. That takes the model and many verdicts: aside, if may be."""
        look = partial(account.known, self.backend)
        found: Callable[[], Any] | None = look if self.aside is None else self.aside.search(account.request, look)
        if found is not None:
            account.narrow(found())

    def _next_launches(self) -> tuple[list[Launch], list[AttemptState]]:
        """Fill the room: a fair share for each caller, those with the fewest attempts first, then who needs more."""
        launches: list[Launch] = []
        found: list[AttemptState] = []
        room = self.backend.room
        self._sources = [source for source in self._sources if not source.over]
        if not room:
            return launches, found
        lengths = dict(self.backend.lengths())
        for attempt in (*self._unjudged, *(() if self.aside is None else self.aside.attempts)):
            if attempt.whole:
                lengths.setdefault(attempt.launch.request, []).append(attempt.length)
        if len(self._sources) == 1:
            self._fill(self._sources[0], room, lengths, launches, found)
            return launches, found
        running = {source: sum(len(lengths.get(of, ())) for of in source.numbers) for source in self._sources}
        by_need = sorted(self._sources, key=running.__getitem__)
        share = max(1, (self.backend.running + room) // max(1, len(by_need)))
        for source in by_need:
            self._fill(source, min(share - running[source], room - len(launches)), lengths, launches, found)
        for source in by_need:
            self._fill(source, room - len(launches), lengths, launches, found)
        return launches, found

    def _fill(
        self,
        source: RequestStream,
        room: int,
        lengths: Mapping[Any, list[int]],
        launches: list[Launch],
        found: list[AttemptState],
    ) -> None:
        """Fill a caller's room: a fair share for each request under way, then new ones, then who still needs more."""
        most = len(launches) + room
        new = Counter(launch.request for launch in launches)

        def more(account: RequestState, most: int) -> list[Launch]:
            # Those on their way only get further: what was enough is enough. Hundreds of requests wait at each step.
            request = account.request
            if account.has_enough_in_flight or request in self._failed:
                return []
            coming: list[Launch] = []
            with caught(self._failed, request):
                coming = account.launches(most, lengths.get(request, []) + [0] * new[request])
            new[request] += len(coming)
            return coming

        under_way = [self._active[request] for request in source.numbers]
        under_way = [account for account in under_way if account.ended is None]
        share = max(1, room // max(1, len(under_way)))
        for account in under_way:
            if len(launches) < most:
                launches += more(account, min(share, most - len(launches)))
        while len(launches) < most and (request := source.take()) is not None:
            self._whose[request] = source
            account = self._begun(request)
            if request in self._failed:
                continue
            if request.prompt.law.beam_results is None:
                launches += more(account, most - len(launches))
            else:
                with caught(self._failed, request):
                    found += account.found()
        for account in under_way:
            if len(launches) < most and account.ended is None:
                launches += more(account, most - len(launches))

    def _begun(self, request: Request) -> RequestState:
        account = self._active[request] = RequestState(request, self.backend.mode)
        account.allowance.begin(self._began, limited=self.aside is not None)
        with caught(self._failed, request):
            # A constraint of the user's own may have no spelling, and is a key where attempts of many are grouped.
            hash(request.rule), request.runs_code
            account.state = request.sampler.init()
        return account

    def _ready(self) -> list[AttemptState]:
        """Take the attempts that are judged now: a classifier wants company, and so do texts to be weighed."""
        costly = [attempt for attempt in self._unjudged if _is_costly(attempt)]
        if len(costly) >= JUDGED_TOGETHER or self._keeps_waiting(costly):
            ready, self._unjudged = self._unjudged, []
            return ready
        ready, self._unjudged = [each for each in self._unjudged if not _is_costly(each)], costly
        return ready

    def _keeps_waiting(self, costly: Sequence[AttemptState]) -> bool:
        """Say whether a caller has nothing else on its way: what others have may go on for ever."""
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
        """Whether judging a text of a request may take longer than others can wait."""
        return request.runs_code or self._active[request].slow

    def _book(self) -> list[Served]:
        """Judge attempts that ended, decide about them, and stop those that are not needed any more."""
        shares = {account: max(1, account.under_way) for account in self._active.values()}
        items, failures = self._judged()
        failed = {**failures, **self._failed}
        self._failed = {}
        by_request: dict[Request, list[JudgedAttempt]] = {}
        for item in items:
            by_request.setdefault(item.decoded.launch.request, []).append(item)
        for request, its in by_request.items():
            if request not in failed and request in self._active:
                with caught(failed, request):
                    self._active[request].commit(its)
        took = time.monotonic() - self._began
        for account, share in shares.items():
            account.seconds += took * share / sum(shares.values())
        over = {of for of, account in self._active.items() if account.ended is not None or of in failed}
        if over:
            for decoded in self.backend.cancel(lambda launch: launch.request in over):
                self._active[decoded.launch.request].discard(decoded)
            self._unjudged = [attempt for attempt in self._unjudged if attempt.launch.request not in over]
            self._drop(over)
        return [self._close(request, failed.get(request)) for request in list(self._active) if request in over]

    def _lost(self, error: Exception) -> list[Served]:
        """End the requests whose attempts were lost with the backend's error; raise it where there are none."""
        self.backend.cancel(lambda launch: True)
        self._unjudged = []
        lost = [request for request, account in self._active.items() if account.under_way]
        if not lost:
            raise error
        return [self._close(request, error) for request in lost]

    def _close(self, request: Request, error: Exception | None) -> Served:
        account, source = self._active.pop(request), self._whose.pop(request)
        number = source.numbers.pop(request)
        failed: Failures = {} if error is None else {request: error}
        outcome = _outcome(account, failed)
        if not failed and request.on_end is not None:
            with caught(failed, request):
                request.on_end(request, outcome)
        unfinished: list[tuple[int, Outcome]] = []
        if failed:
            others = ((its, self._active[of]) for of, its in source.numbers.items())
            unfinished = [(its, _outcome(other, {})) for its, other in others if other.accepted]
        return Served(source, number, request, outcome, failed.get(request), tuple(unfinished))


class caught:  # noqa: N801  # reads as a function
    """Put down what this context raises as what its request failed with: it ends that request, and no other.

    Parameters
    ----------
    failures
        Where it is put down; what a request failed with first stands.
    request
        Whose it is.
    """

    def __init__(self, failures: Failures, request: Request) -> None:
        self._failures, self._request = failures, request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self._failures.setdefault(self._request, own_error(error))
        return error is not None


def _outcome(account: RequestState, failures: Failures) -> Outcome:
    """Return what a request got, also where its own sampler cannot say what that is worth."""
    with caught(failures, account.request):
        return account.outcome()
    return account.outcome(asked=False)


def _is_costly(attempt: AttemptState) -> bool:
    request: Request = attempt.launch.request
    return request.constraint.cost >= EXPENSIVE or request.weigh is not None
