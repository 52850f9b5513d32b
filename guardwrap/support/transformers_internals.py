"""All uses of names that transformers and torch do not document as public, and differences between their releases.

``USED`` lists these names, and a test reports those that a new release has removed. A test lists those of other
libraries. Each branch for a release of transformers names the release in which
the behavior changed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
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

from guardwrap.errors import GuardwrapError, UsageError, first_line, nearest

__all__ = [
    "Chat",
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "GenerationMode",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionLayer",
    "TorchDispatchMode",
    "is_valid_message",
]
"""Names of transformers and torch that others import from here."""

FLAGS = ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state")
"""Attributes of a linear attention layer that describe its states."""

USED: tuple[tuple[Any, str], ...] = (
    (torch.ops.aten.embedding.default, "_schema"),
    (torch.Tensor, "_version"),
    (torch.nn.Module, "_compiled_call_impl"),
    (PreTrainedModel, "_no_split_modules"),
    (PreTrainedModel, "_supports_sdpa"),
    (PreTrainedModel, "get_init_context"),
    (Pipeline, "_sanitize_parameters"),
    (Pipeline, "preprocess"),
    (Pipeline, "postprocess"),
    (TextGenerationPipeline, "_default_generation_config"),
    (TextGenerationPipeline, "check_model_type"),
    (GenerationMixin, "prepare_inputs_for_generation"),
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
"""Pairs of an object and the name of an attribute that is not public, as far as they can be checked without a model."""

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""Names of the argument of ``forward`` for the cache: since 5.24, before 5.24, and in Mamba before 5.24."""

DummyLayer: type | None = getattr(cache_utils, "DummyLayer", None)
"""The class of layers without states, or with another layer's. Before 5.23 these are empty ``DynamicLayer`` objects."""

NEW_TEXT = text_generation.ReturnType.NEW_TEXT
NEW_TEXT_BESIDE_IMAGES = image_text_to_text.ReturnType.NEW_TEXT

library_lock = RLock()
"""A lock that a thread holds while it changes state that other threads read.

A model's stop strings are hidden for a moment, and transformers has a process-wide cache for processed stop strings.
No prompt is tokenized while it is held, because that may take seconds.
"""

_tokenizer_locks: WeakKeyDictionary[Any, RLock] = WeakKeyDictionary()


def tokenizer_lock(tokenizer: Any) -> RLock:
    """Return the lock to hold while using a tokenizer, because a call sets its truncation and padding.

    A copy of a tokenizer has its own lock. To hold ``library_lock`` too, acquire that last: this one may take seconds.
    """
    with library_lock:
        return _tokenizer_locks.setdefault(tokenizer, RLock())


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text, without those that the tokenizer puts around it."""
    with tokenizer_lock(tokenizer):
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class Given(NamedTuple):
    """The arguments of a call, as a pipeline passes them to its three stages."""

    preprocess: dict[str, Any]
    forward: dict[str, Any]
    postprocess: dict[str, Any]
    settings: dict[str, Any]
    """Arguments for ``generate`` from the creation of the pipeline."""


def read_arguments(pipe: Pipeline, options: Mapping[str, Any]) -> Given:
    """Return the arguments of a call for each stage, including those from the creation of the pipeline."""
    with tokenizer_lock(pipe.tokenizer), library_lock:  # the option ``prefix`` is tokenized here
        preprocess, forward, postprocess = pipe._sanitize_parameters(**options)
    return Given(
        {**pipe._preprocess_params, **preprocess},
        {**pipe._forward_params, **forward},
        {**pipe._postprocess_params, **postprocess},
        _settings(pipe),
    )


def _settings(pipe: Pipeline) -> dict[str, Any]:
    """Return the arguments for ``generate`` that a pipeline was created with; before 5.20 as a whole configuration."""
    arguments = getattr(pipe, "_generate_kwargs", None)
    return {"generation_config": pipe.generation_config} if arguments is None else dict(arguments)


def default_settings(pipe: Pipeline) -> dict[str, Any]:
    """Return the generation settings of a pipeline's class, which apply unless the call or the model overrides them."""
    defaults: GenerationConfig | None = getattr(pipe, "_default_generation_config", None)
    return {} if defaults is None else defaults.to_diff_dict()


def batch_size_of(pipe: Pipeline) -> int | None:
    """Return the batch size that a pipeline was created with, or None."""
    size: int | None = pipe._batch_size
    return size


def kept_states(layer: LinearAttentionLayer) -> dict[tuple[str, int], torch.Tensor]:
    """Return the states of a linear attention layer, by name and number."""
    kept = {name: getattr(layer, name) for name in ("conv_states", "recurrent_states")}
    return {(name, i): state for name, states in kept.items() for i, state in states.items() if state is not None}


