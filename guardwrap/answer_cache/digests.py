"""Digests of what a text depends on: weights, tokenizer, generation settings.

A digest covers all of a thing or refuses: what has a form that is not known here raises ``NotCached``, since a key that
lacks something would give the texts of another distribution.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import StopStringCriteria

from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.backends.shared_weights import is_quantised
from guardwrap.environment.transformers_internals import writes_of

__all__ = ["NotCached", "law_data", "model_digest", "sha256", "tokenizer_digest"]

SAMPLE = 64
"""Number of values of each tensor by which changes of weights are noticed that torch does not count."""


class NotCached(Exception):
    """Why a call is not answered from a cache. The message is a clause for reports."""


def sha256(data: Any) -> str:
    """Return the SHA-256 of plain JSON types, as 64 hex digits."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def model_digest(model: Any) -> str:
    """Return the SHA-256 of a model's class, configuration and weights.

    All weights are read once, which takes about a second per gigabyte, and again if any of them changed. Changes are
    noticed by torch's counters and by ``SAMPLE`` values of each tensor. Hooks and code that was attached to the model
    are not covered.

    Raises
    ------
    NotCached
        If the weights are quantized, as they are then not all in the model's tensors.
    """
    if is_quantised(model):
        raise NotCached("the model is quantized")
    with _lock:
        state = [_about(model), *(_noticed(name, tensor) for name, tensor in _tensors(model))]
        known = _digests.get(model)
        if known is None or known[0] != state:
            known = _digests[model] = state, _whole_digest(model)
        return known[1]


_lock = threading.Lock()
_digests: WeakKeyDictionary[Any, tuple[list[Any], str]] = WeakKeyDictionary()


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _about(model: Any) -> str:
    kind = type(model)
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NAMES}
    return json.dumps([kind.__module__, kind.__qualname__, config], sort_keys=True, default=str)


_NAMES = ("_name_or_path", "transformers_version")


def _noticed(name: str, tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().reshape(-1)
    values = flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].tolist()
    return name, tensor.data_ptr(), writes_of(tensor), str(tensor.dtype), tuple(tensor.shape), repr(values)


def _whole_digest(model: Any) -> str:
    digest = hashlib.sha256(_about(model).encode())
    for name, tensor in _tensors(model):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's class, vocabulary and templates. Kept until the vocabulary grows."""
    templates = [tokenizer.chat_template, getattr(tokenizer, "response_template", None)]
    state = len(tokenizer), repr(templates)
    known = _tokenizers.get(tokenizer)
    if known is None or known[0] != state:
        kind = type(tokenizer)
        special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
        about = [kind.__module__, kind.__qualname__, tokenizer.get_vocab(), special, state[1]]
        known = _tokenizers[tokenizer] = state, sha256(about)
    return known[1]


_tokenizers: WeakKeyDictionary[Any, tuple[Any, str]] = WeakKeyDictionary()


def law_data(law: GenerationLaw) -> Any:
    """Return everything that a law's texts depend on, apart from the model, as plain JSON types.

    Raises
    ------
    NotCached
        If they depend on something else, such as a clock, or on code that is not transformers'.
    """
    if law.own_functions:
        raise NotCached(f"{', '.join(law.own_functions)} is not from transformers")
    if not law.is_stateless or law.outputs is not None:
        raise NotCached("only texts that are sampled from text, without max_time, are")
    return {
        "ids": law.ids,
        "end_ids": sorted(law.end_ids),
        "max_length": law.max_length,
        "count": law.count,
        "processors": [_settings(each) for each in law.processors],
        "warpers": [_settings(each) for each in law.warpers],
        "criteria": [_settings(each) for each in law.criteria],
    }


def _settings(function: Any) -> Any:
    """Return the class and the settings of a processor, warper or criterion of transformers."""
    kind = type(function)
    # A StopStringCriteria has tables of the whole vocabulary, which its strings and the tokenizer determine.
    values = {"stop_strings": function.stop_strings} if isinstance(function, StopStringCriteria) else vars(function)
    try:
        return [kind.__name__, {name: _plain(value) for name, value in values.items()}]
    except TypeError as error:
        raise NotCached(f"{kind.__name__} has a setting of an unknown type ({error})") from None


def _plain(value: Any) -> Any:
    for kinds, convert in _PLAIN:
        if isinstance(value, kinds):
            return convert(value)
    raise TypeError(type(value).__name__)


_PLAIN: Sequence[tuple[Any, Callable[[Any], Any]]] = (
    ((bool, int, float, str, type(None)), lambda value: value),
    (torch.Tensor, lambda value: [str(value.dtype), *value.shape, hashlib.sha256(_bytes(value)).hexdigest()]),
    ((torch.device, torch.dtype), str),
    (Mapping, lambda value: [[_plain(key), _plain(item)] for key, item in value.items()]),
    ((set, frozenset), lambda value: sorted(map(repr, map(_plain, value)))),
    ((list, tuple), lambda value: [_plain(item) for item in value]),
)
