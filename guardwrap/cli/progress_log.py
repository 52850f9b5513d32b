"""Lines on stderr that say now and then how far a run is, where no terminal shows a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic

import typer

from guardwrap.formatting import counted

__all__ = ["EVERY", "Far", "Pace", "lasting", "now_and_then", "telling"]

EVERY = 10.0
"""Seconds between lines."""

_STALLED = 5
"""How many times longer than one has taken until now none may come, before no time is told any more."""


@dataclass(frozen=True)
class Far:
    """How far a run is.

    Parameters
    ----------
    done
        How many are done, with those that an earlier run has left.
    kept
        How many of them an earlier run has left.
    short
        How many of them have not all their texts.
    ahead
        How many more are finished, and wait for one before them.
    slow
        Where that one stands, for people.
    begun
        Whether all that are left are under way: they may be the slow ones, and those before them tell no time.
    """

    done: int
    kept: int = 0
    short: int = 0
    ahead: int = 0
    slow: str = ""
    begun: bool = False


class Pace:
    """Says how far a run is, and how long it will last.

    Parameters
    ----------
    start
        When it began, in seconds.
    total
        How many there are, or None where that is not known.
    what
        One of them.
    timed
        Whether to tell the time that is left.
    """

    def __init__(self, start: float, total: int | None, what: str, *, timed: bool = True) -> None:
        self._start, self._total, self._what = start, total, what
        self._timed = timed
        self._seen = [(start, 0)]  # when, and how many were new by then

    def line(self, now: float, far: Far) -> str:
        """Return the line; ``now`` in seconds."""
        new = far.done + far.ahead - far.kept
        timed = self._timed and not far.begun
        left = None if self._total is None or not timed else self._left(now, new, self._total - far.kept)
        self._seen.append((now, new))
        of = "" if self._total is None else f"{far.done:,} of "
        line = f"guardwrap: {of}{counted(far.done if self._total is None else self._total, self._what)} done"
        if far.ahead:
            line += f" and {far.ahead:,} behind a slow one"
            line += f" ({far.slow})" if far.slow else ""
        if not new:
            line += f" after {now - self._start:.0f} s"
        if far.short:
            line += f", {far.short:,} of them without all their texts"
        return line if left is None else f"{line}, {lasting(left)} left"

    def _left(self, now: float, new: int, total: int) -> float | None:
        """Return the seconds that are left, by the later half of what is new.

        The first ones end late, as they share the batch with those after them, so before a tenth is done they tell no
        time, and later they are left out. None is told while those that are left are slower than those before.
        """
        if not new or new < total / 10:
            return None
        then, half = next((at, count) for at, count in reversed(self._seen) if 2 * count <= new)
        last = next((at for at, count in self._seen if count == new), now)
        one = (last - then) / (new - half)
        # Where none has come for so long, those that are left are not like those before.
        return None if now - last > max(_STALLED * one, 2 * EVERY) else (total - new) * (now - then) / (new - half)


@contextmanager
def telling(state: Callable[[], Far], total: int | None, what: str, *, timed: bool = True) -> Iterator[None]:
    """Write a line to stderr now and then, whether or not there are results by then.

    Parameters
    ----------
    state
        Returns how far it is. Called in another thread.
    total, what, timed
        As of ``Pace``.
    """
    pace = Pace(monotonic(), total, what, timed=timed)

    def line() -> str | None:
        far = state()
        return None if far.done == total else pace.line(monotonic(), far)

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
