"""Which model an adapter is for: a digest of its configuration and one of its weights.

The weights' digest is over the names and shapes of all parameters and a fixed sample of each one's numbers, rounded to
bfloat16. So it takes milliseconds at any size, and the same file gives the same digest whether it is loaded in
float32, bfloat16 or float16. (From float32 to float16 to bfloat16 is not the same as straight to bfloat16, so there are
two digests, one for each way; a model in float16 knows only its own.)

It tells another checkpoint, another size, a resized vocabulary, and training that moved some of the sampled numbers by
more than half a unit of bfloat16 (0.2 to 0.4 %), as good as any training of a whole tensor does. It does not tell a
change of a few numbers outside the sample, and it is no signature. Quantised weights have none: the configuration is
all that can be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from guardwrap.backends.shared_weights import is_quantised

__all__ = ["Fingerprint", "difference", "fingerprint"]

SAMPLE = 256
"""Numbers of each parameter."""

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
"""What says how a model is run or stored, not what it computes; generation settings are not the model's either."""


class Fingerprint(BaseModel):
    """Digests that tell models apart.

    Parameters
    ----------
    config
        SHA-256 of the configuration.
    weights
        SHA-256 of the weights by how they were rounded, ``"bfloat16"`` and ``"float16"``; empty where quantised.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    config: str
    weights: dict[str, str] = {}


def fingerprint(model: Any) -> Fingerprint:
    """Take a model's fingerprint.

    Parameters
    ----------
    model
        A model of transformers, with no adapter on it.
    """
    config = json.dumps(_plain(model.config.to_diff_dict()), sort_keys=True, default=str)
    digest = hashlib.sha256(config.encode()).hexdigest()
    return Fingerprint(config=digest, weights={} if is_quantised(model) else _weights(model))


def difference(model: Any, wanted: Fingerprint) -> str | None:
    """Say in a few words how a model differs from the one that a fingerprint is of, or None where it does not.

    Where weights cannot be compared, because one of the two is quantised, only the configuration is.
    """
    own = fingerprint(model)
    both = own.weights.keys() & wanted.weights.keys()
    other_weights = bool(both) and all(own.weights[name] != wanted.weights[name] for name in both)
    parts = [("configuration", own.config != wanted.config), ("weights", other_weights)]
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
        # Spread over all rows and columns: a fixed step could keep to one column.
        places = torch.arange(count) if count <= SAMPLE else torch.arange(SAMPLE) * 2_654_435_761 % count
        sample = parameter.detach().flatten()[places.to(parameter.device)].float().cpu()
        for way, digest in digests.items():
            rounded = (sample.half() if way == "float16" else sample).bfloat16()
            digest.update(f"{name} {list(parameter.shape)}\n".encode())
            digest.update(rounded.float().numpy().astype("<f4").tobytes())
    return {way: digest.hexdigest() for way, digest in digests.items()}
