"""The proposal π while it is trained."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from peft import LoraConfig

from guardwrap.adapters.adapter_folder import Files, fetched, read_adapter
from guardwrap.adapters.lora import attach, merged, require_plain
from guardwrap.backends.refill.mode_selection import as_tried
from guardwrap.backends.shared_weights import is_quantised
from guardwrap.errors import AdapterMismatch, UsageError

__all__ = ["Policy", "read_start"]

Numbers = Mapping[str, torch.Tensor]


class Policy:
    """A model with numbers that change: those of a LoRA adapter, or all of them.

    They are float32 whatever the model's are: at a learning rate of 1.4e-5 an update is below the resolution of
    bfloat16, so 98 of 100 weights would never move.

    Parameters
    ----------
    base
        The model. It stays as it is.
    rank
        Of the adapter, on all linear layers. None trains a full copy instead.
    seed
        Of the adapter's first numbers.
    start
        An adapter to begin as; it says what is adapted, and its rank.

    Raises
    ------
    UsageError
        If the model cannot be trained this way.
    AdapterError
        If the adapter does not fit the model.
    """

    def __init__(self, base: Any, rank: int | None, seed: int, start: Files | None = None) -> None:
        self.rank, self._base = rank, base
        if any(_packed(module) for module in base.modules()):
            raise UsageError(
                "4-bit weights pass no gradients on with this CPU's fast kernel, so training would silently go astray; "
                "load the model in 8 bits or in bfloat16, or train on a GPU"
            )
        if rank is None:
            require_plain(base)
            if is_quantised(base):
                raise UsageError("quantised weights cannot be trained; train an adapter (full: false)")
            self.model = copy.deepcopy(base).float().requires_grad_(True).eval()
        else:
            new = LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules="all-linear")
            config, tensors = (new, None) if start is None else (start.config, start.tensors)
            self.model = attach(base, config, tensors, trainable=True, seed=seed)
        self.parameters = {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of what is trained, by name, on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.parameters.items()}

    def load_state_dict(self, numbers: Numbers) -> None:
        """Put other numbers in."""
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                tensor.copy_(numbers[name])

    def towards_base(self, numbers: Numbers, strength: float) -> dict[str, torch.Tensor]:
        """Return numbers on the straight line from the model itself, at strength 0, to the given ones, at 1."""
        if self.rank is not None:  # what an adapter adds is a product, and begins as 0 by its second factor
            return {name: strength * tensor if "lora_B" in name else tensor for name, tensor in numbers.items()}
        base = dict(self._base.named_parameters())
        return {name: base[name].detach().float().cpu().lerp(tensor, strength) for name, tensor in numbers.items()}

    def source(self) -> Any:
        """Return a model to draw from: in float32 with the adapter folded in, which saves a tenth of the time.

        In half precision folding would round the law that is drawn from, so there it stays on top.
        """
        if self.rank is None or self.model.dtype != torch.float32 or is_quantised(self.model.get_base_model()):
            return self.model
        return as_tried(merged(self.model), self._base)

    def digest(self) -> str:
        """Return what tells these numbers from others."""
        found = hashlib.sha256()
        for name in sorted(self.parameters):
            found.update(self.parameters[name].detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


def read_start(base: Any, source: str) -> Files:
    """Read an adapter that a training is to begin as.

    Raises
    ------
    AdapterError
        If its files cannot be used.
    AdapterMismatch
        If it was trained on another model.
    """
    found = read_adapter(fetched(source))
    if misfit := found.misfit(base):
        raise AdapterMismatch(f"start: {misfit}; give one of this model")
    return found


def _packed(module: torch.nn.Module) -> bool:
    """Whether bitsandbytes computes a layer in a layout of its own, which its backward pass does not know."""
    return bool(getattr(module, "support_avx512bf16_for_cpu", False)) and module.weight.device.type == "cpu"
