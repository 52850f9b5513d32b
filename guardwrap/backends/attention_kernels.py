"""Kernels and code that any batch can use at once, whatever its numbers of rows and columns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

import torch

from guardwrap.environment.transformers_internals import is_compiled


class _Setting:
    """A setting of the process that is changed until the last thread leaves."""

    def __init__(self, change: Callable[[], AbstractContextManager[Any]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._inside = 0
        self._before = ExitStack()

    @contextmanager
    def changed(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._before.enter_context(self._change())
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._before.close()


@contextmanager
def _no_plans() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


_WITHOUT_CUDNN = _Setting(_no_plans)
_UNCOMPILED = _Setting(lambda: torch.compiler.set_stance("force_eager"))

_compiled: WeakSet[Any] = WeakSet()


def look_for_compiled(model: Any) -> None:
    """Note whether ``torch.compile`` was applied to a model or a part of it, for later passes."""
    (_compiled.add if any(map(is_compiled, model.modules())) else _compiled.discard)(model)


@contextmanager
def for_any_shape(model: Any) -> Iterator[None]:
    """Return a context in which nothing is made for a single shape: no plans of cuDNN, no code by ``torch.compile``.

    On Hopper and newer GPUs torch prefers cuDNN for attention in half precision with a mask, and cuDNN builds a plan
    for each new pair of rows and columns: about 0.07 s on an H100, 0.4 s on a B200
    (https://github.com/modelscope/FunASR/issues/3704). ``torch.compile`` compiles again, and after some shapes gives
    up, with an error under ``fullgraph=True``. ``generate`` meets the shapes of its first call again in the next one.
    Rows that come and go have a new shape at nearly every step.

    The settings are those of the process. They are restored when the last thread leaves.
    """
    with ExitStack() as settings:
        if model.device.type == "cuda":
            settings.enter_context(_WITHOUT_CUDNN.changed())
        if model in _compiled:  # changing the stance takes 50 µs
            settings.enter_context(_UNCOMPILED.changed())
        yield
