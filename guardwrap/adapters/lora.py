"""LoRA adapters on a model whose own weights, flags and modules stay as they are."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer

from guardwrap.backends.shared_weights import is_quantised, shared_copy
from guardwrap.constraints.kinds.regex_analysis import filtered_warnings
from guardwrap.environment.transformers_internals import library_lock
from guardwrap.errors import AdapterError, UsageError, first_line

__all__ = ["attach", "merged", "require_plain", "tensors_of"]

PARTS_WAY_OUT = "merge it into the model with peft (merge_and_unload) and give that checkpoint"

FIRST = re.compile(r"base_model\.model\.(.+)\.lora_(?:A\.weight|embedding_A)")
"""Name of the first of a layer's two factors, which is ``[rank, the layer's inputs]``."""

LARGEST = 1e6
"""Number of an adapter: what is larger can only overflow."""


def attach(
    model: Any,
    config: LoraConfig,
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    trainable: bool = False,
    seed: int = 0,
) -> PeftModel:
    """Put an adapter on a copy of a model that shares the model's weights.

    The model itself is not touched: not its numbers, not its ``requires_grad`` flags, not its modules. The adapter's
    numbers are float32 whatever the model's are, because half precision swallows small updates; what its layers return
    has the model's dtype.

    Parameters
    ----------
    model
        A causal language model.
    config
        What is adapted, and how; it is copied.
    tensors
        The adapter's numbers, by name, as in ``adapter_model.safetensors``; None for a new adapter, which does nothing
        yet.
    trainable
        Whether gradients go to the adapter. They never go to the model's weights. Modules are in evaluation mode
        either way.
    seed
        Of a new adapter's first numbers. The global generator is left as it was.

    Returns
    -------
    PeftModel
        peft's own model; ``get_base_model()`` of it is a model of the original's class.

    Raises
    ------
    UsageError
        If the model cannot take an adapter.
    AdapterError
        If the adapter does not fit the model.
    """
    require_plain(model)
    _settle_quantised(model)
    if config.modules_to_save or config.trainable_token_indices or config.bias != "none":
        raise AdapterError(f"an adapter that replaces parts of the model is not supported; {PARTS_WAY_OUT}")
    if tensors is not None:
        tensors = _without_copies(model, tensors)
        _require_layers(model, tensors)
    config = copy.deepcopy(config)
    config.task_type = config.task_type or "CAUSAL_LM"
    config.inference_mode = not trainable
    try:
        shared = shared_copy(model, own_parameters=True)
        # Alone, as other threads draw their seeds from the same generator; that of the CPU, where peft draws.
        with library_lock, torch.random.fork_rng(devices=[]), filtered_warnings("ignore"):
            torch.default_generator.manual_seed(seed)
            adapted = get_peft_model(shared, config)
    except (ValueError, TypeError, RuntimeError, KeyError, AttributeError) as error:  # whatever peft makes of a config
        raise AdapterError(f"the adapter does not fit {type(model).__name__}: {first_line(error)}") from None
    if adapted.peft_config["default"].target_parameters:  # peft's own choice for "all-linear", for instance
        raise AdapterError(
            f"the experts of {type(model).__name__} are no layers of their own, and adapters for them are not "
            "supported; name layers, e.g. target_modules=['q_proj', 'v_proj']"
        )
    if tensors is not None:
        _fill(adapted, tensors)
    for parameter in adapted.parameters():
        if not trainable:
            parameter.requires_grad_(False)
    return adapted.eval()


def require_plain(model: Any) -> None:
    """Require a causal language model with no adapter on it and all its weights at hand.

    Raises
    ------
    UsageError
        If it is something else.
    """
    if model.config.is_encoder_decoder:
        raise UsageError(
            f"{type(model).__name__} has an encoder and a decoder; adapters need a causal language model, whose texts "
            "can be weighed"
        )
    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise UsageError(
            "the model has an adapter of its own, and so it is not clear what a second one is on top of; merge it "
            "first (model.merge_and_unload())"
        )
    if not all(_copies(module) for module in model.modules()):
        raise UsageError(
            "the model's forward was replaced by a function, as torch.compile does, and a copy would still run the "
            "original; give the model without it"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("some of the model's weights are offloaded, and an adapter needs them all; load it in full")


def _copies(module: torch.nn.Module) -> bool:
    """Whether a copy of a module runs itself: its forward is that of its class, or bound to the module."""
    forward = vars(module).get("forward")
    if isinstance(forward, partial):  # as accelerate's hooks do it
        return bool(forward.args) and forward.args[0] is module
    return forward is None or getattr(forward, "__self__", None) is module


def tensors_of(adapted: PeftModel) -> dict[str, torch.Tensor]:
    """Return an adapter's numbers by name, as they stand in ``adapter_model.safetensors``; on the CPU, contiguous."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in _named(adapted).items()}


