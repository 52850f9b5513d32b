"""Draws attempts from a server, side by side: the scheduler's backend for an Endpoint."""

from __future__ import annotations

import asyncio
import queue
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from guardwrap.backends.endpoint.attempt_stream import AttemptRestarted, Ended, Event, Piece, stream_attempt
from guardwrap.backends.endpoint.server import Endpoint, line_to
from guardwrap.errors import own_error
from guardwrap.scheduling.backend import AttemptState, Capabilities, Ids, Launch, Streamed, TokenMask
from guardwrap.scheduling.randomness import seed_of

__all__ = ["EndpointBackend"]

_PATIENCE = 0.05
"""Seconds that a step waits for a piece of text: who comes, leaves or is late must not wait for a server."""

_CHUNKS = "of {} the server counted no tokens: the pieces of their streams are counted"
_SAME = "{} broke in mid-stream and began again with the same seed, for which the server promises the same text"
_OTHER = (
    "{} broke in mid-stream and began again with the same seed; a server that gives another text for it makes long "
    "texts rarer, as they break more often"
)


class EndpointBackend:
    """Draws each attempt with a streamed request of its own.

    Requests run in the endpoint's event loop, which puts what comes of them into an inbox. ``advance`` empties it, so
    texts are judged in the scheduler's thread, as in process.

    Parameters
    ----------
    endpoint
        The server.
    size
        Attempts side by side, at most.
    """

    mode = "endpoint"

    def __init__(self, endpoint: Endpoint, size: int) -> None:
        self.can = Capabilities(repeats_seeds=endpoint.repeats_seeds, token_ids=False)
        self._endpoint = endpoint
        self._line = line_to(endpoint)
        self._size = size
        self._inbox: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self._next = 0
        self._attempts: dict[int, AttemptState] = {}
        self._requests: dict[int, Future[None]] = {}
        # A scheduler that is dropped, as after an interrupt, leaves no request behind.
        weakref.finalize(self, _stop_all, self._requests)

    @property
    def room(self) -> int:
        """How many attempts can be launched now."""
        return self._size - len(self._attempts)

    @property
    def running(self) -> int:
        """How many attempts are on their way."""
        return len(self._attempts)

    def lengths(self) -> dict[Hashable, list[int]]:
        """How many tokens the attempts on their way have, by request."""
        found: dict[Hashable, list[int]] = {}
        for attempt in self._attempts.values():
            found.setdefault(attempt.launch.request, []).append(attempt.length)
        return found

    def launch(self, launches: Sequence[Launch]) -> list[AttemptState]:
        """Send requests. None has ended before it is looked at."""
        for launch in launches:
            number, self._next = self._next, self._next + 1
            self._attempts[number] = AttemptState(launch, streamed=Streamed())
            seed = seed_of(launch.seed, launch.prompt, launch.attempt)
            put = _into(self._inbox, number)
            request = stream_attempt(self._endpoint, self._line, launch.law, seed, put)
            self._requests[number] = asyncio.run_coroutine_threadsafe(request, self._line.loop)
        return []

    def advance(self) -> list[AttemptState]:
        """Wait a little for what comes in, judge attempts that have grown, and return those that ended."""
        grown: set[int] = set()
        for number, event in self._arrived():
            attempt = self._attempts.get(number)
            if attempt is not None and attempt.status == "running":
                self._take(attempt, event)
                grown.add(number)
        for number in grown:
            _judge(self._attempts[number])
        now = time.monotonic()
        for attempt in self._attempts.values():
            late = attempt.launch.deadline is not None and now >= attempt.launch.deadline
            if late and attempt.status == "running":
                attempt.status = "abandoned"
        return self._removed(number for number, attempt in self._attempts.items() if attempt.status != "running")

    def cancel(self, unneeded: Callable[[Launch], bool]) -> list[AttemptState]:
        """Close the streams of attempts that are not needed any more."""
        return self._removed(number for number, attempt in self._attempts.items() if unneeded(attempt.launch))

    def narrow(self, launch: Launch, lookahead: TokenMask, ended: Sequence[tuple[Ids, bool]]) -> None:
        """Leave nothing out: the law is the server's."""

    def _arrived(self) -> list[tuple[int, Event]]:
        found: list[tuple[int, Event]] = []
        try:
            found.append(self._inbox.get(timeout=_PATIENCE))
            while True:
                found.append(self._inbox.get_nowait())
        except queue.Empty:
            return found

    def _take(self, attempt: AttemptState, event: Event) -> None:
        so_far = attempt.streamed or Streamed()
        if isinstance(event, Piece):
            so_far.text += event.text
            so_far.tokens += len(event.token_ids) or 1
            so_far.token_ids += event.token_ids
            so_far.log_probability += event.log_probability
        elif isinstance(event, Ended):
            attempt.status = event.status
            if event.tokens is not None:
                so_far.tokens = event.tokens
            elif so_far.text and not so_far.token_ids:
                attempt.remarks += (_CHUNKS,)
        elif isinstance(event, AttemptRestarted):
            if so_far.text:
                broke = _SAME if self.can.repeats_seeds else _OTHER
                attempt.remarks = tuple(dict.fromkeys((*attempt.remarks, broke)))
                attempt.computed += so_far.tokens
            attempt.streamed = Streamed()
        else:
            attempt.fail(event)

    def _removed(self, numbers: Iterable[int]) -> list[AttemptState]:
        """Take attempts out, and close their streams."""
        gone = []
        for number in list(numbers):
            attempt = self._attempts.pop(number)
            attempt.computed += attempt.length
            if attempt.status == "aborted" and not (attempt.streamed and attempt.streamed.token_ids):
                attempt.remarks += (_CHUNKS,)
            self._requests.pop(number).cancel()
            gone.append(attempt)
        return gone


def _judge(attempt: AttemptState) -> None:
    """Abort an attempt that no continuation can save."""
    watch = attempt.launch.watch
    if attempt.status != "running" or watch is None or not attempt.length:
        return
    try:
        attempt.blame = watch(attempt.streamed)
    except BaseException as error:  # of a part of the constraint
        attempt.fail(own_error(error))
        return
    if attempt.blame is not None:
        attempt.status = "aborted"


def _into(inbox: queue.SimpleQueue[tuple[int, Event]], number: int) -> Callable[[Event], None]:
    """Return what puts an attempt's events into the inbox, and holds nothing else alive."""

    def put(event: Event) -> None:
        inbox.put((number, event))

    return put


def _stop_all(requests: dict[int, Future[Any]]) -> None:
    for request in requests.values():
        request.cancel()
