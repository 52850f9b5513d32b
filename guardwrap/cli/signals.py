"""Signals and standard streams of a command: Ctrl-C, SIGTERM, and streams that are closed or full."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM."""


class Terminated(KeyboardInterrupt):
    """Raised after SIGTERM."""


def exit_of(interruption: KeyboardInterrupt) -> tuple[str, int]:
    """Return the word and the exit code for Ctrl-C or SIGTERM."""
    return ("terminated", TERMINATED) if isinstance(interruption, Terminated) else ("interrupted", INTERRUPTED)


def end_at_once(number: int, _frame: object = None) -> None:
    """Print one line and exit: the handler of both signals, except where results must be kept.

    A KeyboardInterrupt during an import would print a traceback, or get lost where no exception can be raised. The
    first process of a container has no default handler for SIGTERM, so the kernel would ignore it.
    """
    word, code = exit_of(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
    with suppress(OSError):
        os.write(2, f"guardwrap: {word}\n".encode())
    os._exit(code)


_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def end_at_once_from_now_on() -> None:
    """Let both signals end the process at once, unless another handler is installed."""
    for number, usual in _USUAL.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, end_at_once)


@contextmanager
def ends_in_order() -> Iterator[None]:
    """Let both signals raise a KeyboardInterrupt, so that results are kept and reported.

    A second SIGTERM is ignored, because supervisors may send it to a process and to its group. Nothing changes for a
    signal that has another handler, or outside the main thread.
    """

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = {number: signal.getsignal(number) for number in _USUAL}
    ours = [number for number, usual in _USUAL.items() if before[number] in (usual, end_at_once)]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, terminate if number == signal.SIGTERM else signal.default_int_handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def open_closed_streams() -> None:
    """Reopen standard streams that the caller has closed, so that no other file gets their descriptors.

    Reading from stdin then returns nothing, writing to stdout fails, and text for stderr is discarded.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def describe_os_error(error: OSError) -> str:
    """Describe an OSError in one line. One without a file name is usually about a standard stream."""
    if error.filename:
        return f"{error.strerror or type(error).__name__}: {error.filename}"
    if error.errno in (errno.EPIPE, errno.EBADF):
        return "stdout was closed before everything was written"
    return f"cannot write: {error.strerror}" if error.errno == errno.ENOSPC else error.strerror or type(error).__name__


def discard_unwritten_output() -> None:
    """Discard output that cannot be written to stdout, which Python would otherwise try again at exit."""
    try:
        sys.stdout.flush()
    except ValueError:  # it is closed
        pass
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
