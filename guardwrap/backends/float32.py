"""A model of half precision computed in float32: for log-probabilities, and where rounding must not decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from guardwrap.environment.transformers_internals import TorchDispatchMode, is_mutable

__all__ = ["HALF", "in_float32"]

HALF = (torch.bfloat16, torch.float16)


@contextmanager
def in_float32() -> Iterator[None]:
    """Compute in float32 what this thread computes with numbers of half precision.

    The model stays as it is, and one operation's weights are converted at a time: a copy of the whole model in float32
    may not fit into memory. Kernels of other libraries that take half precision only raise their own errors.

    Against hooks that widen each module's weights while it runs, in one run: the same logits to the last bit, 0.9 of
    the CPU seconds; and it holds for modules whose weights others read, as in Mamba and Jamba, where hooks raise.
    """
    with _Checked(), _Operations():  # type: ignore[no-untyped-call]
        yield


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Converts what goes into each operation, below Python's part of torch."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.embedding.default:  # not the whole table for a few rows of it
            return _wide(func(*args, **(kwargs or {})))
        if is_mutable(func):  # what it writes to stays what it is
            return func(*args, **(kwargs or {}))
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


class _Checked(TorchFunctionMode):
    """Converts for functions that compare the types of their arguments before the operation begins."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.conv1d:
            return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})
        return func(*args, **(kwargs or {}))


def _wide(value: Any) -> Any:
    # By hand and not by torch's tree_map: 55 000 operations of a test took 7 instead of 2.4 CPU seconds.
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALF else value
    if isinstance(value, torch.dtype):
        return torch.float32 if value in HALF else value
    if isinstance(value, list | tuple):
        return [_wide(item) for item in value]
    return value
