"""The thread in which a server loads and unloads its models, one at a time, while it serves requests."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from guardwrap.environment.process import release_freed_memory
from guardwrap.errors import own_error

Made = TypeVar("Made")


def free_memory() -> None:
    """Return the memory of unloaded models to the operating system, and that of the GPU to its driver."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    release_freed_memory()


class ModelLoader:
    """One thread: loading a model changes the process for a moment, and two that are loaded need memory for both."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "guardwrap-loading")
        self._idle = Event()
        self._idle.set()

    async def run(self, work: Callable[[], Made]) -> Made:
        """Return the result of work, after what came before it."""

        def run() -> Made:
            self._idle.clear()
            try:
                return work()
            except BaseException as error:
                raise own_error(error) from None  # so that e.g. SystemExit does not end the server
            finally:
                self._idle.set()

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def free(self) -> None:
        """Free the memory of models that are no longer used, before the next one is loaded."""
        self._thread.submit(free_memory)

    def close(self, seconds: float) -> bool:
        """Load nothing from now on; return whether the thread became idle within this time."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        return self._idle.wait(seconds)
