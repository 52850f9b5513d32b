"""Calls that cannot be interrupted, in threads that may be abandoned, and threads that the process waits for."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

LAST_STEP = 30.0
"""Maximum time in seconds that the exit of the process waits for threads."""

_awaited: set[threading.Thread] = set()
"""The threads of ``started``, each kept until the next one starts.

A thread that nobody keeps may still free tensors when the process ends, and would be stopped within torch.
"""

_Answer = TypeVar("_Answer")


def in_thread(call: Callable[[], _Answer], seconds: float, *, name: str) -> tuple[list[_Answer], threading.Thread]:
    """Run a call in a thread, and wait for its result for a limited time.

    Parameters
    ----------
    call
        The function to call.
    seconds
        Maximum time to wait.
    name
        The name of the thread.

    Returns
    -------
    list
        The result as its only item; empty if the call has not returned in time.
    threading.Thread
        The thread, which keeps running until the call returns.

    Raises
    ------
    BaseException
        The error that the call raised in time.
    """
    answer: list[_Answer] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        error: Any = raised[0]
        raise error
    return answer, thread


def started(work: Callable[[], None], *, name: str) -> None:
    """Start a thread that may run a model. The exit of the process waits for it: stopping it in torch would abort."""
    for finished in [each for each in list(_awaited) if not each.is_alive()]:
        _awaited.discard(finished)
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    _awaited.add(thread)


@atexit.register
def wait_for_threads() -> None:
    """Wait for the threads of ``started``, because the process exits."""
    end = time.monotonic() + LAST_STEP
    for thread in list(_awaited):
        thread.join(max(0.0, end - time.monotonic()))
