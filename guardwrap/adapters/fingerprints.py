"""Fingerprints that identify the model of an adapter: digests of its configuration and of its weights.

The digest of the weights covers names and shapes of all parameters, and a fixed sample of each parameter's values,
rounded to bfloat16. It takes milliseconds for any model, and the same file has the same digest whether it is loaded in
float32, bfloat16 or float16. (Rounding from float32 to float16 to bfloat16 differs from rounding to bfloat16 directly,
so there are two digests; a model in float16 has only one of them.)

It detects another checkpoint, another size, a resized vocabulary, and training that changed some of the sampled values
by more than half a unit of bfloat16 (0.2 to 0.4 %), as almost any training of a whole tensor does. It does not detect a
change of a few values outside the sample, and it is not a signature. Quantized weights have no digest, so only
configurations are compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict

from guardwrap.backends.model_weights import is_quantised

SAMPLE = 256
"""Number of values sampled from each parameter."""

_VOLATILE = {
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "quantization_config",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "transformers_weights",
    "use_cache",
}
"""Configuration fields that do not affect the model's computation, such as storage and generation settings."""


class Fingerprint(BaseModel):
    """Digests that identify a model.

    Parameters
    ----------
    config
        SHA-256 of the configuration.
    weights
        SHA-256 of the weights for each rounding, ``"bfloat16"`` and ``"float16"``; empty for quantized models.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, frozen=True)

    config: str
    weights: dict[str, str] = {}


def fingerprint(model: Any) -> Fingerprint:
    """Compute a model's fingerprint.

    Parameters
    ----------
    model
        A transformers model without an adapter.
    """
    config = json.dumps(_plain(model.config.to_diff_dict()), sort_keys=True, default=str)
    digest = hashlib.sha256(config.encode()).hexdigest()
    return Fingerprint(config=digest, weights={} if is_quantised(model) else _weights(model))


def difference(model: Any, wanted: Fingerprint) -> str | None:
    """Return in a few words how a model differs from a fingerprint, or None if it matches.

    If one of the models is quantized, only the configurations are compared.
    """
    actual = fingerprint(model)
    both = actual.weights.keys() & wanted.weights.keys()
    other_weights = bool(both) and all(actual.weights[name] != wanted.weights[name] for name in both)
    parts = [("configuration", actual.config != wanted.config), ("weights", other_weights)]
    different = [name for name, differs in parts if differs]
    return f"another {' and other '.join(different)}" if different else None


def _plain(config: Any) -> Any:
    if isinstance(config, Mapping):
        kept = {str(key): _plain(value) for key, value in config.items() if key not in _VOLATILE}
        return {key: value for key, value in kept.items() if value is not None}
    if isinstance(config, list | tuple):
        return [_plain(value) for value in config]
    return config


@torch.no_grad()
def _weights(model: Any) -> dict[str, str]:
    ways = ("float16",) if model.dtype == torch.float16 else ("bfloat16", "float16")
    digests = {way: hashlib.sha256() for way in ways}
    for name, parameter in sorted(model.named_parameters()):
        count = parameter.numel()
        # Positions spread over all rows and columns; a fixed step could stay in one column.
        places = torch.arange(count) if count <= SAMPLE else torch.arange(SAMPLE) * 2_654_435_761 % count
        sample = parameter.detach().flatten()[places.to(parameter.device)].float().cpu()
        for way, digest in digests.items():
            rounded = (sample.half() if way == "float16" else sample).bfloat16()
            digest.update(f"{name} {list(parameter.shape)}\n".encode())
            digest.update(rounded.float().numpy().astype("<f4").tobytes())
    return {way: digest.hexdigest() for way, digest in digests.items()}
