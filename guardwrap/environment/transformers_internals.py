"""Everything that guardwrap uses of transformers without a promise: each such name stands here and nowhere else.

``USED`` lists them, and torch's, and a test names those that a new release has taken away; those of other libraries
are in ``internals``, which needs no torch. What differs between the supported releases of transformers is here too,
each branch with the release in which it changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel, cache_utils
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)
from transformers.generation.configuration_utils import GenerationMode
from transformers.pipelines import Pipeline, TextGenerationPipeline, image_text_to_text, text_generation
from transformers.utils.chat_template_utils import Chat, is_valid_message

__all__ = [
    "CACHE_NAMES",
    "NEW_TEXT",
    "NEW_TEXT_BESIDE_IMAGES",
    "USED",
    "Chat",
    "DummyLayer",
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "GenerationMode",
    "Given",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionLayer",
    "TorchDispatchMode",
    "batch_size_of",
    "beam_search",
    "default_settings",
    "end_ids",
    "gguf_options",
    "is_mutable",
    "is_valid_message",
    "kept_states",
    "library_lock",
    "put_state",
    "read_arguments",
    "sampling_loop",
    "stand_in",
    "take_flags",
    "tokenizer_lock",
    "without_stop_strings",
    "writes_of",
]

FLAGS = ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state")
"""What a layer of linear attention notes about its states."""

USED: tuple[tuple[Any, str], ...] = (
    (torch.ops.aten.embedding.default, "_schema"),
    (torch.Tensor, "_version"),
    (PreTrainedModel, "_no_split_modules"),
    (PreTrainedModel, "_supports_sdpa"),
    (Pipeline, "_sanitize_parameters"),
    (Pipeline, "preprocess"),
    (Pipeline, "postprocess"),
    (TextGenerationPipeline, "_default_generation_config"),
    (TextGenerationPipeline, "check_model_type"),
    (GenerationMixin, "_sample"),
    (GenerationMixin, "_beam_search"),
    (GenerationConfig, "get_generation_mode"),
    (DynamicCache(), "layers"),
    (DynamicCache, "reorder_cache"),
    (DynamicLayer, "lazy_initialization"),
    (LinearAttentionLayer(), "conv_states"),
    (LinearAttentionLayer(), "recurrent_states"),
    *((LinearAttentionLayer(), flag) for flag in FLAGS),
    (text_generation, "ReturnType"),
    (image_text_to_text, "ReturnType"),
)
"""Names that are not public, each with what has it, as far as a class or module can tell."""

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What ``forward`` calls its cache: from 5.24 on, before, and in Mamba before."""

DummyLayer: type | None = getattr(cache_utils, "DummyLayer", None)
"""A layer that keeps nothing, or shares another's states; before 5.23 it is a ``DynamicLayer`` that stays empty."""

NEW_TEXT = text_generation.ReturnType.NEW_TEXT
NEW_TEXT_BESIDE_IMAGES = image_text_to_text.ReturnType.NEW_TEXT

library_lock = RLock()
"""Held by a thread while it changes what others read.

A model's stop strings are hidden for a moment, and transformers keeps what it makes of stop strings in a cache of the
process. No prompt is tokenized under it: that may take seconds.
"""

_tokenizer_locks: WeakKeyDictionary[Any, RLock] = WeakKeyDictionary()


def tokenizer_lock(tokenizer: Any) -> RLock:
    """Return what a thread holds while it uses a tokenizer, which is set to truncate or pad meanwhile.

    A copy of a tokenizer has a lock of its own. Who takes the library's lock as well takes that first.
    """
    with library_lock:
        return _tokenizer_locks.setdefault(tokenizer, RLock())


class Given(NamedTuple):
    """The arguments of a call, as a pipeline hands them to its three stages."""

    preprocess: dict[str, Any]
    forward: dict[str, Any]
    postprocess: dict[str, Any]
    settings: dict[str, Any]
    """Those of ``generate`` from the pipeline's construction."""


