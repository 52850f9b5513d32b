"""The server process: its socket, its log and its shutdown."""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import socket
import sys
import time
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from guardwrap.errors import UsageError
from guardwrap.serve.routes import Service

_MORE_CONNECTIONS = 256
"""Connections beyond those of admitted requests: idle ones, and those that get a 429 response."""

_LAST_SECONDS = 3.0
"""Seconds to send errors to the requests that are left after the grace period."""

MOST_LINES = 10_000
"""The most lines that wait to be written. Further ones are lost."""

_LOST = "%d lines of this log were lost, because nobody read it"


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=512)
        # Connections inherit it. Otherwise a reply's body waits for the client to confirm its head: up to 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on {host} port {port}: {reason}; give another --host or --port") from None
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class RequestLog:
    """Writes one line for each request to stderr, in a thread.

    A write waits if nobody reads stderr: a pipe whose reader has stopped, or a paused terminal. In the event loop it
    would stop all requests.
    """

    def __init__(self) -> None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
        self._lines: queue.Queue[Any] = queue.Queue(MOST_LINES)
        self._listener = QueueListener(self._lines, handler)
        self._listener.start()  # a daemon thread
        log = logging.getLogger("guardwrap.serve")
        log.handlers, log.propagate = [_Lines(self._lines)], False
        log.setLevel(min(logging.INFO, logging.getLogger("guardwrap").level or logging.INFO))

    def close(self, seconds: float) -> None:
        """Write the lines that wait, for so many seconds at most."""
        end = time.monotonic() + seconds
        while not self._lines.empty() and time.monotonic() < end:
            time.sleep(0.01)


class _Lines(QueueHandler):
    """Passes lines to the thread that writes them, and counts those for which there is no room."""

    _lost = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Pass a line on without waiting."""
        try:
            if self._lost:
                lost = logging.LogRecord(record.name, logging.WARNING, "", 0, _LOST, (self._lost,), None)
                self.queue.put_nowait(self.prepare(lost))
                self._lost = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._lost += 1


class _Server(uvicorn.Server):
    """Server that rejects new requests after the first signal, and ends after the running ones or the grace period."""

    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._gate, self._ready = service.gate, ready
        self._grace = service.settings.limits.grace_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections, then call ``ready``."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown at the first signal, and end at once at the second."""
        if self._loop is None or self._gate.draining:
            self._gate.over.set()
            self.should_exit = True
            return
        self._gate.draining = True
        self._loop.call_soon_threadsafe(self._drain_soon)

    def _drain_soon(self) -> None:
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        await self._until_empty(self._grace)
        self._gate.over.set()
        await self._until_empty(_LAST_SECONDS)
        self.should_exit = True

    async def _until_empty(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._gate.inside and time.monotonic() < end:
            await asyncio.sleep(0.05)


def run_server(app: FastAPI, listening: socket.socket, ready: Callable[[], None], log: RequestLog) -> None:
    """Serve until SIGTERM or SIGINT."""
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="critical",  # uvicorn's tracebacks may quote unchecked texts; guardwrap logs requests itself
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=service.gate.most + _MORE_CONNECTIONS,
        timeout_graceful_shutdown=int(_LAST_SECONDS),
    )
    gc.collect()
    gc.freeze()  # a full collection of what is loaded by now takes 0.3 s, and requests cause one after the other
    _Server(config, service, ready).run(sockets=[listening])
    gc.unfreeze()
    log.close(_LAST_SECONDS)
