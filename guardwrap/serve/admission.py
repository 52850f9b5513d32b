"""Who is served: so many requests in the batch, so many behind them, and none beyond that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from guardwrap.serve.error_responses import ErrorResponse

__all__ = ["Gate", "closing"]


def closing() -> ErrorResponse:
    """Return the refusal of a server that is about to end."""
    headers = {"Connection": "close", "Retry-After": "5"}
    return ErrorResponse(
        503, "the server is shutting down; try again at another one", code="shutting_down", headers=headers
    )


class Gate:
    """Counts requests in and out; of one event loop.

    Parameters
    ----------
    running
        In the batch at once, at most.
    queue
        Behind them, at most.

    Attributes
    ----------
    inside, running : int
        Requests that have a place, and those of them that are in the batch.
    draining : bool
        Whether no new ones are let in any more.
    over : asyncio.Event
        Set when those that are left must end.
    """

    def __init__(self, running: int, queue: int) -> None:
        self._most = running + queue
        self._slots = asyncio.Semaphore(running)
        self.inside = self.running = 0
        self.draining = False
        self.over = asyncio.Event()

    @property
    def queued(self) -> int:
        """Requests that wait for the batch, or are being read."""
        return self.inside - self.running

    @contextmanager
    def place(self) -> Iterator[None]:
        """Have a place in the house.

        Raises
        ------
        Refused
            If there is none, HTTP 429, or the server is about to end, 503.
        """
        if self.draining:
            raise closing()
        if self.inside >= self._most:
            message = f"{self.inside} requests are being served or wait; try again later"
            raise ErrorResponse(429, message, code="queue_full", headers={"Retry-After": "1"})
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a place in the batch, and have it. First come, first served."""
        async with self._slots:
            self.running += 1
            try:
                yield
            finally:
                self.running -= 1
