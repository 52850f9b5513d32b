"""What transformers makes of a prompt and the user's settings, taken through its own door.

``generate(custom_generate=callable)`` resolves configuration, keyword arguments, logits processors and stopping
criteria exactly as for its own loop and then calls the callable. Ours keeps what it is given and draws nothing.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MaxLengthCriteria,
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

from guardwrap.errors import PromptError, UsageError, nearest

__all__ = ["Settings", "prepare"]

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
    kwargs, count = _one_sequence(model, kwargs, tokenizer)
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
        call(custom_generate=keep, **kwargs)
    except (ValueError, TypeError) as error:
        raise UsageError(_say(error, known)) from None
    config = kept["config"]
    mode = _mode(config, count)
    processors, warpers = _split(kept["processors"])
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = kept["ids"].shape[1]
    if context is not None and length >= context:
        raise PromptError(f"the prompt has {length} tokens and the model's context {context}; shorten the prompt")
    return Settings(
        prompt_ids=kept["ids"][0],
        mode=mode,
        processors=processors,
        warpers=warpers,
        criteria=StoppingCriteriaList(
            criterion
            for criterion in kept["criteria"]
            if not isinstance(criterion, MaxLengthCriteria | EosTokenCriteria)
        ),
        end_ids=_end_ids(config),
        max_length=config.max_length,
        pad_id=_pad_id(config),
        return_dict=bool(config.return_dict_in_generate),
        count=count,
        beams=call(**kwargs | {"num_return_sequences": count}) if mode == "beam" else None,
    )


def _one_sequence(model: Any, kwargs: Mapping[str, Any], tokenizer: Any) -> tuple[dict[str, Any], int]:
    """Take out what guardwrap sees to itself: the number of sequences, and stop strings."""
    kwargs = {name: value for name, value in kwargs.items() if name != "tokenizer"}
    config = kwargs.get("generation_config") or model.generation_config
    given = kwargs.pop("num_return_sequences", None)
    count = given if given is not None else config.num_return_sequences or 1
    if not isinstance(count, int) or count < 1:
        raise UsageError(f"num_return_sequences={count!r}: give a whole number of at least 1")
    stops = kwargs.pop("stop_strings", None) or config.stop_strings
    changes: dict[str, Any] = {"num_return_sequences": 1}
    if stops:
        # generate() drops the tokenizer when a callable decodes, and then cannot build this itself.
        criteria = [*(kwargs.pop("stopping_criteria", None) or []), StopStringCriteria(tokenizer, stops)]
        kwargs |= {"stopping_criteria": StoppingCriteriaList(criteria), "stop_strings": None}
    if kwargs.get("generation_config") is not None or config.stop_strings:
        # generate() warns of a configuration together with single settings, so the change goes into a copy.
        kwargs["generation_config"] = copy.deepcopy(config)
        kwargs["generation_config"].update(stop_strings=None, **changes)
        return kwargs, count
    return kwargs | changes, count


def _mode(config: GenerationConfig, count: int) -> Literal["sample", "greedy", "beam"]:
    for name, way_out in _REFUSED_SETTINGS.items():
        if getattr(config, name, None):
            raise UsageError(f"{name} is not supported: {way_out}")
    if config.cache_implementation == "quantized":
        raise UsageError("cache_implementation='quantized' is not supported: leave it out")
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


def _end_ids(config: GenerationConfig) -> frozenset[int]:
    ids = config.eos_token_id
    return frozenset(() if ids is None else [ids] if isinstance(ids, int) else ids)


def _pad_id(config: GenerationConfig) -> int:
    ends = _end_ids(config)
    return config.pad_token_id if config.pad_token_id is not None else min(ends, default=0)


def _say(error: Exception, known: Sequence[str]) -> str:
    """One line of transformers' complaint, with the nearest spelling of an unknown argument."""
    message = str(error).strip().splitlines()[0]
    unused = re.search(r"not used by the model: \['(\w+)'", message)
    if not unused:
        return message
    names = [*vars(GenerationConfig()), *known]
    return f"unknown argument {unused[1]!r}{nearest(unused[1], [n for n in names if not n.startswith('_')])}"
