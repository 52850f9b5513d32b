"""One batch for all callers of a model: whoever comes while it runs joins it, and leaves it when done.

A caller that is alone drives the scheduler itself, in its own thread: nothing changes hands, and an interrupt is its
own. As soon as there are two, the batch's own thread drives, and callers wait for what is theirs. The same texts come
of both, because randomness belongs to a request.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from guardwrap.errors import own_error
from guardwrap.outcomes import Outcome
from guardwrap.scheduling.backend import Backend
from guardwrap.scheduling.checker_pool import CheckerPool
from guardwrap.scheduling.request import Request
from guardwrap.scheduling.request_stream import OrderedDelivery, RequestStream, Served
from guardwrap.scheduling.scheduler import Scheduler

__all__ = ["Batches", "OnBusy"]

STILL_BUSY = 0.02
"""Seconds after which it is looked again whether something is still computed for those who have left."""

LAST_STEP = 30.0
"""Seconds that the end of a process waits for the step that runs."""


OnBusy = Callable[[bool], None]
"""Told True when a caller joins a batch, and False when nothing is computed for it any more: it may have left before
that, in the middle of a step."""


class _Call:
    """One caller's place in a batch. ``wake`` is called from another thread when there is something new."""

    def __init__(self, source: RequestStream, wake: Callable[[], None], on_busy: OnBusy | None = None) -> None:
        self.source = source
        self.wake = wake
        self.on_busy = on_busy
        self.inbox: list[Served] = []
        self.over = False
        self.error: BaseException | None = None

    def taken(self) -> list[Served] | None:
        """Return what was served since it was asked last; None when that was all."""
        if self.error is not None:
            raise self.error
        ended, self.inbox = self.inbox, []
        return ended if ended or not self.over else None


class _Batch:
    """A scheduler, its callers, and who drives it. Everything is done under the lock, but for the steps themselves."""

    def __init__(self, make_backend: Callable[[], Backend], lock: threading.RLock) -> None:
        self._make_backend = make_backend
        self._scheduler: Scheduler | None = Scheduler(make_backend())  # None after it failed, until there is another
        self._changed = threading.Condition(lock)
        self._calls: dict[RequestStream, _Call] = {}
        self._coming: list[RequestStream] = []
        self._going: list[_Call] = []
        self._gone: list[tuple[OnBusy, frozenset[Request]]] = []  # for whom something may still be computed
        self._driven = False

    @property
    def rows(self) -> int:
        """Attempts that hold a row now."""
        return 0 if self._scheduler is None else self._scheduler.backend.running

    def join(self, call: _Call) -> None:
        """Take a caller in, from its next step on."""
        if call.on_busy is not None:
            call.on_busy(True)
        self._calls[call.source] = call
        self._coming.append(call.source)
        self._changed.notify_all()

    def leave(self, call: _Call) -> bool:
        """Let a caller go, served or not; return whether it was the last one."""
        self._calls.pop(call.source, None)
        self._going.append(call)
        self._changed.notify_all()
        if not self._driven:
            self._release(call.on_busy)
            call.on_busy = None
        return not self._calls

    def step_alone(self, call: _Call) -> bool:
        """Make a step for a caller that is alone; return whether it was."""
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
                if ended is None:  # interrupted: what it left may be half done, and nobody else's is in it
                    self._scheduler = None
                else:
                    self._deliver(ended)
                if len(self._calls) > 1:
                    self.drive()
        return True

    def drive(self) -> None:
        """Have the batch's own thread drive it from now on."""
        if not self._driven:
            self._driven = True
            thread = threading.Thread(target=self._run, name="guardwrap-batch", daemon=True)
            _running[thread] = self
            thread.start()

    def close(self) -> None:
        """Leave everyone unserved: the process ends."""
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
                    scheduler.aside = scheduler.aside or CheckerPool()
                    if scheduler.idle:
                        self._let_go(scheduler.aside)
                        if self._calls or self._gone:
                            self._changed.wait(STILL_BUSY if self._gone else None)
                        continue
                    self._let_go(scheduler.aside)
                ended = scheduler.step()
            except BaseException as error:  # of the backend itself, and not of a request
                with self._changed:
                    self._fail(error)
                continue
            with self._changed:
                self._deliver(ended)

    def _admit(self) -> Scheduler:
        """Let those go who leave, and take those in who come; return the scheduler, another one if it had failed."""
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
        """Tell those who have left, and for whom nothing is computed any more."""
        gone, self._gone = self._gone, []
        for on_busy, requests in gone:
            if aside is not None and aside.busy(requests):
                self._gone.append((on_busy, requests))
            else:
                self._release(on_busy)

    @staticmethod
    def _release(on_busy: OnBusy | None) -> None:
        if on_busy is not None:
            with suppress(Exception):  # of a caller who has gone
                on_busy(False)

    def _deliver(self, ended: Sequence[Served]) -> None:
        told = set()
        for served in ended:
            if served.source in self._calls:
                self._calls[served.source].inbox.append(served)
                served.source.window -= 1  # what nobody has fetched takes memory too
                told.add(served.source)
        for source, call in self._calls.items():
            if source in told or (source.over and not call.over):
                call.over = source.over
                call.wake()

    def _fail(self, error: BaseException) -> None:
        """End those who are in the scheduler, or everyone where there is none and none can be made."""
        waiting = [] if self._scheduler is None else self._coming
        error = own_error(error)  # nobody's thread or task ends because of it
        for call in self._calls.values():
            if call.source not in waiting:
                call.error = error
                call.wake()
        self._coming = list(waiting)
        self._scheduler = None
        self._let_go(None)


_running: WeakKeyDictionary[threading.Thread, _Batch] = WeakKeyDictionary()


@atexit.register
def _end() -> None:
    """Let batches come to the end of their step: a thread that the interpreter stops in the middle of one aborts."""
    threads = list(_running.items())
    for _, batch in threads:
        batch.close()
    for thread, _ in threads:
        thread.join(LAST_STEP)


class Batches:
    """The batches of a wrapper, one for each model that is drawn from; each lives as long as it has callers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: dict[Hashable, _Batch] = {}

    def __reduce__(self) -> tuple[type[Batches], tuple[()]]:
        """Leave the callers out: a copy of a wrapper begins without any."""
        return Batches, ()

    @property
    def rows(self) -> int:
        """Attempts that hold a row of a batch now, over all of them."""
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
        """Serve the requests of one caller, beside those of others.

        Parameters
        ----------
        key
            Callers with equal keys share a batch.
        make_backend
            Makes what the batch draws from.
        requests
            Taken as there is room for them, maybe in another thread.
        window
            Under way at once, at most.

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
        """Serve the requests of one caller in an event loop: as ``serve`` does, and the loop is never blocked."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
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
