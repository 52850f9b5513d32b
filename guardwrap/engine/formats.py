"""What goes in and what comes out: pipelines, prompts and records in the forms that transformers knows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedModel, TextGenerationPipeline, pipeline
from transformers.pipelines import Pipeline
from transformers.pipelines.text_generation import ReturnType
from transformers.utils.chat_template_utils import Chat, is_valid_message

from guardwrap.engine.local import load_local
from guardwrap.engine.prepare import resolved
from guardwrap.errors import ModelError, PromptError, UsageError, first_line

__all__ = ["as_pipeline", "padding_mask", "read_prompts", "record", "unpadded"]


def as_pipeline(generator: Any, tokenizer: Any) -> TextGenerationPipeline:
    """Make a text-generation pipeline of whatever was given; a pipeline is used as it is."""
    if isinstance(generator, TextGenerationPipeline):
        if tokenizer is not None:
            raise UsageError("a pipeline has its own tokenizer; leave tokenizer= out")
        pipe = generator
    elif isinstance(generator, Pipeline):
        raise UsageError(f"the pipeline's task is {generator.task!r}; guardwrap wraps 'text-generation'")
    elif generator == "local":
        pipe = _pipeline_of(*load_local())
    elif isinstance(generator, str | Path):
        try:
            pipe = pipeline("text-generation", model=str(generator), tokenizer=tokenizer)
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot load the model {str(generator)!r}: {first_line(error)}") from None
    elif isinstance(generator, PreTrainedModel) or hasattr(generator, "get_base_model"):
        if tokenizer is None:
            raise UsageError("a model needs its tokenizer: GuardedGenerator(model, constraints, tokenizer=tokenizer)")
        pipe = _pipeline_of(generator, tokenizer)
    else:
        raise UsageError(
            f"cannot wrap {type(generator).__name__}; give a text-generation pipeline, a model with tokenizer=, "
            "a Hub id, a path or 'local'"
        )
    if pipe.model.config.is_encoder_decoder:
        raise UsageError("encoder-decoder models are not supported; give a causal language model")
    if pipe.tokenizer is None:
        raise UsageError("the pipeline has no tokenizer, so no text can be judged")
    return pipe


def _pipeline_of(model: Any, tokenizer: Any) -> TextGenerationPipeline:
    side = tokenizer.padding_side
    device = None if getattr(model, "hf_device_map", None) else model.device
    pipe = TextGenerationPipeline(model=model, tokenizer=tokenizer, device=device, task="text-generation")
    tokenizer.padding_side = side  # the pipeline sets it; here nothing is padded by the tokenizer
    return pipe


def read_prompts(prompts: Any) -> tuple[Any, bool, bool]:
    """Return the prompts as strings and chats, whether it is a single one, and whether they come lazily."""
    if isinstance(prompts, str | Chat):
        return [prompts], True, False
    if isinstance(prompts, Mapping):
        raise PromptError("a chat is a list of messages: [{'role': 'user', 'content': '...'}]")
    if isinstance(prompts, list | tuple):
        if prompts and is_valid_message(prompts[0]):
            return [Chat(list(prompts))], True, False
        return [_one_prompt(prompt, i) for i, prompt in enumerate(prompts)], False, False
    if isinstance(prompts, GeneratorType):
        first = next(prompts, None)
        if first is None:
            return [], False, False
        if is_valid_message(first):  # the messages of one chat, as the pipeline reads them
            return [Chat([first, *prompts])], True, False
        prompts = itertools.chain([first], prompts)
    if isinstance(prompts, Dataset) and not isinstance(prompts, Iterable):
        prompts = map(prompts.__getitem__, range(len(prompts)))  # type: ignore[arg-type]  # map-style: it has a length
    if not isinstance(prompts, Iterable):
        raise PromptError(f"cannot read prompts from {type(prompts).__name__}; give a string, a chat or a list of them")
    return (_one_prompt(prompt, i) for i, prompt in enumerate(prompts)), False, True


def _one_prompt(prompt: Any, number: int) -> str | Chat:
    if isinstance(prompt, str | Chat):
        return prompt
    if isinstance(prompt, list | tuple) and prompt and is_valid_message(prompt[0]):
        return Chat(list(prompt))
    raise PromptError(f"prompt {number} is neither a string nor a chat (a list of messages)")


def record(prompt: Any, text: str, postprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Render a text that no tokens stand behind."""
    kind = postprocess.get("return_type", ReturnType.FULL_TEXT)
    if kind is ReturnType.TENSORS:
        return {"generated_token_ids": None}
    if kind is ReturnType.NEW_TEXT:
        return {"generated_text": text}
    if isinstance(prompt, str):
        return {"generated_text": prompt + text}
    messages = list(prompt.messages)
    proceed = postprocess.get("continue_final_message")
    if proceed or (proceed is None and messages[-1]["role"] == "assistant"):
        last = {**messages[-1], "content": messages[-1]["content"] + text}
        return {"generated_text": [*messages[:-1], last]}
    return {"generated_text": [*messages, {"role": "assistant", "content": text}]}


def padding_mask(ids: torch.Tensor, options: Mapping[str, Any], config: Any) -> torch.Tensor:
    """Infer padding as ``generate`` does: only where the padding token is not also an end-of-sequence token."""
    pad, ends = (resolved(name, options, config) for name in ("pad_token_id", "eos_token_id"))
    if pad is None or pad in (ends if isinstance(ends, list) else [ends]):
        return torch.ones_like(ids)
    return torch.ne(ids, pad).long()


def unpadded(ids: torch.Tensor, mask: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield each row without its padding."""
    for number, (row, seen) in enumerate(zip(ids, mask.bool(), strict=True)):
        places = seen.nonzero().squeeze(1)
        if not len(places):
            raise PromptError(f"prompt {number} is empty")
        start, end = int(places[0]), int(places[-1]) + 1
        if end - start != len(places):
            raise UsageError(f"the attention_mask of prompt {number} has a hole; padding goes at the ends")
        yield row[start:end]
