"""Launching attempts of many requests and deciding about them: fair shares, launch order, errors where they belong."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from guardwrap.draws import Outcome
from guardwrap.errors import GuardwrapError
from guardwrap.scheduling.account import Account, Judged
from guardwrap.scheduling.backend import Backend, Decoded, Launch
from guardwrap.scheduling.judging import judged
from guardwrap.scheduling.request import Request

__all__ = ["Scheduler", "Served", "in_order"]

logger = logging.getLogger("guardwrap")

WINDOW = 4
"""Requests under way at once, in batches: those behind a hard one are finished meanwhile, in bounded memory."""

COSTLY = 2
"""``Constraint.cost`` from which attempts that ended are judged in batches …"""

JUDGED_TOGETHER = 16
"""… of this many, or as many as there are when nothing else is left to do."""

LAUNCH_ROUNDS = 32
"""Rounds of launches in a row before the attempts that run are advanced by a token. Where most attempts are over before
the model is run, 4 rounds took 98 passes for a constraint that one attempt in 2 000 satisfies; 32 rounds take 33."""


@dataclass(frozen=True, slots=True)
class Served:
    """A request that has ended.

    Parameters
    ----------
    number
        Its place in the order in which requests were taken, from 0.
    request
        The request.
    outcome
        What it got, also before an error.
    error
        What ended it, or None.
    """

    number: int
    request: Request
    outcome: Outcome
    error: Exception | None = None


class Scheduler:
    """Draws for requests until each has its texts or has spent its budget. They end in any order.

    Parameters
    ----------
    backend
        Draws attempts.
    upcoming
        Requests that are taken as there is room for them, after those that were submitted.
    window
        Requests under way at once, at most.

    Attributes
    ----------
    window : int
        May be changed while it runs.
    failure : Exception or None
        What ``upcoming`` raised: nothing more is taken from it.
    """

    def __init__(self, backend: Backend, upcoming: Iterable[Request] = (), *, window: int) -> None:
        self.backend = backend
        self.failure: Exception | None = None
        self._upcoming = iter(upcoming)
        self._exhausted = False
        self.window = window
        self._submitted: deque[Request] = deque()
        self._callers = False  # whether requests were submitted, and not just taken one after the other
        self._active: dict[Request, Account] = {}
        self._numbers: dict[Request, int] = {}
        self._taken = 0
        self._unjudged: list[Decoded] = []
        self._failed: dict[Request, Exception] = {}
        self._rounds = 0  # of launches in a row
        self._began = 0.0  # this step

    def submit(self, request: Request) -> None:
        """Add a request; it begins when there is room, whatever those under way still want."""
        self._callers = True
        self._submitted.append(request)

    def cancel(self, request: Request) -> None:
        """Forget a request; its attempts leave the batch at once."""
        if request in self._submitted:
            self._submitted.remove(request)
        if self._active.pop(request, None) is not None:
            self._numbers.pop(request)
            self.backend.cancel(lambda launch: launch.request is request)
            self._unjudged = [attempt for attempt in self._unjudged if attempt.launch.request is not request]

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return self._exhausted and not self._active and not self._submitted

    def unfinished(self) -> list[tuple[int, Outcome]]:
        """Return what requests under way have got so far, where they have got something."""
        return [(self._numbers[of], account.outcome()) for of, account in self._active.items() if account.accepted]

    def step(self) -> list[Served]:
        """Launch attempts where there is room, or else draw a token for those that run; return who has ended."""
        self._began = time.monotonic()
        try:
            ended = self._drawn()
        except Exception as error:  # nothing runs any more: of no request that had attempts there can be more
            return self._lost(error)
        for attempt in ended:
            if attempt.error is not None:
                self._failed.setdefault(attempt.launch.request, attempt.error)
        self._unjudged += [attempt for attempt in ended if attempt.launch.request not in self._failed]
        return self._book()

    def _drawn(self) -> list[Decoded]:
        launches: list[Launch] = []
        found: list[Decoded] = []
        for request, account in self._active.items():
            if account.due:
                try:
                    account.narrow(self.backend)
                except Exception as error:
                    self._failed[request] = error
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
        return found

    def _next_launches(self) -> tuple[list[Launch], list[Decoded]]:
        """Fill the room: a fair share for each request under way, then new ones, then whoever still needs more."""
        launches: list[Launch] = []
        found: list[Decoded] = []
        room = self.backend.room
        if not room:
            return launches, found
        lengths = dict(self.backend.lengths())
        for attempt in self._unjudged:
            if attempt.whole:
                lengths.setdefault(attempt.launch.request, []).append(len(attempt.token_ids))

        def more(account: Account, most: int) -> list[Launch]:
            request = account.request
            new = sum(launch.request is request for launch in launches)
            return account.launches(most, lengths.get(request, []) + [0] * new)

        under_way = [account for account in self._active.values() if account.ended is None]
        share = max(1, room // max(1, len(under_way)))
        kept = 0  # for those that were submitted and have not begun
        if self._callers:
            # Of several callers none waits for another's end: whoever has the fewest attempts running comes first.
            under_way.sort(key=lambda account: len(lengths.get(account.request, ())))
            each = (self.backend.running + room) // (len(under_way) + len(self._submitted)) if self._submitted else 0
            kept = min(room, len(self._submitted) * max(1, each))
        for account in under_way:
            if len(launches) < room - kept:
                launches += more(account, min(share, room - kept - len(launches)))
        while len(launches) < room and len(self._active) < self.window and (request := self._take()):
            account = self._begun(request)
            if request in self._failed:
                continue
            if request.prompt.law.found is None:
                waiting = len(self._submitted)  # each of which gets something too
                launches += account.launches(max(1, (room - len(launches)) // (waiting + 1)), ())
            else:
                found += account.found()
        for account in under_way:
            if len(launches) < room and account.ended is None:
                launches += more(account, room - len(launches))
        return launches, found

    def _begun(self, request: Request) -> Account:
        account = self._active[request] = Account(request, self.backend.mode)
        try:
            account.state = request.sampler.init()
        except Exception as error:
            self._failed[request] = error
        return account

    def _take(self) -> Request | None:
        """Return the next request, if there is one."""
        request = self._submitted.popleft() if self._submitted else None
        if request is None and not self._exhausted:
            try:
                request = next(self._upcoming, None)
            except Exception as error:  # the user's generator too
                self.failure = error
            self._exhausted = request is None
        if request is not None:
            self._numbers[request] = self._taken
            self._taken += 1
        return request

    def _ready(self) -> list[Decoded]:
        """Take the attempts that are judged now: a classifier wants company, and so do texts to be weighed."""
        costly = [attempt for attempt in self._unjudged if _is_costly(attempt)]
        if len(costly) >= JUDGED_TOGETHER or not self.backend.running:
            ready, self._unjudged = self._unjudged, []
            return ready
        ready, self._unjudged = [each for each in self._unjudged if not _is_costly(each)], costly
        return ready

    def _book(self) -> list[Served]:
        """Judge attempts that ended, decide about them, and stop those that are not needed any more."""
        shares = {account: max(1, account.under_way) for account in self._active.values()}
        items, failures = judged(self._ready())
        failed = {**failures, **self._failed}
        self._failed = {}
        by_request: dict[Request, list[Judged]] = {}
        for item in items:
            by_request.setdefault(item.decoded.launch.request, []).append(item)
        for request, its in by_request.items():
            if request not in failed:
                try:
                    self._active[request].commit(its)
                except Exception as error:  # of a sampler
                    failed[request] = error
        took = time.monotonic() - self._began
        for account, share in shares.items():
            account.seconds += took * share / sum(shares.values())
        over = {of for of, account in self._active.items() if account.ended is not None or of in failed}
        if over:
            for decoded in self.backend.cancel(lambda launch: launch.request in over):
                self._active[decoded.launch.request].discard(decoded)
            self._unjudged = [attempt for attempt in self._unjudged if attempt.launch.request not in over]
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
        account = self._active.pop(request)
        return Served(self._numbers.pop(request), request, account.outcome(), error)


def _is_costly(attempt: Decoded) -> bool:
    request: Request = attempt.launch.request
    return request.constraint.cost >= COSTLY or request.weigh is not None


def in_order(scheduler: Scheduler) -> Iterator[tuple[Request, Outcome]]:
    """Serve all requests of a scheduler.

    Yields
    ------
    Request, Outcome
        In the order in which they were taken.

    Raises
    ------
    Exception
        What the first request that failed has raised, at once; an error's ``outcomes`` keep what others have got.
        What taking a request raised, once those before it are done.
    """
    done: dict[int, Served] = {}
    following, window = 0, scheduler.window
    while not scheduler.idle:
        scheduler.window = window - len(done)  # those that wait for their turn take memory too
        for served in scheduler.step():
            done[served.number] = served
            if served.error is not None:
                raise _with_outcomes(served.error, [*done.values()], scheduler.unfinished())
        while following in done:
            served = done.pop(following)
            following += 1
            yield served.request, served.outcome
    if scheduler.failure is not None:
        raise scheduler.failure


def _with_outcomes(error: Exception, done: Sequence[Served], unfinished: Sequence[tuple[int, Outcome]]) -> Exception:
    """Keep what requests further on have got already."""
    if isinstance(error, GuardwrapError):
        ended = [(each.number, each.outcome) for each in done if each.error is None or each.outcome.texts]
        error.outcomes = tuple(outcome for _, outcome in sorted([*ended, *unfinished], key=lambda pair: pair[0]))
    return error
