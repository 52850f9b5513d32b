"""Copies of a model that share its weights, and detection of quantized weights."""

from __future__ import annotations

import copy
from typing import Any

import torch

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
        or any(
            type(parameter) is not torch.nn.Parameter or not parameter.is_floating_point()
            for parameter in model.parameters()
        )
        # Modules quantized by torch, e.g. with quantize_dynamic, have no parameters.
        or any(type(module).__module__.startswith("torch.ao.nn.quantized") for module in model.modules())
    )
