"""Lines on stderr that say now and then how far a run is, where no terminal shows a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic

import typer

from guardwrap.words import counted

__all__ = ["EVERY", "Pace", "lasting", "now_and_then", "telling"]

EVERY = 10.0
"""Seconds between lines."""


class Pace:
    """Says how far a run is, and how long it will last.

    Parameters
    ----------
    start
        When it began, in seconds.
    before
        How many were done by then.
    total
        How many there are, or None where that is not known.
    what
        One of them.
    timed
        Whether to tell the time that is left.
    """

    def __init__(self, start: float, before: int, total: int | None, what: str, *, timed: bool = True) -> None:
        self._start, self._before, self._total, self._what = start, before, total, what
        self._timed = timed
        self._seen = [(start, before)]

    def line(self, now: float, done: int, short: int = 0) -> str:
        """Return the line.

        Parameters
        ----------
        now
            When it is, in seconds.
        done
            How many are done.
        short
            How many of them have not all their texts.
        """
        left = self._left(now, done)
        self._seen.append((now, done))
        many = counted(done, self._what) if self._total is None else f"{done} of {counted(self._total, self._what)}"
        line = f"guardwrap: {many} done"
        if done == self._before:
            line += f" after {now - self._start:.0f} s"
        if short:
            line += f", {short} of them without all their texts"
        return line if left is None else f"{line}, {lasting(left)} left"

    def _left(self, now: float, done: int) -> float | None:
        """Return the seconds that are left, by the later half of what is done.

        The first ones end late, as they share the batch with those after them, so before a tenth is done they tell no
        time, and later they are left out.
        """
        new = done - self._before
        if not self._timed or self._total is None or not new or new < (self._total - self._before) / 10:
            return None
        then, half = next((at, count) for at, count in reversed(self._seen) if 2 * (count - self._before) <= new)
        return (self._total - done) * (now - then) / (done - half)


@contextmanager
def telling(
    state: Callable[[], tuple[int, int]], total: int | None, what: str, *, timed: bool = True
) -> Iterator[None]:
    """Write a line to stderr now and then, whether or not there are results by then.

    Parameters
    ----------
    state
        Returns how many are done, and how many of them have not all their texts. Called in another thread.
    total, what, timed
        As of ``Pace``.
    """
    pace = Pace(monotonic(), state()[0], total, what, timed=timed)

    def line() -> str | None:
        done, short = state()
        return None if done == total else pace.line(monotonic(), done, short)

    with now_and_then(line):
        yield


@contextmanager
def now_and_then(line: Callable[[], str | None]) -> Iterator[None]:
    """Write what this returns to stderr every ten seconds, from a thread of its own; None is nothing."""
    over = Event()

    def tell() -> None:
        while not over.wait(EVERY):
            said = line()
            if said is not None:
                with suppress(OSError, ValueError):  # nobody reads it, or it is closed
                    typer.echo(said, err=True)

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def lasting(seconds: float) -> str:
    """Spell a time as people do."""
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"about {seconds / unit:.1f} {name}"
    return f"about {seconds:.0f} s"
