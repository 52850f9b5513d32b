"""Admission of requests: a limited number in the batch, a limited number waiting, and none beyond that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from guardwrap.serve.error_responses import ErrorResponse


def closing() -> ErrorResponse:
    """Return the error response of a server that is shutting down."""
    headers = {"Connection": "close", "Retry-After": "5"}
    return ErrorResponse(
        503, "the server is shutting down; try again later, or on another server", code="shutting_down", headers=headers
    )


class Gate:
    """Limits how many requests run and wait, within one event loop, and ends them when the server shuts down."""

    def __init__(self, running: int, queue: int) -> None:
        self.most = running + queue
        self.draining = False  # no request is admitted anymore
        self.over = asyncio.Event()  # the running ones end as well
        self._slots = asyncio.Semaphore(running)
        self.inside = self.running = 0

    @property
    def queued(self) -> int:
        """Number of requests that wait for the batch, or are being read."""
        return self.inside - self.running

    @contextmanager
    def place(self) -> Iterator[None]:
        """Admit a request for the duration of the ``with`` block."""
        if self.draining:
            raise closing()
        if self.inside >= self.most:
            message = f"the queue is full: {self.inside} requests are running or waiting; try again later"
            raise ErrorResponse(429, message, code="queue_full", headers={"Retry-After": "1"})
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @asynccontextmanager
    async def slot(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Wait for a slot in the batch, first come, first served, and hold it for the ``async with`` block.

        ``seconds``: the seconds until the request's timeout, after which nothing is computed for it, so that it needs
        no slot; None without a timeout.
        """
        try:
            await asyncio.wait_for(self._slots.acquire(), seconds)
        except TimeoutError:
            yield
            return
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()
