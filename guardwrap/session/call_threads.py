"""Threads in which a wrapper works for calls in event loops. Each wrapper has its own, so that no other one waits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from guardwrap.scheduling.batch import OnBusy

__all__ = ["CallThreads"]

Made = TypeVar("Made")


class CallThreads:
    """The threads of one wrapper, started when they are first used. They end when the wrapper is no longer used."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(thread_name_prefix="guardwrap-call")
        self._learner = ThreadPoolExecutor(1, "guardwrap-learner")

    def __reduce__(self) -> tuple[type[CallThreads], tuple[()]]:
        """Copy or pickle without the threads: a copy of a wrapper starts its own."""
        return CallThreads, ()

    async def run(self, work: Callable[[], Made]) -> Made:
        """Return the result of work without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._short, _here(work))

    async def learn(self, work: Callable[[], Made], on_busy: OnBusy | None) -> Made:
        """Return the result of work that draws attempts before a call can begin, one call of the wrapper at a time.

        Parameters
        ----------
        work
            Learns a twist, or makes a plan.
        on_busy
            Called with True before the work and with False after it, in the thread that does it.
        """

        def done() -> Made:
            if on_busy is not None:
                on_busy(True)
            try:
                return work()
            finally:
                if on_busy is not None:
                    on_busy(False)

        return await asyncio.get_running_loop().run_in_executor(self._learner, _here(done))


def _here(work: Callable[[], Made]) -> Callable[[], Made]:
    """Return work that runs in the caller's context, with its current span."""
    return partial(contextvars.copy_context().run, work)
