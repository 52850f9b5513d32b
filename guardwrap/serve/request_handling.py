"""One request in the batch: it leaves as soon as its client has gone, or the server ends."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from guardwrap.outcomes import Draw, Outcome
from guardwrap.serve.admission import Gate, closing
from guardwrap.serve.error_responses import refusal_of
from guardwrap.serve.parsed_request import ParsedRequest
from guardwrap.serve.replies import event
from guardwrap.serve.request_body import gone

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator

__all__ = ["TICK", "Accepted", "Gone", "Stream", "as_json", "served"]

TICK = 3.0
"""Seconds after which a client that waits is told so. Proxies drop connections that say nothing for 30 or 60."""


class Gone(Exception):
    """The client has gone, and nobody waits for the texts."""


def as_json(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a reply of plain JSON types."""
    content = json.dumps(data, allow_nan=False).encode()
    return Response(content, status, dict(headers or {}), media_type="application/json")


class Accepted(NamedTuple):
    """A text that was accepted, before the others of its prompt are there.

    Parameters
    ----------
    prompt, number
        The prompt's number, and the text's own among those of its prompt.
    draw
        The text.
    """

    prompt: int
    number: int
    draw: Draw


class _Over(NamedTuple):
    """Nothing more comes."""


async def served(
    guarded: GuardedGenerator, gate: Gate, request: Request, wish: ParsedRequest, options: dict[str, Any]
) -> AsyncGenerator[Accepted | Outcome | None, None]:
    """Draw what a request asks for. Yield each text, and for each prompt its outcome; None after a ``TICK`` of nothing.

    Raises
    ------
    Gone
        If the client goes.
    Refused
        If the server ends.
    GuardwrapError
        As ``GuardedGenerator.arun`` does.
    """
    found: asyncio.Queue[Accepted | Outcome | _Over] = asyncio.Queue()
    loop, counts = asyncio.get_running_loop(), Counter[int]()

    def on_text(prompt: int, text: Draw) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(found.put_nowait, Accepted(prompt, counts[prompt], text))
        counts[prompt] += 1

    present, idle = [False], asyncio.Event()

    def on_busy(busy: bool) -> None:
        present[0] = busy
        if not busy:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(idle.set)

    async def draw() -> None:
        try:
            async with gate.slot():
                try:
                    drawn = guarded.astream(wish.prompts, on_text=on_text, on_busy=on_busy, **options)
                    async with aclosing(drawn) as outcomes:
                        async for outcome in outcomes:
                            found.put_nowait(outcome)
                finally:
                    if present[0]:  # it is counted for as long as a thread computes for it, though its client has gone
                        await idle.wait()
        finally:
            found.put_nowait(_Over())

    drawing = asyncio.create_task(draw())
    left, over = asyncio.create_task(gone(request)), asyncio.create_task(gate.over.wait())
    following: asyncio.Task[Accepted | Outcome | _Over] | None = None
    try:
        while True:
            following = following or asyncio.create_task(found.get())
            await asyncio.wait({following, left, over}, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                item, following = following.result(), None
                if isinstance(item, _Over):
                    await drawing
                    return
                yield item
            elif left.done():
                raise Gone
            elif over.done():
                raise closing()
            else:
                yield None
    finally:
        tasks = [task for task in (drawing, left, over, following) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Stream(Response):
    """Server-sent events.

    Parameters
    ----------
    first
        The first of them, and the attempts behind it.
    events
        Those that follow. What they raise becomes an event of its own, the last one.
    place
        What the request holds; given back at the end.

    Attributes
    ----------
    note
        Told the status and the attempts at the end.
    """

    note: Callable[[int, int], None]

    def __init__(
        self, first: tuple[bytes, int], events: AsyncGenerator[tuple[bytes, int], None], place: ExitStack
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(None, 200, headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._first, self._events, self._place = first, events, place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        status, attempts = 499, 0

        async def tell(content: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": content, "more_body": more})

        try:
            with self._place:
                async with aclosing(self._events) as events:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    content, attempts = self._first
                    await tell(content)
                    async for content, more in events:
                        attempts += more
                        await tell(content)
            await tell(b"", more=False)
            status = 200
        except (Gone, OSError):
            pass
        except Exception as error:
            refused = refusal_of(error)
            status = refused.status
            with suppress(OSError):
                await tell(event(refused.body()), more=False)
        finally:
            self.note(status, attempts)
