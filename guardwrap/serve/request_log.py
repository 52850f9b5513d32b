"""The log of a server: one line for each request, written by a thread.

A write to stderr waits if nobody reads it: a pipe whose reader has stopped, or a paused terminal. In the event loop it
would stop all requests.
"""

from __future__ import annotations

import logging
import queue
import sys
import time
from logging.handlers import QueueHandler, QueueListener
from typing import Any

__all__ = ["RequestLog"]

MOST = 10_000
"""The most lines that wait to be written. Further ones are lost."""

_LOST = "%d lines of this log were lost, because nobody read it"


class RequestLog:
    """Writes the lines of ``guardwrap.serve`` to stderr until it is closed."""

    def __init__(self) -> None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
        self._lines: queue.Queue[Any] = queue.Queue(MOST)
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
