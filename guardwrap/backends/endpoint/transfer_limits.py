"""How much of an answer is read: whatever a server sends, this process does not run out of memory or patience."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from guardwrap.errors import EndpointError

if TYPE_CHECKING:
    from guardwrap.backends.endpoint.server import Endpoint

__all__ = ["CONNECT", "http_client", "patience"]

CONNECT = 10.0
"""Seconds for a connection, at most."""

_ANSWER = 64 * 2**20
"""Bytes of an answer that is no stream, at most: log-probabilities of a long prompt take some."""

_EVENT = 16 * 2**20
"""Bytes between two events of a stream, at most: the first one may hold the tokens of a long prompt."""

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""What ends an event."""


def http_client(openai: Any, where: str) -> Any:
    """Make the HTTP client of a line: it follows no redirect, and reads no more of an answer than one can have.

    A redirect would take the prompt along, to a host that nobody has named. Compressed answers are not asked for, and
    refused, as a few bytes of them may be as large as memory.
    """
    # httpx or its successor: whichever the client is built on.
    base = openai.DefaultAsyncHttpxClient.__mro__[1]
    library: Any = importlib.import_module(base.__module__.partition(".")[0])

    class Measured(library.AsyncByteStream):  # type: ignore[misc]  # the library is known only now
        def __init__(self, stream: Any, events: bool) -> None:
            self._stream, self._events = stream, events

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _measured(self._stream, where, self._events)

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def measure(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise EndpointError(f"{where} compresses its answers, which was not asked for; turn that off")
        events = response.is_success and "text/event-stream" in response.headers.get("content-type", "")
        response.stream = Measured(response.stream, events)

    return openai.DefaultAsyncHttpxClient(
        follow_redirects=False, headers={"Accept-Encoding": "identity"}, event_hooks={"response": [measure]}
    )


async def _measured(stream: AsyncIterator[bytes], where: str, events: bool) -> AsyncIterator[bytes]:
    """Hand on the pieces of an answer, and raise EndpointError where it, or one event of a stream, is too large."""
    size, last = 0, b""
    async for piece in stream:
        size += len(piece)
        if events:
            seen = last + piece
            end = max(seen.rfind(mark) for mark in _ENDS)
            size = len(seen) - end if end >= 0 else size
            last = seen[-3:]
        if size > (_EVENT if events else _ANSWER):
            raise EndpointError(f"{where} sends more in one piece than any answer has; is base_url right?")
        yield piece


def patience(endpoint: Endpoint, clock: Callable[[float], Any] = asyncio.timeout) -> Any:
    """Return a context that raises TimeoutError when a request without a stream has not been answered in time.

    The client's own limit is on silence: a byte now and then would keep it waiting for ever.
    """
    return clock(endpoint.timeout + CONNECT)
