"""LoRA adapters on a model whose weights, flags and modules are not changed."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer

from guardwrap.constraints.regex_analysis import filtered_warnings
from guardwrap.engine.model_weights import is_quantised, shared_copy
from guardwrap.errors import AdapterError, UsageError, first_line
from guardwrap.support.transformers_internals import library_lock

PARTS_WAY_OUT = "merge it into the model with peft (merge_and_unload) and give that checkpoint"

FIRST = re.compile(r"base_model\.model\.(.+)\.lora_(?:A\.weight|embedding_A)")
"""Name of the first of a layer's two factors, with shape ``[rank, inputs]``."""

LARGEST = 1e6
"""Largest absolute value in an adapter; larger ones would overflow."""


def attach(
    model: Any,
    config: LoraConfig,
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    trainable: bool = False,
    seed: int = 0,
) -> PeftModel:
    """Put an adapter on a copy of a model that shares the model's weights.

    The model's weights, ``requires_grad`` flags and modules are not changed. The adapter's weights are float32 whatever
    the model's dtype, because half precision loses small updates; its layers return the model's dtype.

    Parameters
    ----------
    model
        A causal language model.
    config
        Configuration of the adapter, which is copied.
    tensors
        The adapter's weights by their names in ``adapter_model.safetensors``; None for a new adapter, which has no
        effect yet.
    trainable
        Whether the adapter's weights require gradients. The model's weights never do. Modules are in evaluation mode in
        both cases.
    seed
        Seed of a new adapter's initial values. The state of the global generator is restored.

    Returns
    -------
    PeftModel
        The adapted model; its ``get_base_model()`` has the class of the original.

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
        # Locked, as other threads use the same generator. peft draws initial values on the CPU.
        with library_lock, torch.random.fork_rng(devices=[]), filtered_warnings("ignore"):
            torch.default_generator.manual_seed(seed)
            adapted = get_peft_model(shared, config)
    except (
        ValueError,
        TypeError,
        RuntimeError,
        KeyError,
        AttributeError,
    ) as error:  # from peft, for invalid configs
        raise AdapterError(f"the adapter does not fit {type(model).__name__}: {first_line(error)}") from None
    if adapted.peft_config["default"].target_parameters:  # chosen by peft, for instance for "all-linear"
        raise AdapterError(
            f"the experts of {type(model).__name__} are not separate layers, and adapters for them are not "
            "supported; name layers, e.g. target_modules=['q_proj', 'v_proj']"
        )
    if tensors is not None:
        _fill(adapted, tensors)
    for parameter in adapted.parameters():
        if not trainable:
            parameter.requires_grad_(False)
    return adapted.eval()


def require_plain(model: Any) -> None:
    """Raise UsageError unless a model is a causal language model without an adapter, with all weights in memory."""
    if model.config.is_encoder_decoder:
        raise UsageError(
            f"{type(model).__name__} has an encoder and a decoder; adapters need a causal language model, whose texts "
            "can be weighed"
        )
    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise UsageError(
            "the model already has an adapter, and guardwrap cannot add a second one; merge it first "
            "(model.merge_and_unload())"
        )
    if not all(_copies(module) for module in model.modules()):
        raise UsageError(
            "the model's forward was replaced by a function, as torch.compile does, and a copy would still run the "
            "original; pass the model before that"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("some of the model's weights are offloaded, and an adapter requires all; load the whole model")


def _copies(module: torch.nn.Module) -> bool:
    """Return whether a copy of a module would run itself: its forward is the class's, or bound to the module."""
    forward = vars(module).get("forward")
    if isinstance(forward, partial):  # set by accelerate's hooks
        return bool(forward.args) and forward.args[0] is module
    return forward is None or getattr(forward, "__self__", None) is module


def tensors_of(adapted: PeftModel) -> dict[str, torch.Tensor]:
    """Return an adapter's weights by their names in ``adapter_model.safetensors``, contiguous and on the CPU."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in _named(adapted).items()}


def merged(adapted: PeftModel) -> Any:
    """Return a model with the adapter merged into its weights: W + BA, computed in float32, in the dtype of W.

    Only the adapted layers are copied; all other weights are shared with the model, which is not changed. In half
    precision the sum is rounded.

    Raises
    ------
    UsageError
        If the weights are quantized.
    RuntimeError
        If torch runs out of memory.
    """
    if is_quantised(adapted.get_base_model()):
        raise UsageError("an adapter cannot be merged into quantized weights without changing them; use it unmerged")
    twin = shared_copy(adapted)
    for layer in twin.modules():
        if isinstance(layer, BaseTunerLayer):
            # Copy weights, also tied ones, because peft writes into them.
            base = layer.get_base_layer()
            for name, parameter in base.named_parameters(recurse=False):
                setattr(base, name, torch.nn.Parameter(parameter.detach().clone(), requires_grad=False))
    with torch.no_grad(), filtered_warnings("ignore"):
        return twin.merge_and_unload().eval()


def _named(adapted: PeftModel) -> dict[str, torch.Tensor]:
    """Return an adapter's tensors by their names in files."""
    with filtered_warnings("ignore"):
        found: dict[str, torch.Tensor] = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    return found


def _without_copies(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Remove copies of the model's embeddings, which peft may save with an adapter."""
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
        # The model may have been loaded in another dtype than the file's.
        if not torch.equal(tensor.to(parameter.dtype), parameter.detach().cpu()):
            raise AdapterError(
                f"adapter_model.safetensors has a copy of {key.removeprefix('base_model.model.')!r} that differs from "
                "this model's own; if it was not trained, save it again with save_embedding_layers=False, otherwise "
                + PARTS_WAY_OUT
            )
    return kept


def _require_layers(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise unless the adapter's layers exist in the model with the same width, before peft allocates memory.

    peft compares every layer of an adapter with every other one, and trusts the ranks in a file.
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
        f"adapter_model.safetensors has {name[:200]!r}, which is not part of a LoRA adapter on "
        f"{type(model).__name__}; it was trained for another model, or changes more of it"
    )


def _other_shape(name: str, tensor: torch.Tensor, wanted: list[int]) -> AdapterError:
    return AdapterError(
        f"{name!r} has the shape {list(tensor.shape)}, but this model requires {wanted}; use an adapter of this model"
    )


def _fill(adapted: PeftModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set an adapter's weights.

    peft copies every tensor whose name is that of a parameter, including the model's own weights, which belong to the
    user. So the names must be exactly the adapter's.
    """
    wanted = _named(adapted)
    for name in sorted(tensors.keys() - wanted.keys()):
        raise _no_part(name, adapted.get_base_model())
    for name in sorted(wanted.keys() - tensors.keys()):
        raise AdapterError(f"adapter_model.safetensors lacks {name!r}; the file is incomplete, get it again")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise _other_shape(name, tensor, list(wanted[name].shape))
        if not bool((tensor.float().abs() <= LARGEST).all()):
            raise AdapterError(f"{name!r} has values above {LARGEST:g} or NaN; train the adapter again")
    with filtered_warnings("ignore"):
        set_peft_model_state_dict(adapted, {name: tensor.float() for name, tensor in tensors.items()})


def _settle_quantised(model: Any) -> None:
    """Let 8-bit layers initialize their state, as their first forward pass would.

    That moves the scales out of the weight, which copies share, so otherwise only the first copy to run would have
    them.
    """
    for module in model.modules():
        if hasattr(module, "init_8bit_state") and getattr(module.weight, "CB", None) is not None:
            module.init_8bit_state()
