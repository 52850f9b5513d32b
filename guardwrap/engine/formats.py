"""What goes in and what comes out: pipelines, prompts and records in the forms that transformers knows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import GeneratorType
from typing import Any

import torch
from jinja2 import TemplateError
from torch.utils.data import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    TextGenerationPipeline,
    pipeline,
)
from transformers.pipelines import Pipeline
from transformers.utils.chat_template_utils import Chat, is_valid_message

from guardwrap.engine.local import load_local
from guardwrap.engine.prepare import resolved
from guardwrap.engine.tasks import TextToTextPipeline, is_media, is_speech, is_vision, require_task
from guardwrap.errors import ModelError, PromptError, UsageError, first_line
from guardwrap.inputs import is_text

__all__ = [
    "as_pipeline",
    "gathered",
    "padding_mask",
    "read_prompts",
    "record",
    "return_type",
    "unpadded",
    "what_is_wrong",
]


def as_pipeline(generator: Any, tokenizer: Any) -> Pipeline:
    """Make a pipeline of whatever was given; a pipeline is used as it is."""
    if isinstance(generator, Pipeline):
        if tokenizer is not None:
            raise UsageError("a pipeline has its own tokenizer; leave tokenizer= out")
        pipe = generator
        require_task(pipe)
    elif generator == "local":
        pipe = _pipeline_of(*load_local())
    elif isinstance(generator, str | Path):
        pipe = _loaded(str(generator), tokenizer)
    elif isinstance(generator, PreTrainedModel) or hasattr(generator, "get_base_model"):
        if tokenizer is None:
            raise UsageError("a model needs its tokenizer: GuardedGenerator(model, constraints, tokenizer=tokenizer)")
        if not callable(getattr(tokenizer, "decode", None)):
            raise UsageError(
                f"tokenizer={tokenizer!r} is no tokenizer; load it with AutoTokenizer.from_pretrained(...)"
            )
        pipe = _pipeline_of(generator, tokenizer)
    else:
        raise UsageError(
            f"cannot wrap {type(generator).__name__}; give a pipeline, a model with tokenizer=, a Hub id, a path or "
            "'local'"
        )
    if pipe.tokenizer is None:
        raise UsageError("the pipeline has no tokenizer, so no text can be judged")
    return pipe


def _loaded(source: str, tokenizer: Any) -> TextGenerationPipeline:
    """Load a model: an encoder-decoder model as one, of which a text-generation pipeline takes the decoder only."""
    try:
        try:
            config, _ = PreTrainedConfig.get_config_dict(source)
        except OSError:  # an adapter has none; the pipeline knows, and says what is missing
            config = {}
        if not config.get("is_encoder_decoder"):
            return pipeline("text-generation", model=source, tokenizer=tokenizer)
        model = AutoModelForSeq2SeqLM.from_pretrained(source)
        if tokenizer is None or isinstance(tokenizer, str):
            tokenizer = AutoTokenizer.from_pretrained(tokenizer or source)
    except Exception as error:  # of a file that is damaged: whatever the libraries make of it
        raise ModelError(f"cannot load the model {source!r}: {_with_kind(error)}") from None
    return _pipeline_of(model, tokenizer)


def _pipeline_of(model: Any, tokenizer: Any) -> TextGenerationPipeline:
    kind = TextGenerationPipeline
    if model.config.is_encoder_decoder:
        kind = TextToTextPipeline
        if model.main_input_name != "input_ids":
            raise UsageError(f"{type(model).__name__} does not read text; give its pipeline instead of the model")
    side = tokenizer.padding_side
    device = None if getattr(model, "hf_device_map", None) else model.device
    pipe = kind(model=model, tokenizer=tokenizer, device=device, task="text-generation")
    tokenizer.padding_side = side  # the pipeline sets it; here nothing is padded by the tokenizer
    return pipe


def gathered(pipe: Pipeline, prompts: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Put together what the image-text-to-text pipeline takes as ``images`` and ``text``; also the other options."""
    names = ("images", "text") if is_vision(pipe) else ()
    rest = {name: value for name, value in options.items() if name not in names}
    parts = {name: options[name] for name in names if options.get(name) is not None}
    if prompts is None and not parts:
        raise PromptError("there is no prompt: give a string, a chat or a list of them")
    if "text" not in parts:
        return parts.get("images", prompts), rest
    if prompts is not None:
        parts["images"] = prompts
    if "images" not in parts:
        return parts["text"], rest
    if not isinstance(parts["text"], str):
        raise PromptError("give several prompts as a list: [{'images': ..., 'text': '...'}, ...]")
    return parts, rest


