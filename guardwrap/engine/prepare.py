"""What transformers makes of a prompt and the user's settings, taken through its own door.

``generate(custom_generate=callable)`` resolves configuration, keyword arguments, logits processors and stopping
criteria exactly as for its own loop and then calls the callable. Ours keeps what it is given and draws nothing.
"""

from __future__ import annotations

import copy
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinPLogitsWarper,
    StopStringCriteria,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.configuration_utils import GenerationMode

from guardwrap.errors import PromptError, UsageError, first_line, nearest

__all__ = ["Settings", "one_at_a_time", "prepare", "resolved", "without_stop_strings"]

one_at_a_time = threading.RLock()
"""Held by a thread while it changes what others read.

A model's stop strings are hidden for a moment, a tokenizer is set to truncate or pad, and transformers keeps what it
makes of stop strings in a cache of the process.
"""

# These read scores only, row by row, so one call serves the rows of every prompt.
_ROWWISE = (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    MinPLogitsWarper,
    TypicalLogitsWarper,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
)
_MODES: dict[GenerationMode, Literal["sample", "greedy", "beam"]] = {
    GenerationMode.SAMPLE: "sample",
    GenerationMode.GREEDY_SEARCH: "greedy",
    GenerationMode.BEAM_SEARCH: "beam",
}
_REFUSED = {
    "streamer": "a text may still be rejected while it streams; print it when it is returned",
    "assistant_model": "assisted generation has no place for rejection; leave it out",
    "custom_generate": "guardwrap brings its own decoding loop; leave it out",
    "prefix_allowed_tokens_fn": "it numbers the rows of a batch that guardwrap rearranges; use a logits processor",
    "past_key_values": "guardwrap keeps its own cache; pass the whole prompt",
    "inputs_embeds": "a constraint is judged on a prompt of tokens; pass input_ids",
    "negative_prompt_ids": "classifier-free guidance runs the model on rows that guardwrap rearranges",
    "synced_gpus": "guardwrap runs in one process",
}
_REFUSED_SETTINGS = {
    "max_time": "it cuts texts off by the clock; use Budget(max_seconds=...) or Budget(deadline=...)",
    "token_healing": "it rewrites the prompt; heal it beforehand",
    "output_scores": "scores of rejected attempts would be mixed in",
    "output_logits": "logits of rejected attempts would be mixed in",
    "output_attentions": "guardwrap returns texts and token ids only",
    "output_hidden_states": "guardwrap returns texts and token ids only",
}


@dataclass(frozen=True)
class Settings:
    """One prompt and everything that defines a(y) for it.

    Parameters
    ----------
    prompt_ids
        The prompt without padding; ``[length]``.
    mode
        How a token follows from scores.
    processors
        Logits processors that read the row's own tokens.
    warpers
        The rest of them, which read scores only and come last.
    criteria
        Stopping criteria other than the end-of-sequence token and the length.
    end_ids
        The end-of-sequence tokens.
    max_length
        Prompt and new tokens together.
    pad_id
        What ``model.generate`` pads with.
    return_dict
        Whether ``model.generate`` would return a ``ModelOutput``.
    count
        Texts asked for: ``num_return_sequences``.
    beams
        The sequences of a beam search, prompt included, or None in the other modes.
    """

    prompt_ids: torch.Tensor
    mode: Literal["sample", "greedy", "beam"]
    processors: LogitsProcessorList
    warpers: LogitsProcessorList
    criteria: StoppingCriteriaList
    end_ids: frozenset[int]
    max_length: int
    pad_id: int
    return_dict: bool
    count: int
    beams: torch.Tensor | None = None


