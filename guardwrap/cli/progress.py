"""Progress of a run on stderr: a bar on a terminal, otherwise lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

import typer

from guardwrap.support.formatting import counted, lasting

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 10.0
"""Seconds between lines."""


@dataclass(frozen=True)
class Progress:
    """How many items of a run are done."""

    done: int = 0  # number of items that are done, including those of an earlier run
    kept: int = 0  # number of items that were done by an earlier run
    short: int = 0  # number of done items that did not get all their texts
    all_started: bool = False  # whether no item waits. Those that are left may be the slow ones, so no ETA is shown.


def progress_line(progress: Progress, seconds: float, total: int | None, what: str) -> str:
    """Return the line after some seconds. No ETA is shown before a tenth is done: the first ones end late together."""
    new = progress.done - progress.kept
    items = counted(progress.done if total is None else total, what)
    line = f"guardwrap: {items} done" if total is None else f"guardwrap: {progress.done:,} of {items} done"
    if progress.short:
        line += f" ({progress.short:,} without all their texts)"
    if not new:
        return f"{line} after {seconds:.0f} s"
    if total is None or progress.all_started or new < (total - progress.kept) / 10:
        return line
    return f"{line}, {lasting(seconds * (total - progress.done) / new)} left"


@contextmanager
def progress_shown(
    state: Callable[[], Progress], total: int | None, what: str, console: Console | None = None
) -> Iterator[None]:
    """Show how many items are done, which ``state`` returns.

    ``console``: the console that other output is printed to, if it is not that of stderr.
    """
    if sys.stderr.isatty():
        from rich import progress
        from rich.console import Console

        columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
        with progress.Progress(f"{what}s", *columns, console=console or Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total, completed=state().done)
            with called_every(0.1, lambda: bar.update(task, completed=state().done)):
                yield
        return
    start = monotonic()

    def write_line() -> None:
        now = state()
        if now.done != total:
            write_to_stderr(progress_line(now, monotonic() - start, total, what))

    with called_every(EVERY, write_line):
        yield


def write_to_stderr(line: str) -> None:
    """Write a line to stderr, unless it is closed."""
    with suppress(OSError, ValueError):
        typer.echo(line, err=True)


@contextmanager
def called_every(seconds: float, function: Callable[[], None]) -> Iterator[None]:
    """Call a function regularly from another thread."""
    over = Event()

    def run() -> None:
        while not over.wait(seconds):
            function()

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
