"""Generation for one request, which ends when its client disconnects or the server shuts down."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from guardwrap.outcomes import Draw, Outcome
from guardwrap.serve.error_responses import ErrorResponse, refusal_of
from guardwrap.serve.incoming_requests import gone
from guardwrap.serve.parsed_request import ParsedRequest
from guardwrap.serve.replies import WAITING, Reply, ResponsesReply, event, require_complete

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator

AnyReply = Reply | ResponsesReply
"""The reply to a request of one of the routes."""

TICK = 3.0
"""Seconds between keep-alive comments to a waiting client. Proxies close connections that are idle for 30 or 60 s."""


def closing() -> ErrorResponse:
    """Return the error response of a server that is shutting down."""
    headers = {"Connection": "close", "Retry-After": "5"}
    return ErrorResponse(
        503, "the server is shutting down; try again later, or on another server", code="shutting_down", headers=headers
    )


class Deliveries:
    """Calls functions in an event loop for other threads, those of a step together.

    Waking the loop takes a system call, in which the batch's thread gives up the interpreter lock, and it then waits
    for the loop's thread. So a step wakes it once, not for each of its tokens.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False

    def add(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Have the loop call a function after those that were added before."""
        self._calls.append(call)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._woken = False  # first: what is added from now on wakes the loop again
        while self._calls:
            self._calls.popleft()()


class Gate:
    """Limits how many requests run and wait, and ends them when the server shuts down.

    Requests that are inside at the same time belong to one event loop.
    """

    def __init__(self, running: int, queue: int) -> None:
        self._most_running, self.most = running, running + queue
        self.draining = False  # no request is admitted anymore
        self.inside = self.running = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the last request
        self._begin()

    def _begin(self) -> None:
        """Create what belongs to one event loop. Clients within the process may use one after the other."""
        self.deliveries = Deliveries()
        self.over = asyncio.Event()  # the running ones end as well
        self._slots = asyncio.Semaphore(self._most_running)

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
        loop = asyncio.get_running_loop()
        if not self.inside and self._loop not in (None, loop):
            self._begin()
        self._loop = loop
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
            async with asyncio.timeout(seconds):
                await self._slots.acquire()
        except TimeoutError:
            yield
            return
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()


class Gone(Exception):
    """Raised when the client has disconnected."""


def as_json(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    content = json.dumps(data, allow_nan=False).encode()
    return Response(content, status, dict(headers or {}), media_type="application/json")


class Accepted(NamedTuple):
    """An accepted text, available before the outcome of its prompt."""

    prompt: int  # index of the prompt in the request, and of the text among those of its prompt
    number: int
    draw: Draw  # the text


class LivePiece(NamedTuple):
    """The next piece of a text that is certain to be accepted."""

    prompt: int  # index of the prompt in the request, and of the text among those of its prompt
    number: int
    text: str  # the piece


_Item = Accepted | LivePiece | Outcome


class _Over(NamedTuple):
    """Marks the end of the queue."""


async def served(
    guarded: GuardedGenerator,
    gate: Gate,
    request: Request,
    parsed_request: ParsedRequest,
    options: dict[str, Any],
    called: float | None = None,
) -> AsyncGenerator[_Item | None, None]:
    """Generate the texts of a request. Yield accepted texts and outcomes, and None after a ``TICK`` without either.

    If the request streams, the pieces of each text come before the text. A slow client holds up nobody: pieces wait for
    it in a queue, which the length of its texts bounds. ``called`` is when the request arrived, by
    ``time.monotonic()``; None for now.
    """
    called = time.monotonic() if called is None else called
    timeout = (options.get("budget") or guarded.session.spec.budget).timeout
    results: deque[_Item | _Over] = deque()
    news = asyncio.Event()
    loop, deliveries, counts = asyncio.get_running_loop(), gate.deliveries, Counter[int]()

    def put(item: _Item | _Over) -> None:
        results.append(item)
        news.set()

    def on_text(prompt: int, text: Draw) -> None:
        deliveries.add(loop, partial(put, Accepted(prompt, counts[prompt], text)))
        counts[prompt] += 1

    def on_piece(prompt: int, number: int, text: str) -> None:
        deliveries.add(loop, partial(put, LivePiece(prompt, number, text)))

    # Messages are sent as their parser reads them, which is known at their end.
    live = on_piece if parsed_request.stream and not parsed_request.options.get("parse_messages") else None
    computing, idle = [False], asyncio.Event()

    def on_busy(busy: bool) -> None:
        computing[0] = busy
        if not busy:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(idle.set)

    async def draw() -> None:
        try:
            async with gate.slot(None if timeout is None else called + timeout - time.monotonic()):
                try:
                    drawn = guarded.astream(
                        parsed_request.prompts,
                        on_text=on_text,
                        on_piece=live,
                        on_busy=on_busy,
                        called=called,
                        **options,
                    )
                    async with aclosing(drawn) as outcomes:
                        async for outcome in outcomes:
                            put(outcome)
                finally:
                    while computing[0]:  # keep the slot while a thread computes for a client that has disconnected
                        idle.clear()  # a twist that was learned before has set it
                        await idle.wait()
        finally:
            put(_Over())

    drawing = asyncio.create_task(draw())
    disconnect, shutdown = asyncio.create_task(gone(request)), asyncio.create_task(gate.over.wait())
    tasks: list[asyncio.Task[Any]] = [drawing, disconnect, shutdown]
    for task in tasks:
        task.add_done_callback(lambda _: news.set())
    try:
        while True:
            news.clear()
            if disconnect.done():  # looked at first: pieces may arrive faster than they can be sent
                raise Gone
            if results:
                item = results.popleft()
                if isinstance(item, _Over):
                    await drawing
                    return
                yield _joined(item, results) if isinstance(item, LivePiece) else item
            elif shutdown.done():
                raise closing()
            elif not await _comes(news):
                yield None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _comes(news: asyncio.Event) -> bool:
    """Wait for news, and return whether there are any before the next ``TICK``."""
    try:
        async with asyncio.timeout(TICK):
            return await news.wait()
    except TimeoutError:
        return False


def _joined(piece: LivePiece, results: deque[_Item | _Over]) -> LivePiece:
    """Return a piece with those that directly follow it in its text, for a client that is slower than the model."""
    texts = [piece.text]
    while results and isinstance(piece_after := results[0], LivePiece) and piece_after[:2] == piece[:2]:
        texts.append(piece_after.text)
        results.popleft()
    return piece._replace(text="".join(texts))


async def streamed(
    items: AsyncGenerator[_Item | None, None],
    reply: AnyReply,
    prompt_tokens: int,
    drawn: Callable[[Outcome], Outcome],
) -> AsyncGenerator[tuple[bytes, int], None]:
    """Yield server-sent events, with the number of attempts to add to the log.

    Each text is sent as soon as it is accepted, and the pieces of it that are certain before that.
    """
    complete: list[Outcome] = []
    begun: set[tuple[int, int]] = set()  # prompts and numbers of texts of which pieces were sent
    begins = reply.begins()  # sent with the first item, so that an error before it still gets its own HTTP status
    async with aclosing(items):
        async for item in items:
            attempts = 0
            chunks: Iterator[dict[str, Any]] = iter(())
            if isinstance(item, Accepted):
                chunks = reply.text(item.draw, item.prompt, item.number)
                begun.discard((item.prompt, item.number))
            elif isinstance(item, LivePiece):
                begun.add((item.prompt, item.number))
                chunks = reply.piece(item.text, item.prompt, item.number)
            elif item is not None:
                number = len(complete)
                if any(prompt == number for prompt, _ in begun):  # no fallback completes a text that has begun
                    item = replace(item, report=replace(item.report, fallback=False))
                whole = require_complete(drawn(item), reply.request)
                filled = enumerate(whole.draws[len(item.draws) :], start=len(item.draws))
                chunks = chain(*(reply.text(draw, number, i) for i, draw in filled), reply.ends(whole, number))
                complete.append(whole)
                attempts = item.report.usage.attempts
            sent = b"".join(map(event, chain(begins, chunks)))
            yield sent if item is not None else sent + WAITING, attempts
    yield b"".join(map(event, reply.last(complete, prompt_tokens))) + reply.done, 0


class Stream(Response):
    """Response that streams server-sent events."""

    note: Callable[[int, int], None]  # called at the end with the HTTP status and the number of attempts

    def __init__(
        self,
        first: tuple[bytes, int],
        events: AsyncGenerator[tuple[bytes, int], None],
        place: ExitStack,
        failed: Callable[[ErrorResponse], dict[str, Any]],
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(None, 200, headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._first, self._events, self._place, self._failed = first, events, place, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        status, attempts = 499, 0

        async def send_body(content: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": content, "more_body": more})

        try:
            with self._place:
                async with aclosing(self._events) as events:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    content, attempts = self._first
                    await send_body(content)
                    async for content, more in events:
                        attempts += more
                        await send_body(content)
            await send_body(b"", more=False)
            status = 200
        except (Gone, OSError):
            pass
        except Exception as error:
            refused = refusal_of(error, scope.get("state", {}).get("request_id"))
            status, attempts = refused.status, attempts + refused.attempts
            with suppress(OSError):
                await send_body(event(self._failed(refused)), more=False)
        finally:
            self.note(status, attempts)
