"""Attention kernels that any batch can use at once, whatever its numbers of rows and columns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["for_any_shape"]

_lock = threading.Lock()
_inside = 0
_before = True


@contextmanager
def for_any_shape(device: torch.device) -> Iterator[None]:
    """Return a context in which attention on a GPU does not use cuDNN.

    On Hopper and newer GPUs torch prefers cuDNN for attention in half precision with a mask, and cuDNN builds a plan
    for each new pair of rows and columns: about 0.07 s on an H100, 0.4 s on a B200
    (https://github.com/modelscope/FunASR/issues/3704). ``generate`` meets the shapes of its first call again in the
    next one. Rows that come and go have a new shape at nearly every step. Other kernels have no plans.

    The setting is one of the process. It is restored when the last thread leaves.
    """
    global _inside, _before
    if device.type != "cuda":
        yield
        return
    with _lock:
        if not _inside:
            _before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            torch.backends.cuda.enable_cudnn_sdp(False)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                torch.backends.cuda.enable_cudnn_sdp(_before)
