"""Limits on the size and duration of a server's answers, so that none can exhaust memory or block forever."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from guardwrap.errors import EndpointError

if TYPE_CHECKING:
    from guardwrap.backends.endpoint.server import Endpoint

CONNECT = 10.0
"""Maximum time in seconds to connect."""

_ANSWER = 64 * 2**20
"""Maximum size in bytes of an answer that is not streamed. Log-probabilities of a long prompt may take megabytes."""

_EVENT = 16 * 2**20
"""Maximum size in bytes of an event of a stream. The first one may contain the tokens of a long prompt."""

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""The possible ends of an event."""


def http_client(openai: Any, where: str) -> Any:
    """Create the HTTP client for a server, which limits the size of answers and does not follow redirects.

    A redirect would send the prompt to a host that the user did not name. Compressed answers are rejected, and not
    requested, because a few bytes may decompress to more than fits into memory.
    """
    # The HTTP library that the client is built on: httpx or its successor.
    base = openai.DefaultAsyncHttpxClient.__mro__[1]
    library: Any = importlib.import_module(base.__module__.partition(".")[0])

    class Measured(library.AsyncByteStream):  # type: ignore[misc]  # the library is only known at run time
        def __init__(self, stream: Any, events: bool) -> None:
            self._stream, self._events = stream, events

        def __aiter__(self) -> AsyncIterator[bytes]:
            return _measured(self._stream, where, self._events)

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def measure(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise EndpointError(f"{where} compresses its answers, which was not requested; turn that off")
        events = response.is_success and "text/event-stream" in response.headers.get("content-type", "")
        response.stream = Measured(response.stream, events)

    return openai.DefaultAsyncHttpxClient(
        follow_redirects=False, headers={"Accept-Encoding": "identity"}, event_hooks={"response": [measure]}
    )


async def _measured(stream: AsyncIterator[bytes], where: str, events: bool) -> AsyncIterator[bytes]:
    """Yield the pieces of an answer, and raise EndpointError if it, or one event of a stream, is too large."""
    size, last = 0, b""
    async for piece in stream:
        size += len(piece)
        if events:
            seen = last + piece
            end = max(seen.rfind(mark) for mark in _ENDS)
            size = len(seen) - end if end >= 0 else size
            last = seen[-3:]
        if size > (_EVENT if events else _ANSWER):
            raise EndpointError(f"{where} sends an answer that is too large to be valid; check base_url")
        yield piece


def patience(endpoint: Endpoint, clock: Callable[[float], Any] = asyncio.timeout) -> Any:
    """Return a context that raises TimeoutError if its body, a request without a stream, takes too long.

    The client's own timeout applies to each pause, so a byte now and then would keep it waiting forever.
    """
    return clock(endpoint.timeout + CONNECT)
