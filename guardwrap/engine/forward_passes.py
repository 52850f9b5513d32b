"""Forward passes of a model: with any shape, past its length threshold, and when memory runs out.

Up to its threshold a model computes a token from the tokens before it, in whatever passes. Past it, the result depends
on the pass: on the longest text of the batch (rotary embeddings that are scaled dynamically), on which states are
cached (LongRoPE, after which Phi-3 computes the whole text again), or on ties that the shape of the batch decides
(sparse attention). ``generate`` then draws from what it computes for one text, step by step with a cache.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from transformers import Cache, DynamicCache

from guardwrap.engine.scheduling.backend import Ids
from guardwrap.errors import ModelError
from guardwrap.support.model_loading import computing
from guardwrap.support.transformers_internals import CACHE_NAMES, is_compiled, restore_frequencies, uncompiled

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


_scaled_modules: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def restore_rotary(model: Any) -> None:
    """Undo what a longer text left in rotary embeddings that are scaled dynamically.

    transformers restores them only for a text that begins below the threshold.
    """
    if length_threshold(model) is None:
        return
    if model not in _scaled_modules:
        _scaled_modules[model] = [module for module in model.modules() if hasattr(module, "original_max_seq_len")]
    for module in _scaled_modules[model]:
        restore_frequencies(module)


class _Setting:
    """A setting of the process that is changed until the last thread leaves."""

    def __init__(self, change: Callable[[], AbstractContextManager[Any]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._inside = 0
        self._before = ExitStack()

    @contextmanager
    def changed(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._before.enter_context(self._change())
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._before.close()


@contextmanager
def _no_plans() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


_WITHOUT_CUDNN = _Setting(_no_plans)

_UNCOMPILED = _Setting(lambda: torch.compiler.set_stance("force_eager"))

_compiled: WeakSet[Any] = WeakSet()


def look_for_compiled(model: Any) -> None:
    """Note whether ``torch.compile`` was applied to a model or a part of it, for later passes."""
    (_compiled.add if any(map(is_compiled, model.modules())) else _compiled.discard)(model)


@contextmanager
def for_any_shape(model: Any) -> Iterator[None]:
    """Return a context in which nothing is made for a single shape: no plans of cuDNN, no code by ``torch.compile``.

    On Hopper and newer GPUs torch prefers cuDNN for attention in half precision with a mask, and cuDNN builds a plan
    for each new pair of rows and columns: about 0.07 s on an H100, 0.4 s on a B200
    (https://github.com/modelscope/FunASR/issues/3704). ``torch.compile`` compiles again, and after some shapes gives
    up, with an error under ``fullgraph=True``. ``generate`` meets the shapes of its first call again in the next one.
    Rows that come and go have a new shape at nearly every step.

    The settings are those of the process. They are restored when the last thread leaves.
    """
    with ExitStack() as settings:
        if model.device.type == "cuda":
            settings.enter_context(_WITHOUT_CUDNN.changed())
        if model in _compiled:  # changing the stance takes 50 µs
            settings.enter_context(_UNCOMPILED.changed())
        yield


def taken_by(model: Any) -> frozenset[str]:
    """Return the names of the arguments of a model's ``forward``; of one that wraps another, of the model below it."""
    return _parameters(type(_base(model)))  # type: ignore[arg-type]


def _base(model: Any) -> Any:
    """Return the model below an adapter or ``torch.compile``."""
    model = uncompiled(model)
    return uncompiled(model.get_base_model()) if hasattr(model, "get_base_model") else model


@cache
def _parameters(kind: type) -> frozenset[str]:
    """Return the names of the arguments of ``forward``, and those that it may pass on to the class that it extends."""
    names: set[str] = set()
    for parent in kind.__mro__:
        if "forward" in vars(parent):
            parameters = inspect.signature(vars(parent)["forward"]).parameters
            names |= parameters.keys()
            if not {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= {
                parameter.kind for parameter in parameters.values()
            }:
                break
    return frozenset(names)


def run_model(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Cache | None
) -> torch.Tensor:
    """Run the model; return logits of the last position, ``[rows, vocabulary]``, float32."""
    return _run(model, ids, mask, positions, past, 1)[:, -1]


def left_padded(texts: Sequence[Ids], device: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return texts padded on the left, so that each ends in the last column: ids, mask, positions, ``[rows, columns]``.

    So each layer's newest states are those of its window, whatever the length of a text.
    """
    longest = max(map(len, texts))
    ids = torch.tensor([(0,) * (longest - len(text)) + tuple(text) for text in texts], device=device)
    lengths = torch.tensor([len(text) for text in texts], device=device)
    mask = (torch.arange(longest, device=device) >= longest - lengths[:, None]).long()
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def in_one_pass(model: Any, ids: torch.Tensor, last: int | None = None) -> torch.Tensor:
    """Run the model on texts of one length without a cache.

    Returns logits of all positions, or of the ``last`` ones: ``[rows, tokens, vocabulary]``, float32.
    """
    mask = torch.ones_like(ids)
    return _run(model, ids, mask, mask.cumsum(-1) - 1, None, last or ids.shape[1])


def run_next(model: Any, ids: torch.Tensor, past: Any) -> tuple[torch.Tensor, Any]:
    """Run the model as ``generate`` does for one text, ``[1, length]``, of which all but the last token are cached.

    Returns logits of the next token, ``[1, vocabulary]``, float32, and the cache with all tokens: the same one, unless
    the model has computed the text again.
    """
    end = ids.shape[1]
    mask = torch.ones_like(ids)
    positions = torch.arange(end, device=ids.device)[None]
    threshold = length_threshold(model)
    if threshold is None or end <= threshold:
        return run_model(model, ids[:, -1:], mask, positions[:, -1:], past), past
    accepted = taken_by(model)
    cache_name = next((name for name in CACHE_NAMES if name in accepted), None)
    if cache_name is None:
        return run_model(model, ids, mask, positions, None), past
    extra = {"position_ids": positions, "logits_to_keep": 1}
    inputs = _base(model).prepare_inputs_for_generation(
        ids,
        next_sequence_length=1,
        attention_mask=mask,
        use_cache=True,
        **{cache_name: past},
        **{name: value for name, value in extra.items() if name in accepted},
    )
    restore_rotary(model)
    with computing(), for_any_shape(model):
        output = model(**inputs, return_dict=True)
    return output.logits[:, -1].float(), output[cache_name]


def scores_of_text(model: Any, ids: Ids, prompt: int) -> torch.Tensor:
    """Compute a text as ``generate`` does, given its prompt's length; return logits after the prompt and each token.

    What any passes compute alike is computed in one. ``[len(ids) - prompt + 1, vocabulary]``.
    """
    text = torch.tensor([ids], device=model.device)
    threshold = one_pass_length(model)
    begin = len(ids) if threshold is None else min(len(ids), max(prompt, threshold))
    past = None if begin == len(ids) else fresh_cache(model)
    logits, _ = run_text(model, text, begin, past, begin - prompt + 1)
    return logits


def run_text(model: Any, text: torch.Tensor, begin: int, past: Any, kept: int = 1) -> tuple[torch.Tensor, Any]:
    """Compute the first ``begin`` tokens of a text, ``[1, length]``, in one pass, and the others as they are drawn.

    Returns logits after the last ``kept`` of the first tokens and after each other token, ``[tokens, vocabulary]``, and
    the cache with all tokens, or None.
    """
    mask = torch.ones_like(text[:, :begin])
    steps = [_run(model, text[:, :begin], mask, mask.cumsum(-1) - 1, past, kept)[0]]
    for end in range(begin + 1, text.shape[1] + 1):
        logits, past = run_next(model, text[:, :end], past)
        steps.append(logits)
    return torch.cat(steps), past


def _run(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Cache | None, kept: int
) -> torch.Tensor:
    accepted = taken_by(model)
    extra = {"position_ids": positions, "logits_to_keep": kept, "attention_mask": mask}
    extra |= dict.fromkeys(CACHE_NAMES, past)
    inputs = {name: value for name, value in extra.items() if name in accepted and value is not None}
    restore_rotary(model)
    with computing(), for_any_shape(model):
        output = model(input_ids=ids, use_cache=past is not None, return_dict=True, **inputs)
    logits: torch.Tensor = output.logits[:, -kept:].float()
    return logits


def fresh_cache(model: Any) -> DynamicCache:
    """Return an empty cache of the library's class for a model."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))


logger = logging.getLogger("guardwrap")

_ROOM_AGAIN = 0.01
"""Seconds until a single attempt looks for room again."""


class RoomTaken(torch.OutOfMemoryError):  # never leaves the engine
    """Others have all of the memory, and give it back when their texts end."""


def halved(size: int, error: torch.OutOfMemoryError) -> int:
    """Return half the number of concurrent attempts, after memory ran out."""
    if size == 1 and isinstance(error, RoomTaken):
        time.sleep(_ROOM_AGAIN)
        return size
    if size == 1:
        raise ModelError("out of memory with one attempt at a time; shorten the prompt or max_new_tokens") from error
    logger.warning("out of memory: continuing with at most %d attempts at once", size // 2)
    torch.cuda.empty_cache()
    return size // 2
