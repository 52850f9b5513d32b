"""One batch for all concurrent callers of a model: a caller joins it for the time of its call.

A single caller runs the scheduler itself, in its own thread, so that no data passes between threads and an interrupt
reaches it directly. With two or more callers, a thread of the batch runs the scheduler, and callers wait for their
results. Both give the same texts, because random numbers depend only on the request.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from weakref import WeakSet

from guardwrap.engine.scheduling.backend import Backend
from guardwrap.engine.scheduling.judging import CheckerPool
from guardwrap.engine.scheduling.request import OnBusy, OrderedDelivery, Request, RequestStream, Served
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.errors import own_error
from guardwrap.outcomes import Outcome
from guardwrap.support.threads import started

STILL_BUSY = 0.02
"""Seconds between two checks whether anything is still computed for callers that have left."""


class _Call:
    """One caller in a batch. ``wake`` is called from another thread when there are results, an error or the end."""

    def __init__(self, source: RequestStream, wake: Callable[[], None], on_busy: OnBusy | None = None) -> None:
        self.source = source
        self.wake = wake
        self.on_busy = on_busy
        self.inbox: list[Served] = []
        self.over = False
        self.error: BaseException | None = None

    def taken(self) -> list[Served] | None:
        """Return the requests that ended since the last call; None if none are left."""
        if self.error is not None:
            raise self.error
        ended, self.inbox = self.inbox, []
        return ended if ended or not self.over else None


class _Batch:
    """A scheduler, its callers, and the thread that runs it. Everything except the steps is done under the lock."""

    def __init__(self, make_backend: Callable[[], Backend], lock: threading.RLock) -> None:
        self._make_backend = make_backend
        self._scheduler: Scheduler | None = Scheduler(make_backend())  # None after it failed, until there is another
        self._changed = threading.Condition(lock)
        self._calls: dict[RequestStream, _Call] = {}
        self._coming: list[RequestStream] = []
        self._going: list[_Call] = []
        self._gone: list[tuple[OnBusy, frozenset[Request]]] = []  # callers that left while a thread may still compute
        self._driven = False

    @property
    def rows(self) -> int:
        """Number of attempts in flight."""
        return 0 if self._scheduler is None else self._scheduler.backend.running

    def join(self, call: _Call) -> None:
        """Add a caller, from the next step on."""
        if call.on_busy is not None:
            call.on_busy(True)
        self._calls[call.source] = call
        self._coming.append(call.source)
        self._changed.notify_all()

    def leave(self, call: _Call) -> bool:
        """Remove a caller, whether its requests have ended or not; return whether it was the last one."""
        self._calls.pop(call.source, None)
        self._going.append(call)
        self._changed.notify_all()
        if not self._driven:
            self._release(call.on_busy)
            call.on_busy = None
        return not self._calls

    def step_alone(self, call: _Call) -> bool:
        """Run a step in the caller's thread if it is the only caller; return whether it was."""
        with self._changed:
            if self._driven or len(self._calls) > 1:
                self.drive()
                return False
            self._driven = True
        ended: list[Served] | None = None
        try:
            with self._changed:
                scheduler = self._admit()
            ended = scheduler.step()
        finally:
            with self._changed:
                self._driven = False
                if ended is None:  # interrupted: the state may be inconsistent, and has no other caller's requests
                    self._scheduler = None
                else:
                    self._deliver(ended)
                if len(self._calls) > 1:
                    self.drive()
        return True

    def drive(self) -> None:
        """Have the batch's own thread run the scheduler from now on."""
        if not self._driven:
            self._driven = True
            _driven.add(self)
            started(self._run, name="guardwrap-batch")

    def close(self) -> None:
        """Drop all callers, because the process exits."""
        with self._changed:
            self._calls.clear()
            self._gone.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            try:
                with self._changed:
                    if not self._calls and not self._going and not self._gone:
                        self._driven = False
                        return
                    scheduler = self._admit()
                    scheduler.aside, scheduler.shared = scheduler.aside or CheckerPool(), True
                    if scheduler.idle:
                        self._let_go(scheduler.aside)
                        if self._calls or self._gone:
                            self._changed.wait(STILL_BUSY if self._gone else None)
                        continue
                    self._let_go(scheduler.aside)
                ended = scheduler.step()
            except BaseException as error:  # raised by the backend, not by a request
                with self._changed:
                    self._fail(error)
                continue
            with self._changed:
                self._deliver(ended)

    def _admit(self) -> Scheduler:
        """Remove callers that left, add those that joined, and return the scheduler, replaced if it had failed."""
        if self._scheduler is None:
            self._scheduler = Scheduler(self._make_backend())
        going, self._going = self._going, []
        for call in going:
            if call.on_busy is not None and self._driven:
                self._gone.append((call.on_busy, frozenset(call.source.numbers)))
        for call in going:
            self._scheduler.remove(call.source)
        left = {call.source for call in going}
        coming, self._coming = self._coming, []
        for source in coming:
            if source not in left:
                self._scheduler.add(source)
        return self._scheduler

    def _let_go(self, aside: CheckerPool | None) -> None:
        """Notify callers that left and for which no thread computes anything any more."""
        gone, self._gone = self._gone, []
        for on_busy, requests in gone:
            if aside is not None and aside.busy(requests):
                self._gone.append((on_busy, requests))
            else:
                self._release(on_busy)

    @staticmethod
    def _release(on_busy: OnBusy | None) -> None:
        if on_busy is not None:
            with suppress(Exception):  # the caller has left, so nobody could handle an error of its callback
                on_busy(False)

    def _deliver(self, ended: Sequence[Served]) -> None:
        with_results = set()
        for served in ended:
            if served.source in self._calls:
                self._calls[served.source].inbox.append(served)
                served.source.window -= 1  # outcomes that are not fetched yet take memory too
                with_results.add(served.source)
        for source, call in self._calls.items():
            if source in with_results or (source.over and not call.over):
                call.over = source.over
                call.wake()

    def _fail(self, error: BaseException) -> None:
        """Raise the error in the callers in the scheduler, or in all callers if no scheduler could be created."""
        waiting = [] if self._scheduler is None else self._coming
        error = own_error(error)  # so that e.g. SystemExit does not end a caller's thread or task
        for call in self._calls.values():
            if call.source not in waiting:
                call.error = error
                call.wake()
        self._coming = list(waiting)
        self._scheduler = None
        self._let_go(None)


