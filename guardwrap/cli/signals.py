"""The process that a command runs in: Ctrl-C while it begins and ends, and streams that are closed or full."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = [
    "INTERRUPTED",
    "TERMINATED",
    "Terminated",
    "describe_os_error",
    "end_at_once",
    "end_from_now_on",
    "ends_at_once",
    "exit_of",
    "let_go",
    "open_closed_streams",
    "terminated_in_order",
]

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

TERMINATED = 143
"""Exit code after SIGTERM."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def exit_of(interruption: KeyboardInterrupt) -> tuple[str, int]:
    """Return a word for what ended a command, Ctrl-C or SIGTERM, and the exit code."""
    return ("terminated", TERMINATED) if isinstance(interruption, Terminated) else ("interrupted", INTERRUPTED)


def end_at_once(*_: object) -> None:
    """End the process with one line: as a handler of SIGINT, or in its place."""
    with suppress(OSError):
        os.write(2, b"guardwrap: interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process while modules are imported.

    KeyboardInterrupt in the middle of an import shows a traceback, or is swallowed where no exception can be raised.
    """
    changed = end_from_now_on()
    try:
        yield
    finally:
        if changed:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end_from_now_on() -> bool:
    """Let Ctrl-C end the process, and say whether that is new: where it is ignored or somebody else's, it stays so."""
    if not _is_ours(signal.SIGINT, signal.default_int_handler):
        return False
    signal.signal(signal.SIGINT, end_at_once)
    return True


def _is_ours(number: signal.Signals, usual: object) -> bool:
    """Say whether a signal's handler is the usual one, and may be changed by this thread."""
    return signal.getsignal(number) is usual and threading.current_thread() is threading.main_thread()


@contextmanager
def terminated_in_order() -> Iterator[None]:
    """Let SIGTERM raise ``Terminated``, so that what is done is kept and said as after Ctrl-C.

    A second one changes nothing: supervisors send it to a process and to its whole group. Where SIGTERM is somebody
    else's, it stays so.
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
    """Open what the caller has closed, so that no file of ours takes its number.

    Reading finds the end at once; writing to stdout fails, and what is said on stderr is lost.
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
    """Say in one line what the system refused; what names no file is about a stream, in most cases."""
    if error.filename:
        return f"{error.strerror or type(error).__name__}: {error.filename}"
    if error.errno in (errno.EPIPE, errno.EBADF):
        return "stdout was closed before everything was written"
    return f"cannot write: {error.strerror}" if error.errno == errno.ENOSPC else error.strerror or type(error).__name__


def let_go() -> None:
    """Let what stdout does not take be lost: Python would try again at its end, and complain."""
    try:
        sys.stdout.flush()
    except ValueError:  # somebody closed it
        pass
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
