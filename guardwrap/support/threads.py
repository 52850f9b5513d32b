"""Threads: calls that may be abandoned, work that the process waits for, values that are computed without a lock."""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

LAST_STEP = 30.0
"""Maximum time in seconds that the exit of the process waits for threads."""

_awaited: set[threading.Thread] = set()
"""The threads of ``started``, each kept until the next one starts.

A thread that nobody keeps may still free tensors when the process ends, and would be stopped within torch.
"""

_Answer = TypeVar("_Answer")


def in_thread(call: Callable[[], _Answer], seconds: float, *, name: str) -> tuple[list[_Answer], threading.Thread]:
    """Run a call in a thread, and wait for its result so many seconds.

    Return a list with the result, which is empty if there is none in time, and the thread, which runs until the call
    returns. An error that the call raised in time is raised here.
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


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801  # in its place
        """A value that is computed at first use, without a lock: functools' decorator as in Python 3.12.

        In 3.11 it holds a lock of the class while it computes. So while one constraint loads its model, or asks it, all
        other constraints of its kind would wait. Here two threads may compute a value at once, and the first one stays.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            values = vars(instance)
            if self.attrname not in values:
                values.setdefault(self.attrname, self.func(instance))
            return values[self.attrname]