def put_state(layer: LinearAttentionLayer, place: tuple[str, int], state: torch.Tensor) -> None:
    """Replace a state of a linear attention layer; ``place`` is its key in ``kept_states``."""
    name, number = place
    getattr(layer, name)[number] = state


def take_flags(layer: LinearAttentionLayer, like: LinearAttentionLayer) -> None:
    """Copy the attributes that describe the states of a linear attention layer from the layer ``like``."""
    for name in (*FLAGS, "number_of_states", "conv_kernel_size", "device", "dtype"):
        if hasattr(like, name):  # some releases, and some layers before they are first used, do not have the last four
            setattr(layer, name, copy.copy(getattr(like, name)))


def is_mutable(operation: Any) -> bool:
    """Return whether an operation of torch writes to its arguments."""
    return bool(operation._schema.is_mutable)


def uncompiled(model: Any) -> Any:
    """Return the model below ``torch.compile``, which is the model itself if it was not applied."""
    return getattr(model, "_orig_mod", model)


def is_compiled(module: Any) -> bool:
    """Return whether ``torch.compile`` was applied to a module itself, in any of its three ways."""
    # Not uncompiled(): a module searches long for an attribute that it lacks, and each call asks all modules.
    wrapped = "_orig_mod" in module._modules or hasattr(module.forward, "_torchdynamo_orig_callable")
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None


def restore_frequencies(module: Any) -> None:
    """Undo what a longer text left in rotary embeddings that are scaled dynamically."""
    usual = module.original_max_seq_len
    for name, frequencies in dict(module.named_buffers(recurse=False)).items():
        prefix = name.removesuffix("original_inv_freq")
        if prefix != name and getattr(module, f"{prefix}max_seq_len_cached", usual) != usual:
            setattr(module, f"{prefix}inv_freq", frequencies)
            setattr(module, f"{prefix}max_seq_len_cached", usual)


def writes_of(parameter: torch.Tensor) -> int:
    """Return how often a tensor was written to; 0 for inference tensors, for which torch does not count it."""
    return 0 if parameter.is_inference() else parameter._version


def sampling_loop(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the loop that ``generate`` uses for sampling and greedy search."""
    return model._sample(*args, **kwargs)


def beam_search(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the loop that ``generate`` uses for beam search."""
    return model._beam_search(*args, **kwargs)


def end_ids(config: GenerationConfig) -> list[int]:
    """Return the end-of-sequence tokens of a configuration."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return [token for token in ends if token is not None]


def stand_in(ids: torch.Tensor, config: GenerationConfig) -> torch.Tensor:
    """Return a placeholder for drawn texts, which ``generate`` then processes: each prompt with one token that ends it.

    The drawn texts are stored elsewhere, so later processing by ``generate`` or a pipeline has no effect on them.
    Whisper, for example, would start another round if a text contains timestamps.
    """
    return torch.nn.functional.pad(ids, (0, 1), value=next(iter(end_ids(config)), 0))


@contextmanager
def without_stop_strings(config: GenerationConfig) -> Iterator[None]:
    """Hide the model's own stop strings. No argument of ``generate`` can, because it replaces None by these."""
    with library_lock:
        stops, config.stop_strings = config.stop_strings, None
        try:
            yield
        finally:
            config.stop_strings = stops


def translated(known: Sequence[str], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and raise transformers' errors as errors of ours."""
    try:
        return call(*args, **kwargs)
    except GuardwrapError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(_say(error, known)) from None


def _say(error: Exception, known: Sequence[str]) -> str:
    """One line of transformers' complaint, with the nearest spelling of an unknown argument."""
    message = first_line(error)
    unused = re.search(r"not used by the model: \['(\w+)'", message)
    if not unused:
        return message
    names = [*vars(GenerationConfig()), *known]
    if unused[1] in _ELSEWHERE:
        return f"unknown argument {unused[1]!r}: here it is {_ELSEWHERE[unused[1]]!r}"
    if unused[1] in BUDGET_LIMITS:
        return f"unknown argument {unused[1]!r}: it belongs to the budget, budget=Budget({unused[1]}=...)"
    if unused[1] in _ONCE:
        return f"unknown argument {unused[1]!r}: it belongs to the wrapper, GuardedGenerator(..., {unused[1]}=...)"
    return f"unknown argument {unused[1]!r}{nearest(unused[1], [n for n in names if not n.startswith('_')])}"


_ELSEWHERE = {"n": "num_return_sequences", "max_tokens": "max_new_tokens", "stop": "stop_strings"}
"""What other libraries call it."""

BUDGET_LIMITS = ("max_attempts", "max_seconds", "deadline", "max_computed_tokens", "timeout")
"""The limits of a ``Budget``, except ``max_tokens``, which other libraries call ``max_new_tokens``."""

_ONCE = ("allow_code",)
"""What is said when a pipeline is wrapped, and not in a call."""
