"""Copies of a model that hold no weights of their own, and what its weights are."""

from __future__ import annotations

import copy
from typing import Any

import torch

__all__ = ["is_quantised", "shared_copy"]


def shared_copy(model: Any, *, own_parameters: bool = False) -> Any:
    """Copy a model's modules but none of its numbers: parameters and buffers are the model's own tensors.

    What is done to the copy's modules, such as adding an adapter, leaves the model as it is, for other threads too.

    Parameters
    ----------
    model
        The model.
    own_parameters
        Whether the copy gets parameter objects of its own over the same memory, so that freezing them or giving them
        other memory does not reach the model. They then do not follow the model to another device or dtype. Tied
        weights stay tied. Quantised weights, which nothing trains, are the model's own objects all the same.
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    if own_parameters:
        for parameter in model.parameters():
            if type(parameter) is torch.nn.Parameter:
                alias = torch.nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
                shared[id(parameter)] = alias
    return copy.deepcopy(model, shared)


def is_quantised(model: Any) -> bool:
    """Whether weights are stored in fewer bits than they compute with: by transformers, torch, or another library."""
    return (
        getattr(model, "hf_quantizer", None) is not None
        or any(
            type(parameter) is not torch.nn.Parameter or not parameter.is_floating_point()
            for parameter in model.parameters()
        )
        # torch's own, as quantize_dynamic makes them, have no parameters.
        or any(type(module).__module__.startswith("torch.ao.nn.quantized") for module in model.modules())
    )
