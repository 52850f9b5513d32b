"""The process that a command or a worker runs in: its memory, its log, and how a long call is getting on."""

from __future__ import annotations

import ctypes
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sized
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")

logger = logging.getLogger("guardwrap")

FIRST = 10.0
"""Seconds before the first line. Each further one comes after twice as long."""


class Teller:
    """Says now and then how a call is getting on: on stderr in a terminal or notebook, otherwise in the log (INFO)."""

    def __init__(self) -> None:
        self._began, self._next = time.monotonic(), FIRST

    def __call__(self, words: Callable[[], str]) -> None:
        """Write a line if it is time to."""
        seconds = time.monotonic() - self._began
        if seconds < self._next:
            return
        self._next = 2 * seconds
        line = f"after {seconds:.0f} s: {words()}"
        if "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty()):
            with suppress(OSError, ValueError):  # stderr is closed
                sys.stderr.write(f"guardwrap: {line}\n")
                sys.stderr.flush()
        else:
            logger.info("%s", line)


def tracked(served: Iterator[_T], prompts: Sized, wanted: bool | None) -> Iterator[_T]:
    """Show a progress bar on standard error while items are taken."""
    if not (len(prompts) > 1 if wanted is None else wanted):
        return served
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if wanted is None and not console.is_terminal:
        return served
    return iter(track(served, "generating", total=len(prompts), console=console, transient=True))


def keep_freed_memory() -> None:
    """Let glibc keep up to a gigabyte of freed memory, instead of returning large blocks at every forward pass.

    Allocating them again cost a ninth of the CPU time, and up to a half on a busy machine (docs/production.md).
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):  # musl has none
        mallopt(-4, 0)  # M_MMAP_MAX: no separate mappings, which are returned at once when freed
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def quieten_transformers() -> None:
    """Hide transformers' progress bars and warnings, unless guardwrap logs at level INFO or below."""
    if not logging.getLogger("guardwrap").isEnabledFor(logging.INFO):
        from transformers.utils import logging as theirs

        theirs.set_verbosity_error()
        theirs.disable_progress_bar()
