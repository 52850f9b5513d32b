"""Progress lines on stderr, for runs without a terminal that could show a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic

import typer

from guardwrap.formatting import counted, lasting

EVERY = 10.0
"""Seconds between lines."""

_STALLED = 5
"""No ETA is shown once no item has finished for this many times the usual time per item."""


@dataclass(frozen=True)
class Far:
    """Progress of a run."""

    done: int  # number of items that are done, including those of an earlier run
    kept: int = 0  # number of items that were done by an earlier run
    short: int = 0  # number of done items that did not get all their texts
    begun: bool = False  # whether all remaining items have been started. They may be the slow ones, so no ETA is shown.


class Pace:
    """Formats progress lines with an ETA."""

    def __init__(self, start: float, total: int | None, what: str, *, timed: bool = True) -> None:
        self._start, self._total, self._what = start, total, what
        self._timed = timed
        self._seen = [(start, 0)]  # earlier times, with the number of new items at each

    def line(self, now: float, far: Far) -> str:
        """Return the progress line at the time ``now``, in seconds."""
        new = far.done - far.kept
        timed = self._timed and not far.begun
        left = None if self._total is None or not timed else self._left(now, new, self._total - far.kept)
        self._seen.append((now, new))
        of = "" if self._total is None else f"{far.done:,} of "
        line = f"guardwrap: {of}{counted(far.done if self._total is None else self._total, self._what)} done"
        if far.short:
            line += f" ({far.short:,} without all their texts)"
        if not new:
            line += f" after {now - self._start:.0f} s"
        return line if left is None else f"{line}, {lasting(left)} left"

    def _left(self, now: float, new: int, total: int) -> float | None:
        """Estimate the remaining seconds from the later half of the new items, or return None.

        The first items end late because they share the batch with later ones, so there is no ETA before a tenth is
        done, and they do not count afterwards. There is also no ETA while no item ends for unusually long.
        """
        if not new or new < total / 10:
            return None
        then, half = next((at, count) for at, count in reversed(self._seen) if 2 * count <= new)
        last = next((at for at, count in self._seen if count == new), now)
        one = (last - then) / (new - half)
        # After such a pause, the remaining items are slower than the earlier ones, so the estimate would be too low.
        return None if now - last > max(_STALLED * one, 2 * EVERY) else (total - new) * (now - then) / (new - half)


@contextmanager
def telling(state: Callable[[], Far], total: int | None, what: str, *, timed: bool = True) -> Iterator[None]:
    """Write a progress line to stderr every ``EVERY`` seconds, with or without new results."""
    pace = Pace(monotonic(), total, what, timed=timed)

    def line() -> str | None:
        far = state()
        return None if far.done == total else pace.line(monotonic(), far)

    with now_and_then(line):
        yield


@contextmanager
def now_and_then(line: Callable[[], str | None]) -> Iterator[None]:
    """Write the result of ``line`` to stderr every ``EVERY`` seconds, from another thread; nothing if it is None."""
    over = Event()

    def write_lines() -> None:
        while not over.wait(EVERY):
            text = line()
            if text is not None:
                with suppress(OSError, ValueError):  # stderr is closed
                    typer.echo(text, err=True)

    thread = Thread(target=write_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