def read_arguments(pipe: Pipeline, options: Mapping[str, Any]) -> Given:
    """Read the arguments of a call as the pipeline does, its own from construction included."""
    with library_lock, tokenizer_lock(pipe.tokenizer):  # a prefix is tokenized
        preprocess, forward, postprocess = pipe._sanitize_parameters(**options)
    return Given(
        {**pipe._preprocess_params, **preprocess},
        {**pipe._forward_params, **forward},
        {**pipe._postprocess_params, **postprocess},
        _settings(pipe),
    )


def default_settings(pipe: Pipeline) -> dict[str, Any]:
    """Return the generation settings of a pipeline's class, which hold where neither call nor model says otherwise."""
    defaults: GenerationConfig | None = getattr(pipe, "_default_generation_config", None)
    return {} if defaults is None else defaults.to_diff_dict()


def _settings(pipe: Pipeline) -> dict[str, Any]:
    """Return the arguments of ``generate`` that a pipeline was made with; before 5.20 as a whole configuration."""
    given = getattr(pipe, "_generate_kwargs", None)
    return {"generation_config": pipe.generation_config} if given is None else dict(given)


def batch_size_of(pipe: Pipeline) -> int | None:
    """Return the batch size that a pipeline was made with."""
    size: int | None = pipe._batch_size
    return size


def kept_states(layer: LinearAttentionLayer) -> dict[tuple[str, int], torch.Tensor]:
    """Return the states of a layer of linear attention, by name and number; before 5.15 there is one of each name."""
    states: dict[tuple[str, int], torch.Tensor] = {}
    for name in ("conv_states", "recurrent_states"):
        kept = getattr(layer, name)
        numbered = kept.items() if isinstance(kept, dict) else [(0, kept)]
        states |= {(name, number): state for number, state in numbered if state is not None}
    return states


def put_state(layer: LinearAttentionLayer, place: tuple[str, int], state: torch.Tensor) -> None:
    """Replace a state of a layer of linear attention; ``place`` is its key in ``kept_states``."""
    name, number = place
    kept = getattr(layer, name)
    if isinstance(kept, dict):
        kept[number] = state
    else:
        setattr(layer, name, state)


def take_flags(layer: LinearAttentionLayer, like: LinearAttentionLayer) -> None:
    """Let a layer of linear attention note about its states what another one does."""
    for name in (*FLAGS, "number_of_states", "conv_kernel_size", "device", "dtype"):
        if hasattr(like, name):  # not every release has the last four, and not every layer before it is first written
            setattr(layer, name, copy.copy(getattr(like, name)))


def is_mutable(operation: Any) -> bool:
    """Whether an operation of torch writes to its arguments."""
    return bool(operation._schema.is_mutable)


def writes_of(parameter: torch.Tensor) -> int:
    """Return how often a tensor was written; 0 where torch does not count it."""
    return 0 if parameter.is_inference() else parameter._version


def sampling_loop(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the loop that ``generate`` samples with, or searches greedily."""
    return model._sample(*args, **kwargs)


def beam_search(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the loop that ``generate`` searches with beams."""
    return model._beam_search(*args, **kwargs)


def end_ids(config: GenerationConfig) -> list[int]:
    """Return the end-of-sequence tokens of a configuration."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return [token for token in ends if token is not None]


def gguf_options() -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that unpack a GGUF file; before 5.17 it always does."""
    kind = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def stand_in(ids: torch.Tensor, config: GenerationConfig) -> torch.Tensor:
    """Return what ``generate`` may go on with in place of drawn texts: the prompts, ended at once.

    What was drawn is kept aside, so nothing that ``generate`` or a pipeline does to texts afterwards matters: Whisper,
    for instance, goes on to a next round if a text happens to have timestamps.
    """
    return torch.nn.functional.pad(ids, (0, 1), value=next(iter(end_ids(config)), 0))


@contextmanager
def without_stop_strings(config: GenerationConfig) -> Iterator[None]:
    """Hide the model's own stop strings, which no argument can: generate() fills in what is None."""
    with library_lock:
        stops, config.stop_strings = config.stop_strings, None
        try:
            yield
        finally:
            config.stop_strings = stops
