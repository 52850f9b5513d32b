"""What transformers does not promise and guardwrap uses all the same: every such name stands here and nowhere else.

``USED`` lists them; a test names those that a new release of transformers has taken away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache, GenerationConfig, GenerationMixin
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
    "NEW_TEXT",
    "NEW_TEXT_BESIDE_IMAGES",
    "USED",
    "Chat",
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "GenerationMode",
    "Given",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionLayer",
    "batch_size_of",
    "beam_search",
    "default_settings",
    "end_ids",
    "is_valid_message",
    "library_lock",
    "read_arguments",
    "sampling_loop",
    "stand_in",
    "tokenizer_lock",
    "without_stop_strings",
]

USED: tuple[tuple[Any, str], ...] = (
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
    (LinearAttentionLayer(1), "number_of_states"),
    (LinearAttentionLayer(1), "conv_states"),
    (LinearAttentionLayer(1), "recurrent_states"),
    (text_generation, "ReturnType"),
    (image_text_to_text, "ReturnType"),
)
"""Names that are not public, each with what has it, as far as a class or module can tell."""

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
        dict(pipe._generate_kwargs),
    )


def default_settings(pipe: Pipeline) -> dict[str, Any]:
    """Return the generation settings of a pipeline's class, which hold where neither call nor model says otherwise."""
    defaults: GenerationConfig | None = getattr(pipe, "_default_generation_config", None)
    return {} if defaults is None else defaults.to_diff_dict()


def batch_size_of(pipe: Pipeline) -> int | None:
    """Return the batch size that a pipeline was made with."""
    size: int | None = pipe._batch_size
    return size


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
