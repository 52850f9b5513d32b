"""The scheduler's backend for an ``Endpoint``: draws attempts from a server, concurrently."""

from __future__ import annotations

import asyncio
import queue
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from guardwrap.engine.endpoint.attempt_stream import AttemptRestarted, Ended, Event, Piece, stream_attempt
from guardwrap.engine.endpoint.server import Endpoint, line_to
from guardwrap.engine.scheduling.backend import (
    AttemptState,
    Capabilities,
    Diagnosis,
    Ids,
    Launch,
    Lookahead,
    Streamed,
)
from guardwrap.engine.scheduling.randomness import seed_of
from guardwrap.errors import own_error

_PATIENCE = 0.05
"""Seconds that a step waits for a piece of text, so that joining, leaving and deadlines never wait for a server."""

_CHUNKS = "the server did not count the tokens of {}, so pieces of their streams are counted instead"
_SAME = "{} broke off in mid-stream and restarted with the same seed, for which the server promises the same text"
_OTHER = (
    "{} broke off in mid-stream and restarted with the same seed; if the server returns another text for a seed, long "
    "texts get rarer, because they break off more often"
)


class EndpointBackend:
    """Draws each attempt with one streamed request.

    Requests run in the endpoint's event loop, which puts their events into an inbox. ``advance`` empties the inbox, so
    that texts are judged in the scheduler's thread, as with a model in this process.
    """

    mode = "endpoint"

    def __init__(self, endpoint: Endpoint, size: int) -> None:
        self.can: Capabilities = Capabilities(repeats_seeds=endpoint.repeats_seeds)
        self._endpoint = endpoint
        self._line = line_to(endpoint)
        self._size = size
        self._inbox: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self._next = 0
        self._attempts: dict[int, AttemptState] = {}
        self._requests: dict[int, Future[None]] = {}
        # Cancel all requests if the scheduler is dropped, e.g. after an interrupt.
        weakref.finalize(self, _stop_all, self._requests)

    @property
    def room(self) -> int:
        """Number of attempts that can be launched now."""
        return self._size - len(self._attempts)

    @property
    def running(self) -> int:
        """Number of attempts in flight."""
        return len(self._attempts)

    def lengths(self) -> dict[Hashable, list[int]]:
        """Return the number of tokens of each attempt in flight, by request."""
        lengths: dict[Hashable, list[int]] = {}
        for attempt in self._attempts.values():
            lengths.setdefault(attempt.launch.request, []).append(attempt.length)
        return lengths

    def launch(self, launches: Sequence[Launch]) -> list[AttemptState]:
        """Send requests. Returns an empty list, as attempts end in ``advance`` only."""
        for launch in launches:
            number, self._next = self._next, self._next + 1
            self._attempts[number] = AttemptState(launch, streamed=Streamed())
            seed = seed_of(launch.seed, launch.prompt, launch.attempt)
            put = _into(self._inbox, number)
            request = stream_attempt(self._endpoint, self._line, launch.law, seed, put)
            self._requests[number] = asyncio.run_coroutine_threadsafe(request, self._line.loop)
        return []

    def advance(self) -> list[AttemptState]:
        """Wait briefly for events, judge attempts that have grown, and return those that ended."""
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
        """Close the streams of attempts that are no longer needed, and return these."""
        return self._removed(number for number, attempt in self._attempts.items() if unneeded(attempt.launch))

    def narrow(self, launch: Launch, lookahead: Lookahead, ended: Sequence[tuple[Ids, bool]]) -> None:
        """Return None: not supported, because the server draws the tokens."""

    def diagnose(self, launch: Launch, lookahead: Lookahead) -> Diagnosis:
        """Return an empty diagnosis: not supported, because the server draws the tokens."""
        return Diagnosis()

    def _arrived(self) -> list[tuple[int, Event]]:
        events: list[tuple[int, Event]] = []
        try:
            events.append(self._inbox.get(timeout=_PATIENCE))
            while True:
                events.append(self._inbox.get_nowait())
        except queue.Empty:
            return events

    def _take(self, attempt: AttemptState, event: Event) -> None:
        so_far = attempt.streamed or Streamed()
        if isinstance(event, Piece):
            so_far.text += event.text
            so_far.counted = event.tokens is not None or bool(event.token_ids)
            so_far.tokens = event.tokens or so_far.tokens + (len(event.token_ids) or 1)
            so_far.token_ids += event.token_ids
            so_far.log_probability += event.log_probability
            if event.remarks:
                attempt.remarks = tuple(dict.fromkeys((*attempt.remarks, *event.remarks)))
        elif isinstance(event, Ended):
            attempt.status = event.status
            if event.tokens is not None:
                so_far.tokens = event.tokens
            elif so_far.text and not so_far.counted:
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
        """Remove attempts, close their streams, and return them."""
        gone = []
        for number in list(numbers):
            attempt = self._attempts.pop(number)
            attempt.computed += attempt.length
            if attempt.status == "aborted" and not (attempt.streamed and attempt.streamed.counted):
                attempt.remarks += (_CHUNKS,)
            self._requests.pop(number).cancel()
            gone.append(attempt)
        return gone


def _judge(attempt: AttemptState) -> None:
    """Abort an attempt if no continuation of its text can satisfy the constraint."""
    watch = attempt.launch.watch
    if attempt.status != "running" or watch is None or not attempt.length:
        return
    try:
        attempt.blame = watch(attempt.streamed)
    except BaseException as error:  # raised by a part of the constraint
        attempt.fail(own_error(error))
        return
    if attempt.blame is not None:
        attempt.status = "aborted"


def _into(inbox: queue.SimpleQueue[tuple[int, Event]], number: int) -> Callable[[Event], None]:
    """Return a function that puts an attempt's events into the inbox. It references only these, not the backend."""

    def put(event: Event) -> None:
        inbox.put((number, event))

    return put


def _stop_all(requests: dict[int, Future[Any]]) -> None:
    for request in requests.values():
        request.cancel()
