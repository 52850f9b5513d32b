"""Loading a model while other threads compute.

``from_pretrained`` changes the whole process for a moment: torch's default data type, in which code of a model may make
tensors, and a method of ``PreTrainedModel``. Without the locks here, a model that draws texts meanwhile would compute
some numbers in another precision, and two models that are loaded at once could stay without tied weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Condition, RLock, local
from typing import Any


class _DefaultDtype:
    """A lock on torch's default data type: many threads read it, and one changes it.

    Threads that want to read after a change was requested wait for it, so that the change does not wait forever.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._readers = 0
        self._writers = 0  # waiting or changing
        self._changing = False
        self._thread = local()

    @property
    def _depth(self) -> int:
        """How many nested reads the current thread has."""
        return getattr(self._thread, "depth", 0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the data type as it is. A thread may nest these contexts."""
        self._enter(1)
        try:
            yield
        finally:
            self._leave(1)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the thread's ``reading`` contexts for a while, because it waits for others."""
        depth = self._depth
        self._leave(depth)
        try:
            yield
        finally:
            self._enter(depth)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Wait until no thread reads, and let none begin. One thread at a time may be in here."""
        with self._changed:
            self._writers += 1
            self._changed.wait_for(lambda: not self._readers and not self._changing)
            self._changing = True
        try:
            yield
        finally:
            with self._changed:
                self._writers -= 1
                self._changing = False
                self._changed.notify_all()

    def _enter(self, depth: int) -> None:
        if depth and not self._depth:
            with self._changed:
                self._changed.wait_for(lambda: not self._writers)
                self._readers += 1
        self._thread.depth = self._depth + depth

    def _leave(self, depth: int) -> None:
        self._thread.depth = self._depth - depth
        if depth and not self._depth:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()


_default_dtype = _DefaultDtype()
_one_at_a_time = RLock()
_patched = local()


def computing() -> AbstractContextManager[None]:
    """Return the context in which a model is run: torch's default data type does not change meanwhile."""
    return _default_dtype.reading()


@contextmanager
def loading_model() -> Iterator[None]:
    """Return the context in which a model is loaded: one at a time in the process, while others may be run.

    They pause only while transformers changes the default data type, which is when it builds the empty modules, and not
    while it reads the weights.
    """
    with _default_dtype.paused(), _one_at_a_time:
        if getattr(_patched, "inside", False):
            yield
            return
        _patched.inside = True
        try:
            with _changing_alone():
                yield
        finally:
            _patched.inside = False


@contextmanager
def _changing_alone() -> Iterator[None]:
    """Let ``from_pretrained`` take the lock around the contexts in which it builds a model's modules."""
    from transformers import PreTrainedModel

    original = vars(PreTrainedModel)["get_init_context"]

    def contexts(cls: type[Any], *args: Any, **kwargs: Any) -> list[Any]:
        return [_default_dtype.changing(), *original.__get__(None, cls)(*args, **kwargs)]

    PreTrainedModel.get_init_context = classmethod(contexts)
    try:
        yield
    finally:
        PreTrainedModel.get_init_context = original