def merged(adapted: PeftModel) -> Any:
    """Return a model with the adapter's update in its weights: W + BA, computed in float32, in the dtype of W.

    Only the adapted layers have weights of their own; all else is shared with the model under the adapter, which stays
    as it is. In half precision the update is rounded with the weights.

    Raises
    ------
    UsageError
        If the weights are quantised.
    RuntimeError
        What torch raises when memory runs out.
    """
    if is_quantised(adapted.get_base_model()):
        raise UsageError("an adapter cannot be folded into quantised weights without changing them")
    twin = shared_copy(adapted)
    for layer in twin.modules():
        if isinstance(layer, BaseTunerLayer):
            # A weight of its own, also where the layer is tied to another one: peft writes into it.
            base = layer.get_base_layer()
            for name, parameter in base.named_parameters(recurse=False):
                setattr(base, name, torch.nn.Parameter(parameter.detach().clone(), requires_grad=False))
    with torch.no_grad(), filtered_warnings("ignore"):
        return twin.merge_and_unload().eval()


def _named(adapted: PeftModel) -> dict[str, torch.Tensor]:
    """Return an adapter's own tensors by their names in files."""
    with filtered_warnings("ignore"):
        found: dict[str, torch.Tensor] = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    return found


def _without_copies(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Leave out copies of the model's own embeddings, which peft saves beside an adapter on them or by request.

    Raises
    ------
    AdapterError
        If one differs from the model's own.
    """
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    layers = {name: module for name, module in model.named_modules() if any(module is each for each in embeddings)}
    own = {
        f"base_model.model.{layer}.{middle}{name}": parameter
        for layer, module in layers.items()
        for name, parameter in module.named_parameters(recurse=False)
        for middle in ("", "base_layer.")
    }
    kept = dict(tensors)
    for key in sorted(tensors.keys() & own.keys()):
        tensor, parameter = kept.pop(key), own[key]
        # A model is loaded in its dtype from the same numbers.
        if not torch.equal(tensor.to(parameter.dtype), parameter.detach().cpu()):
            raise AdapterError(
                f"adapter_model.safetensors has a copy of {key.removeprefix('base_model.model.')!r} that differs from "
                "this model's own; if it was not trained, save it again with save_embedding_layers=False, otherwise "
                + PARTS_WAY_OUT
            )
    return kept


def _require_layers(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Require that the layers are the model's, and as wide as its, before peft makes room for them.

    It compares every layer of an adapter with every other one, and takes a rank for what a file says it is.
    """
    layers = dict(model.named_modules())
    for name, tensor in tensors.items():
        if not (first := FIRST.fullmatch(name)):
            continue
        if first[1] not in layers:
            raise _no_part(name, model)
        sizes = (getattr(layers[first[1]], size, None) for size in ("in_features", "num_embeddings", "nx"))
        inputs = next((size for size in sizes if isinstance(size, int)), None)
        if inputs is not None and (tensor.dim() != 2 or tensor.shape[1] != inputs):
            raise _other_shape(name, tensor, [*tensor.shape[:1], inputs])


def _no_part(name: str, model: Any) -> AdapterError:
    return AdapterError(
        f"adapter_model.safetensors has {name[:200]!r}, which is no part of a LoRA adapter on "
        f"{type(model).__name__}; it was trained for another model, or changes more of it"
    )


def _other_shape(name: str, tensor: torch.Tensor, wanted: list[int]) -> AdapterError:
    return AdapterError(
        f"{name!r} has the shape {list(tensor.shape)} and this model needs {wanted}: the adapter is for another model"
    )


def _fill(adapted: PeftModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give an adapter its numbers.

    peft copies whatever has the name of a parameter, those of the model under it included, whose memory is the
    user's. So the names must be exactly the adapter's.
    """
    wanted = _named(adapted)
    for name in sorted(tensors.keys() - wanted.keys()):
        raise _no_part(name, adapted.get_base_model())
    for name in sorted(wanted.keys() - tensors.keys()):
        raise AdapterError(f"adapter_model.safetensors lacks {name!r}; the file is not complete")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise _other_shape(name, tensor, list(wanted[name].shape))
        if not bool((tensor.float().abs() <= LARGEST).all()):
            raise AdapterError(f"{name!r} has numbers above {LARGEST:g}, or that are none; train the adapter again")
    with filtered_warnings("ignore"):
        set_peft_model_state_dict(adapted, {name: tensor.float() for name, tensor in tensors.items()})


def _settle_quantised(model: Any) -> None:
    """Let 8-bit layers move their scales where they keep them, as their own first forward pass does.

    They take them out of the weight, which a copy shares: whichever ran first would have kept them for itself.
    """
    for module in model.modules():
        if hasattr(module, "init_8bit_state") and getattr(module.weight, "CB", None) is not None:
            module.init_8bit_state()
