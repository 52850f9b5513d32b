"""The proposal π during training."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from peft import LoraConfig

from guardwrap.adapters.adapter_folder import Files, fetched, read_adapter
from guardwrap.adapters.lora import attach, merged, require_plain
from guardwrap.backends.model_weights import is_quantised
from guardwrap.backends.refill.mode_selection import as_tried
from guardwrap.errors import AdapterMismatch, UsageError

Numbers = Mapping[str, torch.Tensor]


class Policy:
    """A model with trainable parameters: those of a LoRA adapter, or all of a copy.

    The parameters are float32 whatever the model's dtype: at a learning rate of 1.4e-5 an update is below the
    resolution of bfloat16, so 98 of 100 weights would never change.
    """

    def __init__(self, base: Any, rank: int | None, seed: int, start: Files | None = None) -> None:
        self.rank, self._base = rank, base
        if any(_packed(module) for module in base.modules()):
            raise UsageError(
                "the fast CPU kernel for 4-bit weights does not propagate gradients, so training would silently fail; "
                "load the model in 8 bits or in bfloat16, or train on a GPU"
            )
        if rank is None:
            require_plain(base)
            if is_quantised(base):
                raise UsageError("quantized weights cannot be trained; train an adapter (full: false)")
            self.model = copy.deepcopy(base).float().requires_grad_(True).eval()
        else:
            new = LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules="all-linear")
            config, tensors = (new, None) if start is None else (start.config, start.tensors)
            self.model = attach(base, config, tensors, trainable=True, seed=seed)
        self.parameters = {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of the trainable parameters by name, on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.parameters.items()}

    def load_state_dict(self, numbers: Numbers) -> None:
        """Set the trainable parameters."""
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                tensor.copy_(numbers[name])

    def towards_base(self, numbers: Numbers, strength: float) -> dict[str, torch.Tensor]:
        """Interpolate linearly between the model itself, at strength 0, and the given parameters, at 1."""
        if self.rank is not None:  # the update is the product B A, so scaling B scales it
            return {name: strength * tensor if "lora_B" in name else tensor for name, tensor in numbers.items()}
        base = dict(self._base.named_parameters())
        return {name: base[name].detach().float().cpu().lerp(tensor, strength) for name, tensor in numbers.items()}

    def source(self) -> Any:
        """Return a model to draw from: in float32 with the adapter merged, which saves a tenth of the time.

        In half precision merging would round the distribution, so the adapter stays separate.
        """
        if self.rank is None or self.model.dtype != torch.float32 or is_quantised(self.model.get_base_model()):
            return self.model
        return as_tried(merged(self.model), self._base)

    def digest(self) -> str:
        """Return a SHA-256 digest of the trainable parameters."""
        found = hashlib.sha256()
        for name in sorted(self.parameters):
            found.update(self.parameters[name].detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


def read_start(base: Any, source: str) -> Files:
    """Read an adapter from which a training starts."""
    found = read_adapter(fetched(source))
    if misfit := found.misfit(base):
        raise AdapterMismatch(f"start: {misfit}; give an adapter of this model")
    return found


def _packed(module: torch.nn.Module) -> bool:
    """Return whether bitsandbytes uses a CPU layout for a layer that its backward pass does not support."""
    return bool(getattr(module, "support_avx512bf16_for_cpu", False)) and module.weight.device.type == "cpu"
