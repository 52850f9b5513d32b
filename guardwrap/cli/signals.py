"""Signals and standard streams of a command: Ctrl-C during imports, SIGTERM, and streams that are closed or full."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

TERMINATED = 143
"""Exit code after SIGTERM."""


class Terminated(KeyboardInterrupt):
    """Raised after SIGTERM."""


def exit_of(interruption: KeyboardInterrupt) -> tuple[str, int]:
    """Return the word and the exit code for Ctrl-C or SIGTERM."""
    return ("terminated", TERMINATED) if isinstance(interruption, Terminated) else ("interrupted", INTERRUPTED)


def end_at_once(*_: object) -> None:
    """Print one line and exit. It can be called directly, or be the handler of SIGINT."""
    with suppress(OSError):
        os.write(2, b"guardwrap: interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once while modules are imported.

    A KeyboardInterrupt during an import would print a traceback, or get lost where no exception can be raised.
    """
    changed = end_from_now_on()
    try:
        yield
    finally:
        if changed:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_from_now_on() -> bool:
    """Let Ctrl-C end the process at once. Return False, and change nothing, if another handler is installed."""
    if not _is_ours(signal.SIGINT, signal.default_int_handler):
        return False
    signal.signal(signal.SIGINT, end_at_once)
    return True


def _is_ours(number: signal.Signals, usual: object) -> bool:
    """Return whether a signal has its default handler, and this thread may change it."""
    return signal.getsignal(number) is usual and threading.current_thread() is threading.main_thread()


@contextmanager
def terminated_at_once() -> Iterator[None]:
    """Let SIGTERM end the process at once, except while a server has its own handler.

    The first process of a container has no default handlers: the kernel would ignore SIGTERM while a model is loaded.
    """
    if not _is_ours(signal.SIGTERM, signal.SIG_DFL):
        yield
        return

    def end(*_: object) -> None:
        with suppress(OSError):
            os.write(2, b"guardwrap: terminated\n")
        os._exit(TERMINATED)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def terminated_in_order() -> Iterator[None]:
    """Let SIGTERM raise ``Terminated``, so that results are kept and reported as after Ctrl-C.

    A second SIGTERM is ignored, because supervisors may send it to a process and to its group. Nothing changes if
    another handler is installed.
    """
    if not _is_ours(signal.SIGTERM, signal.SIG_DFL):
        yield
        return

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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


def let_go() -> None:
    """Discard output that cannot be written to stdout, which Python would otherwise try again at exit."""
    try:
        sys.stdout.flush()
    except ValueError:  # it is closed
        pass
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
