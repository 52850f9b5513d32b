"""Calls that nothing can interrupt, in threads that may be left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["in_thread"]

_Answer = TypeVar("_Answer")


def in_thread(call: Callable[[], _Answer], seconds: float, *, name: str) -> tuple[list[_Answer], threading.Thread]:
    """Call in a thread, and wait for it so many seconds.

    Returns
    -------
    list
        The answer, or nothing where there is none yet.
    threading.Thread
        Which is at work then.

    Raises
    ------
    BaseException
        What the call raised in time.
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