def prepare(
    model: Any,
    call: Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    tokenizer: Any,
    known: Sequence[str] = (),
) -> Settings:
    """Resolve the settings for one prompt.

    Parameters
    ----------
    model
        The model in use.
    call
        Runs ``model.generate`` on the prompt with the keyword arguments that it is given.
    kwargs
        The user's generation arguments.
    tokenizer
        For stop strings.
    known
        Further names that a misspelt keyword may have meant.

    Raises
    ------
    UsageError
        If an argument is unknown, or cannot be combined with rejection.
    PromptError
        If the prompt is longer than the context.
    """
    for name, way_out in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise UsageError(f"{name} is not supported: {way_out}")
    kept: dict[str, Any] = {}

    def keep(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        kept.update(ids=input_ids, processors=logits_processor, criteria=stopping_criteria, config=generation_config)
        return input_ids

    try:
        with one_at_a_time:
            kwargs, count = _one_sequence(model, kwargs, tokenizer)
            with without_stop_strings(model.generation_config):
                call(custom_generate=keep, **kwargs)
                config = kept["config"]
                mode = _mode(config, count)
                beams = call(**kwargs | {"num_return_sequences": count}) if mode == "beam" else None
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        raise UsageError(_say(error, known)) from None
    _refuse_model_inputs(kwargs)
    processors, warpers = _split(kept["processors"])
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = kept["ids"].shape[1]
    if context is not None and length >= context:
        raise PromptError(f"the prompt has {length} tokens and the model's context {context}; shorten the prompt")
    max_length, end_ids = 2**31, frozenset[int]()
    criteria = StoppingCriteriaList()
    for criterion in kept["criteria"]:  # the user's own take the place of transformers'
        if isinstance(criterion, MaxLengthCriteria):
            max_length = min(max_length, criterion.max_length)
        elif isinstance(criterion, EosTokenCriteria):
            end_ids |= frozenset(criterion.eos_token_id.tolist())
        elif isinstance(criterion, MaxTimeCriteria):
            raise UsageError(f"MaxTimeCriteria is not supported: {_REFUSED_SETTINGS['max_time']}")
        else:
            criteria.append(criterion)
    return Settings(
        prompt_ids=kept["ids"][0],
        mode=mode,
        processors=processors,
        warpers=warpers,
        criteria=criteria,
        end_ids=end_ids,
        max_length=max_length,
        pad_id=_pad_id(config),
        return_dict=bool(config.return_dict_in_generate),
        count=count,
        beams=beams,
    )


def _refuse_model_inputs(kwargs: Mapping[str, Any]) -> None:
    """Refuse what goes to the model itself: the loop would have to carry it along from token to token."""
    known = {*vars(GenerationConfig()), "generation_config", "logits_processor", "stopping_criteria", "use_cache"}
    for name in kwargs:
        if name not in known:
            raise UsageError(f"{name} is not supported: only tokens go to the model; leave it out")


def resolved(name: str, kwargs: Mapping[str, Any], config: GenerationConfig) -> Any:
    """Look a setting up as generate does: the argument, else the configuration of the call, else the model's."""
    given = (kwargs.get(name), getattr(kwargs.get("generation_config"), name, None), getattr(config, name))
    return next((value for value in given if value is not None), None)


def _one_sequence(model: Any, kwargs: Mapping[str, Any], tokenizer: Any) -> tuple[dict[str, Any], int]:
    """Take out what guardwrap sees to itself: the number of sequences, and stop strings."""
    kwargs = {name: value for name, value in kwargs.items() if name != "tokenizer"}
    config = kwargs.get("generation_config") or model.generation_config

    count = resolved("num_return_sequences", kwargs, model.generation_config)
    count = 1 if count is None else count
    if not isinstance(count, int) or count < 1:
        raise UsageError(f"num_return_sequences={count!r}: give a whole number of at least 1")
    stops = resolved("stop_strings", kwargs, model.generation_config)
    kwargs = {name: value for name, value in kwargs.items() if name not in ("num_return_sequences", "stop_strings")}
    if kwargs.get("cache_implementation", config.cache_implementation) in ("paged", "quantized"):
        raise UsageError("cache_implementation is not supported: guardwrap keeps its own cache; leave it out")
    changes: dict[str, Any] = {"num_return_sequences": 1}
    if stops:
        # generate() drops the tokenizer when a callable decodes, and then cannot build this itself.
        criteria = [*(kwargs.pop("stopping_criteria", None) or []), StopStringCriteria(tokenizer, stops)]
        kwargs |= {"stopping_criteria": StoppingCriteriaList(criteria), "stop_strings": None}
    if kwargs.get("generation_config") is not None:
        # generate() warns of a configuration together with single settings, so the change goes into a copy.
        kwargs["generation_config"] = copy.deepcopy(config)
        kwargs["generation_config"].update(stop_strings=None, **changes)
        return kwargs, count
    return kwargs | changes, count


@contextmanager
def without_stop_strings(config: GenerationConfig) -> Iterator[None]:
    """Hide the model's own stop strings, which no argument can: generate() fills in what is None."""
    with one_at_a_time:
        stops, config.stop_strings = config.stop_strings, None
        try:
            yield
        finally:
            config.stop_strings = stops


def _mode(config: GenerationConfig, count: int) -> Literal["sample", "greedy", "beam"]:
    for name, way_out in _REFUSED_SETTINGS.items():
        if getattr(config, name, None):
            raise UsageError(f"{name} is not supported: {way_out}")
    mode = _MODES.get(config.get_generation_mode())
    if mode is None:
        raise UsageError(
            f"generation mode {config.get_generation_mode().value!r} is not supported: "
            "use sampling (do_sample=True, num_beams=1), greedy search or beam search"
        )
    if mode == "greedy" and count > 1:
        raise UsageError(f"greedy search gives one text, not num_return_sequences={count}; pass do_sample=True")
    return mode


def _split(processors: LogitsProcessorList) -> tuple[LogitsProcessorList, LogitsProcessorList]:
    """Split off the longest tail of processors that read scores only."""
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor | SynthIDTextWatermarkLogitsProcessor):
            raise UsageError(f"{type(processor).__name__} is not supported: it keeps state for the rows of a batch")
    cut = len(processors)
    while cut and isinstance(processors[cut - 1], _ROWWISE):
        cut -= 1
    return LogitsProcessorList(processors[:cut]), LogitsProcessorList(processors[cut:])


def _pad_id(config: GenerationConfig) -> int:
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return next((token for token in (config.pad_token_id, *ends) if token is not None), 0)


def _say(error: Exception, known: Sequence[str]) -> str:
    """One line of transformers' complaint, with the nearest spelling of an unknown argument."""
    message = first_line(error)
    unused = re.search(r"not used by the model: \['(\w+)'", message)
    if not unused:
        return message
    names = [*vars(GenerationConfig()), *known]
    return f"unknown argument {unused[1]!r}{nearest(unused[1], [n for n in names if not n.startswith('_')])}"
