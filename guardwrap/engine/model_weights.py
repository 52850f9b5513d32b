"""A model's weights: computed with in float32, shared with a copy, or quantized."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from guardwrap.support.transformers_internals import TorchDispatchMode, is_mutable

HALF = (torch.bfloat16, torch.float16)


@contextmanager
def in_float32() -> Iterator[None]:
    """Return a context in which this thread computes in float32 with half-precision numbers.

    The model is not changed. Weights are converted for one operation at a time, because a copy of the whole model in
    float32 may not fit into memory. Kernels of other libraries that accept only half precision raise their own errors.

    In one run, this gave the same logits to the last bit as hooks that convert each module's weights while it runs, in
    0.9 of the CPU seconds. It also works for modules whose weights are read by others, as in Mamba and Jamba, where
    hooks raise.
    """
    with _Checked(), _Operations():  # type: ignore[no-untyped-call]
        yield


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Converts the arguments of each operation, below the Python layer of torch."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.embedding.default:  # convert the looked-up rows, and not the whole table
            return _wide(func(*args, **(kwargs or {})))
        if is_mutable(func):  # a converted copy would be written to, instead of the argument
            return func(*args, **(kwargs or {}))
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


class _Checked(TorchFunctionMode):
    """Converts arguments for functions that compare their types before the operation is dispatched."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.conv1d:
            return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})
        return func(*args, **(kwargs or {}))


def _wide(value: Any) -> Any:
    # Recursive, without torch's tree_map, with which 55 000 operations of a test took 7 instead of 2.4 CPU seconds.
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALF else value
    if isinstance(value, torch.dtype):
        return torch.float32 if value in HALF else value
    if isinstance(value, list | tuple):
        return [_wide(item) for item in value]
    return value


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def shared_copy(model: Any, *, own_parameters: bool = False) -> Any:
    """Copy a model's modules without copying its parameters, buffers and hooks, which are the same objects in both.

    Changes to the copy's modules, such as adding an adapter, do not affect the model, even in other threads.

    ``own_parameters``: whether the copy gets new parameter objects over the same memory, so that freezing them or
    assigning them new data does not affect the model. They then do not follow the model to another device or dtype.
    Tied weights stay tied. Quantized weights, which are never trained, are shared as objects in any case.
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    if own_parameters:
        for parameter in model.parameters():
            if type(parameter) is torch.nn.Parameter:
                alias = torch.nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
                shared[id(parameter)] = alias
    # Hooks may belong to objects that cannot be copied, or that would no longer see the calls of a copy.
    shared |= {id(hook): hook for module in model.modules() for name in _HOOKS for hook in vars(module)[name].values()}
    return copy.deepcopy(model, shared)


def is_quantised(model: Any) -> bool:
    """Return whether weights are stored in fewer bits than used in computations, by transformers, torch or others."""
    return (
        getattr(model, "hf_quantizer", None) is not None
        or getattr(model, "rounds_with_batch", False)  # of llama.cpp
        or any(
            type(parameter) is not torch.nn.Parameter or not parameter.is_floating_point()
            for parameter in model.parameters()
        )
        # Modules quantized by torch, e.g. with quantize_dynamic, have no parameters.
        or any(type(module).__module__.startswith("torch.ao.nn.quantized") for module in model.modules())
    )
