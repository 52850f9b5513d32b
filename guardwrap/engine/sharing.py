"""Copies of a model that hold no weights of their own."""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["shared_copy"]


def shared_copy(model: Any) -> Any:
    """Copy a model's modules but none of its numbers: parameters and buffers are the model's own tensors.

    What is done to the copy's modules, such as adding an adapter, leaves the model as it is, for other threads too.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)
