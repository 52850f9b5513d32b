"""Models that compute texts past a certain length in another way, and what they keep between texts.

Up to its threshold a model computes a token from the tokens before it, in whatever passes. Past it, the result depends
on the pass: on the longest text of the batch (rotary embeddings that are scaled dynamically), on which states are
cached (LongRoPE, after which Phi-3 computes the whole text again), or on ties that the shape of the batch decides
(sparse attention). ``generate`` then draws from what it computes for one text, step by step with a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from guardwrap.environment.transformers_internals import restore_frequencies

_SELECTED = "index_topk"
"""The setting of sparse attention: the number of tokens that each token attends to."""

_IN_THE_CACHE_ONLY = ("moshi",)
"""Model types whose cache drops what lies outside the sliding window, whereas one pass over a text attends to it."""

_thresholds: WeakKeyDictionary[Any, int | None] = WeakKeyDictionary()


def length_threshold(model: Any) -> int | None:
    """Return up to how many tokens a text can be computed in any passes; None without such a limit."""
    if model not in _thresholds:
        _thresholds[model] = min(_limits(model.config.get_text_config(decoder=True)), default=None)
    return _thresholds[model]


_stepwise: WeakSet[Any] = WeakSet()


def note_cache(model: Any, *, differs: bool) -> None:
    """Note whether a model computes another distribution with its cache, which is drawn from, than in one pass."""
    (_stepwise.add if differs else _stepwise.discard)(model)


def one_pass_length(model: Any) -> int | None:
    """Return how many tokens of a text can be computed in one pass as they are drawn; None if all."""
    return 0 if model in _stepwise else length_threshold(model)


def _limits(config: Any) -> Iterator[int]:
    for parameters in _rotary_parameters(config):
        kind = str(parameters.get("rope_type"))
        if "dynamic" in kind:
            yield config.max_position_embeddings
        if kind == "longrope":
            yield parameters["original_max_position_embeddings"]
    if isinstance(limit := getattr(config, _SELECTED, None), int):
        yield limit
    if config.model_type in _IN_THE_CACHE_ONLY:
        yield config.sliding_window


def _rotary_parameters(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameters of rotary embeddings, of the model or of its layer types."""
    stack = [getattr(config, "rope_parameters", None) or {}]
    while stack:
        parameters = stack.pop()
        yield parameters
        stack += [value for value in parameters.values() if isinstance(value, dict)]


def restore_rotary(model: Any) -> None:
    """Undo what a longer text left in rotary embeddings that are scaled dynamically.

    transformers restores them only for a text that begins below the threshold.
    """
    if length_threshold(model) is None:
        return
    for module in _scaled(model):
        restore_frequencies(module)


_modules: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def _scaled(model: Any) -> list[Any]:
    if model not in _modules:
        _modules[model] = [module for module in model.modules() if hasattr(module, "original_max_seq_len")]
    return _modules[model]
