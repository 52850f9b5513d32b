"""Admission of requests: a limited number in the batch, a limited number waiting, and none beyond that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from guardwrap.serve.error_responses import ErrorResponse

__all__ = ["Gate", "closing"]


def closing() -> ErrorResponse:
    """Return the error response of a server that is shutting down."""
    headers = {"Connection": "close", "Retry-After": "5"}
    return ErrorResponse(
        503, "the server is shutting down; try again later, or on another server", code="shutting_down", headers=headers
    )


class Gate:
    """Limits how many requests run and wait, within one event loop.

    Parameters
    ----------
    running
        Maximum number of requests in the batch.
    queue
        Maximum number of requests that wait for the batch.

    Attributes
    ----------
    inside, running : int
        Number of admitted requests, and of those in the batch.
    draining : bool
        Whether new requests are rejected.
    over : asyncio.Event
        Set when the remaining requests must end.
    """

    def __init__(self, running: int, queue: int) -> None:
        self._most = running + queue
        self._slots = asyncio.Semaphore(running)
        self.inside = self.running = 0
        self.draining = False
        self.over = asyncio.Event()

    @property
    def queued(self) -> int:
        """Number of requests that wait for the batch or are being read."""
        return self.inside - self.running

    @contextmanager
    def place(self) -> Iterator[None]:
        """Admit a request for the duration of the ``with`` block.

        Raises
        ------
        ErrorResponse
            HTTP 429 if the queue is full, 503 if the server is shutting down.
        """
        if self.draining:
            raise closing()
        if self.inside >= self._most:
            message = f"the queue is full: {self.inside} requests are running or waiting; try again later"
            raise ErrorResponse(429, message, code="queue_full", headers={"Retry-After": "1"})
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot in the batch, first come, first served, and hold it for the ``async with`` block."""
        async with self._slots:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1