def read_prompts(pipe: Pipeline, prompts: Any) -> tuple[Any, bool, bool]:
    """Return prompts as ``preprocess`` takes them, whether it is a single one, and whether they come lazily."""
    if isinstance(prompts, str | Chat):
        return [_taken(prompts)], True, False
    if isinstance(prompts, Mapping) and not is_media(pipe):
        raise PromptError("a chat is a list of messages: [{'role': 'user', 'content': '...'}]")
    if isinstance(prompts, list | tuple):
        if prompts and is_valid_message(prompts[0]):
            return [_chat(prompts, 0)], True, False
        return [_one_prompt(pipe, prompt, i) for i, prompt in enumerate(prompts)], False, False
    if isinstance(prompts, GeneratorType):
        first = next(prompts, None)
        if first is None:
            return [], False, False
        if is_valid_message(first):  # the messages of one chat, as the pipeline reads them
            return [_chat([_taken(message) for message in itertools.chain([first], prompts)], 0)], True, False
        prompts = itertools.chain([first], prompts)
    elif is_media(pipe) and not isinstance(prompts, Dataset | Iterator):
        return [_one_prompt(pipe, prompts, 0)], True, False
    if isinstance(prompts, Dataset) and not isinstance(prompts, Iterable):
        prompts = map(prompts.__getitem__, range(len(prompts)))  # type: ignore[arg-type]  # map-style: it has a length
    if not isinstance(prompts, Iterable):
        raise PromptError(f"cannot read prompts from {type(prompts).__name__}; give a string, a chat or a list of them")
    return (_one_prompt(pipe, prompt, i) for i, prompt in enumerate(prompts)), False, True


def _one_prompt(pipe: Pipeline, prompt: Any, number: int) -> Any:
    if is_speech(pipe) or isinstance(prompt, str | Chat):
        return _taken(prompt)
    if isinstance(prompt, list | tuple) and prompt and is_valid_message(prompt[0]):
        return _chat(prompt, number)
    if not is_vision(pipe):
        raise PromptError(f"prompt {number} is neither a string nor a chat (a list of messages)")
    if not isinstance(prompt, Mapping) or not isinstance(prompt.get("text"), str) or "images" not in prompt:
        raise PromptError(f"prompt {number} is no string, no chat and not {{'images': ..., 'text': '...'}}")
    return _taken(prompt)


def _chat(messages: Iterable[Any], number: int) -> Chat:
    try:
        taken = _taken(list(messages))
    except RecursionError:
        raise PromptError(f"prompt {number} is nested too deeply, or holds itself") from None
    for i, message in enumerate(taken):
        if not is_valid_message(message):
            raise PromptError(f"prompt {number}: message {i} is no dict with a 'role' and a 'content'")
    return Chat(taken)


def _taken(given: Any) -> Any:
    """Copy what a prompt is made of, but for images and audio: whoever gave it may change it for the next one."""
    if isinstance(given, Chat):
        return Chat(_taken(list(given.messages)))
    if isinstance(given, Mapping):
        return {key: _taken(value) for key, value in given.items()}
    if type(given) in (list, tuple):
        return type(given)(_taken(value) for value in given)
    return given


def what_is_wrong(prompt: Any, error: BaseException) -> str:
    """Say in one line why a prompt cannot be read, which raised an error."""
    if all(is_text(text) for text in _strings(prompt)):
        return _with_kind(error)
    return "it has half of a surrogate pair, which is no character; leave it out"


def _with_kind(error: BaseException) -> str:
    """Return the first line of an error, after its type where that alone says what is wrong: ``KeyError: 'x'``."""
    told = isinstance(error, OSError | ValueError | TypeError | TemplateError)
    return first_line(error) if told else f"{type(error).__name__}: {first_line(error)}"


def _strings(given: Any) -> Iterator[str]:
    """Yield every string that a prompt is made of."""
    if isinstance(given, str):
        yield given
    given = given.messages if isinstance(given, Chat) else given
    given = list(given.values()) if isinstance(given, Mapping) else given
    if isinstance(given, list | tuple):
        for part in given:
            yield from _strings(part)


def return_type(postprocess: Mapping[str, Any]) -> str:
    """Return which kind of record is wanted, by name: the pipelines have enumerations of their own."""
    kind = postprocess.get("return_type")
    if kind is not None and not hasattr(kind, "name"):
        raise UsageError(
            f"return_type={kind!r} is no ReturnType of the pipeline's; pass return_full_text or return_tensors"
        )
    return "FULL_TEXT" if kind is None else str(kind.name)


def record(prompt: str | Chat, text: str | None, postprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Render a text that no tokens stand behind, or None for a text that is missing."""
    kind = return_type(postprocess)
    if kind == "TENSORS":
        return {"generated_token_ids": None}
    if text is None or kind == "NEW_TEXT":
        return {"generated_text": text}
    if isinstance(prompt, str):
        return {"generated_text": prompt + text}
    messages = list(prompt.messages)
    proceed = postprocess.get("continue_final_message")
    if proceed or (proceed is None and messages[-1]["role"] == "assistant"):
        content = messages[-1]["content"]
        if isinstance(content, str):
            content += text
        else:  # in parts, as beside images
            content = [*content[:-1], {**content[-1], "text": content[-1]["text"] + text}]
        return {"generated_text": [*messages[:-1], {**messages[-1], "content": content}]}
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