_driven: WeakSet[_Batch] = WeakSet()


@atexit.register
def _end() -> None:
    """Have batches finish with their current step, for which the exit of the process waits."""
    for batch in list(_driven):
        batch.close()


class Batches:
    """The batches of a wrapper, one for each model in use. A batch exists as long as it has callers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: dict[Hashable, _Batch] = {}

    def __reduce__(self) -> tuple[type[Batches], tuple[()]]:
        """Copy or pickle without the callers: a copy of a wrapper starts with none."""
        return Batches, ()

    @property
    def rows(self) -> int:
        """Number of attempts in flight in all batches."""
        with self._lock:
            return sum(batch.rows for batch in self._open.values())

    def _join(self, key: Hashable, make_backend: Callable[[], Backend], call: _Call) -> _Batch:
        with self._lock:
            batch = self._open.get(key)
            if batch is None:
                batch = self._open[key] = _Batch(make_backend, self._lock)
            batch.join(call)
            return batch

    def _leave(self, key: Hashable, call: _Call) -> None:
        with self._lock:
            if self._open[key].leave(call):
                del self._open[key]

    def serve(
        self, key: Hashable, make_backend: Callable[[], Backend], requests: Iterable[Request], *, window: int
    ) -> Iterator[tuple[Request, Outcome]]:
        """Serve the requests of one caller, in a batch with those of other callers."""
        news = threading.Event()
        call = _Call(RequestStream(requests, window), news.set)
        order = OrderedDelivery(call.source)
        batch = self._join(key, make_backend, call)
        try:
            while True:
                news.clear()
                with self._lock:
                    ended = call.taken()
                if ended is None:
                    break
                if ended:
                    yield from order.put(ended)
                elif not batch.step_alone(call):
                    news.wait()
            order.end()
        finally:
            self._leave(key, call)

    async def aserve(
        self,
        key: Hashable,
        make_backend: Callable[[], Backend],
        requests: Iterable[Request],
        *,
        window: int,
        on_busy: OnBusy | None = None,
    ) -> AsyncGenerator[tuple[Request, Outcome], None]:
        """Serve the requests of one caller in an event loop, without blocking it; see ``serve``.

        ``on_busy`` is called with True when the call joins the batch, and with False when nothing is computed for it
        any more, which may be after this generator was closed.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits for the event
                loop.call_soon_threadsafe(news.set)

        call = _Call(RequestStream(requests, window), wake, on_busy)
        order = OrderedDelivery(call.source)
        batch = self._join(key, make_backend, call)
        try:
            while True:
                news.clear()
                with self._lock:
                    batch.drive()
                    ended = call.taken()
                if ended is None:
                    break
                for item in order.put(ended):
                    yield item
                if not ended:
                    await news.wait()
            order.end()
        finally:
            self._leave(key, call)
