"""Threads in which a wrapper works for calls in event loops. Each wrapper has its own, so that no other one waits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from guardwrap.scheduling.batch import OnBusy

Made = TypeVar("Made")

PLANS = 4
"""Plans at a time. Most take 8 to 64 attempts, and would wait for one of a rare rule that takes 1 000."""


class CallThreads:
    """The threads of one wrapper, started when they are first used. They end when the wrapper is no longer used."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(thread_name_prefix="guardwrap-call")
        self._learner = ThreadPoolExecutor(1, "guardwrap-learner")
        self._planner = ThreadPoolExecutor(PLANS, "guardwrap-planner")

    def __reduce__(self) -> tuple[type[CallThreads], tuple[()]]:
        """Copy or pickle without the threads: a copy of a wrapper starts its own."""
        return CallThreads, ()

    async def run(self, work: Callable[[], Made]) -> Made:
        """Return the result of work without blocking the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._short, _here(work))

    async def learn(self, work: Callable[[], Made], on_busy: OnBusy | None, seconds: float | None = None) -> Made:
        """Return the result of work that learns a twist, one call of the wrapper at a time.

        ``seconds``: the most seconds to wait for it and for calls before it; None for no limit. Work that has begun
        then goes on without anyone waiting for it.
        """
        return await self._result(self._learner, work, on_busy, seconds)

    async def plan(self, work: Callable[[], Made], on_busy: OnBusy | None, seconds: float | None = None) -> Made:
        """Return the result of work that makes a plan, ``PLANS`` calls of the wrapper at a time; see ``learn``."""
        return await self._result(self._planner, work, on_busy, seconds)

    async def _result(
        self, pool: ThreadPoolExecutor, work: Callable[[], Made], on_busy: OnBusy | None, seconds: float | None
    ) -> Made:
        def done() -> Made:
            if on_busy is not None:
                on_busy(True)
            try:
                return work()
            finally:
                if on_busy is not None:
                    on_busy(False)

        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(pool, _here(done)), seconds)


def _here(work: Callable[[], Made]) -> Callable[[], Made]:
    """Return work that runs in the caller's context, with its current span."""
    return partial(contextvars.copy_context().run, work)
