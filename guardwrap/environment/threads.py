"""Calls that cannot be interrupted, in threads that may be abandoned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["in_thread"]

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
