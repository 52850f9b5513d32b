"""Prompts in all the forms that pipelines and ``generate`` accept: reading, copying, and error messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, ClassVar, NamedTuple

import torch
from jinja2 import TemplateError
from torch.utils.data import Dataset
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput
from transformers.pipelines import Pipeline

from guardwrap.errors import PromptError, UsageError, first_line
from guardwrap.models.prepare import PreparedPrompt, position_limit, prepare, require_context, resolved
from guardwrap.support.limits import is_text
from guardwrap.support.transformers_internals import Chat, is_valid_message

CALL_OPTIONS = (
    "constraints",
    "constraint_each",
    "fields",
    "sampler",
    "budget",
    "seed",
    "batch_size",
    "proposal",
    "adapter",
    "parse_messages",
    "on_exhausted",
)
"""guardwrap's own options of a call."""


class Prompts(NamedTuple):
    """The prompts of a call."""

    prompts: Any  # the prompts, each in the form that ``preprocess`` accepts; a list, or an iterator if ``lazy``
    single: bool  # whether the user passed one prompt instead of several
    lazy: bool  # whether they come from a generator or dataset, and are read as needed


class PromptReader:
    """Reads the prompts of calls as a pipeline does. Subclasses override what differs between kinds of calls."""

    reads_text: ClassVar[bool] = True
    """Whether a prompt has a text, which may describe what is wanted."""

    media: ClassVar[bool] = False
    """Whether prompts may contain images or audio."""

    named: ClassVar[str] = "text_inputs"
    """The name of the pipeline's parameter for prompts."""

    unread: ClassVar[str] = "is neither a string nor a chat (a list of messages)"
    """The error message for a prompt that cannot be read."""

    def begun(self, prompt: Any) -> str:
        """Return the text of the assistant message that the answer to a prompt continues; "" for a new message."""
        return ""

    @classmethod
    def with_named_inputs(cls, prompts: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the prompts, which may be passed by name, and the other options."""
        options = dict(options)
        prompts = options.pop(cls.named, None) if prompts is None else prompts
        if prompts is None:
            raise PromptError("there is no prompt: pass a string, a chat or a list of them")
        return prompts, options

    @classmethod
    def read_prompts(cls, given: Any) -> Prompts:
        """Read prompts as the pipeline does."""
        if isinstance(given, str | Chat):
            return Prompts([taken(given)], True, False)
        if isinstance(given, Mapping) and not cls.media:
            raise PromptError("a chat is a list of messages: [{'role': 'user', 'content': '...'}]")
        if isinstance(given, list | tuple):
            if given and is_valid_message(given[0]):
                return Prompts([as_chat(given, 0)], True, False)
            return Prompts([cls.one_prompt(prompt, i) for i, prompt in enumerate(given)], False, False)
        if isinstance(given, GeneratorType):
            first = next(given, None)
            if first is None:
                return Prompts([], False, False)
            if is_valid_message(first):  # the pipeline reads a generator of messages as one chat
                return Prompts(
                    [as_chat([taken(message) for message in itertools.chain([first], given)], 0)], True, False
                )
            given = itertools.chain([first], given)
        elif cls.media and not isinstance(given, Dataset | Iterator):
            return Prompts([cls.one_prompt(given, 0)], True, False)
        if isinstance(given, Dataset) and not isinstance(given, Iterable):
            given = map(given.__getitem__, range(len(given)))  # type: ignore[arg-type]  # map-style: it has a length
        if not isinstance(given, Iterable):
            raise PromptError(
                f"cannot read prompts from {type(given).__name__}; pass a string, a chat or a list of them"
            )
        return Prompts((cls.one_prompt(prompt, i) for i, prompt in enumerate(given)), False, True)

    @classmethod
    def one_prompt(cls, prompt: Any, number: int) -> Any:
        """Read one of several prompts."""
        if isinstance(prompt, str | Chat):
            return taken(prompt)
        if isinstance(prompt, list | tuple) and prompt and is_valid_message(prompt[0]):
            return as_chat(prompt, number)
        raise PromptError(f"prompt {number} {cls.unread}")


def as_chat(messages: Iterable[Any], number: int) -> Chat:
    """Return a copy of messages as a chat, or raise PromptError."""
    try:
        copied = taken(list(messages))
    except RecursionError:
        raise PromptError(f"prompt {number} is nested too deeply, or contains itself") from None
    for i, message in enumerate(copied):
        if not is_valid_message(message):
            raise PromptError(f"prompt {number}: message {i} is not a dict with a 'role' and a 'content'")
    return Chat(copied)


def taken(given: Any) -> Any:
    """Copy a prompt, except its images and audio, because the caller may reuse the objects for the next prompt."""
    if isinstance(given, Chat):
        return Chat(taken(list(given.messages)))
    if isinstance(given, Mapping):
        return {key: taken(value) for key, value in given.items()}
    if type(given) in (list, tuple):
        return type(given)(taken(value) for value in given)
    return given


def what_is_wrong(prompt: Any, error: BaseException) -> str:
    """Return one line that explains why reading a prompt raised an error."""
    if all(is_text(text) for text in _strings(prompt)):
        return with_kind(error)
    return "it has half of a surrogate pair, which is not a character; leave it out"


def with_kind(error: BaseException) -> str:
    """Return the first line of an error, with its type if the message needs it, as in ``KeyError: 'x'``."""
    self_explanatory = isinstance(error, OSError | ValueError | TypeError | TemplateError)
    return first_line(error) if self_explanatory else f"{type(error).__name__}: {first_line(error)}"


def _strings(given: Any) -> Iterator[str]:
    """Yield every string in a prompt."""
    if isinstance(given, str):
        yield given
    given = given.messages if isinstance(given, Chat) else given
    given = list(given.values()) if isinstance(given, Mapping) else given
    if isinstance(given, list | tuple):
        for part in given:
            yield from _strings(part)


def unpadded(ids: torch.Tensor, mask: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield each row without its padding."""
    for number, (row, seen) in enumerate(zip(ids, mask.bool(), strict=True)):
        places = seen.nonzero().squeeze(1)
        if not len(places):
            raise PromptError(f"prompt {number} is empty")
        start, end = int(places[0]), int(places[-1]) + 1
        if end - start != len(places):
            raise UsageError(f"the attention_mask of prompt {number} has a gap; put padding only at the ends")
        yield row[start:end]


def prepare_rows(
    pipe: Pipeline, ids: Any, options: Mapping[str, Any], *, two_parts: bool
) -> tuple[list[PreparedPrompt], list[torch.Tensor]]:
    """Prepare rows of token ids, ``[prompts, length]`` or ``[length]``; None if the options contain ``input_ids``.

    Returns one prompt per row, and the tokens that each returned row begins with: the input row, or with an encoder
    (``two_parts``) the decoder's first tokens.
    """
    model = pipe.model
    rest = dict(options)
    ids = ids if ids is not None else rest.pop("input_ids", None)
    if not isinstance(ids, torch.Tensor):
        raise UsageError("generate takes a tensor of token ids: generate(**tokenizer(text, return_tensors='pt'))")
    ids = ids[None] if ids.dim() == 1 else ids
    _require_ids(ids, getattr(model.config.get_text_config(), "vocab_size", None))
    mask = rest.pop("attention_mask", None)
    if mask is None:
        mask = _padding_mask(ids, rest, model.generation_config)
    if not isinstance(mask, torch.Tensor) or mask.numel() != ids.numel():
        raise UsageError(f"attention_mask must be a tensor of the shape of the ids, {list(ids.shape)}")
    prompts = []
    for number, row in enumerate(unpadded(ids, mask.reshape(ids.shape))):

        def call(row: torch.Tensor = row, **kwargs: Any) -> Any:
            row = row[None].to(model.device)
            return model.generate(input_ids=row, attention_mask=torch.ones_like(row), **kwargs)

        require_context(model, len(row), position_limit(model))
        law = prepare(model, call, rest, tokenizer=pipe.tokenizer, known=CALL_OPTIONS)
        text = pipe.tokenizer.decode(row, skip_special_tokens=True)
        prompts.append(PreparedPrompt(number, row.tolist(), text, law))
    return prompts, [prompt.law.prompt_ids.to(ids) if two_parts else ids[prompt.number] for prompt in prompts]


def returned_rows(
    new: Sequence[tuple[PreparedPrompt, Sequence[int]]], begins: Sequence[torch.Tensor], *, two_parts: bool
) -> Any:
    """Put rows together as ``generate`` returns them, ``[rows, length]``, padded on the right.

    ``new``: pairs of a prompt and the new tokens of one of its texts, at least one. ``begins``: from ``prepare_rows``.
    """
    rows = [torch.cat([begins[prompt.number], begins[prompt.number].new_tensor(ids)]) for prompt, ids in new]
    law = new[0][0].law
    sequences = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=law.pad_id)
    if not law.return_dict:
        return sequences
    kind = GenerateEncoderDecoderOutput if two_parts else GenerateDecoderOnlyOutput
    return kind(sequences=sequences)


def _require_ids(ids: torch.Tensor, size: int | None) -> None:
    if ids.dim() != 2 or not ids.numel() or ids.dtype.is_floating_point or ids.dtype in (torch.bool, torch.complex64):
        raise UsageError(f"token ids of shape {list(ids.shape)} and {ids.dtype}: pass whole numbers, [prompts, length]")
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or (size is not None and most >= size):
        raise UsageError(f"token ids from {least} to {most}: the model has {'none below 0' if size is None else size}")


def _padding_mask(ids: torch.Tensor, options: Mapping[str, Any], config: Any) -> torch.Tensor:
    """Infer padding as ``generate`` does: only if the padding token is not also an end-of-sequence token."""
    pad, ends = (resolved(name, options, config) for name in ("pad_token_id", "eos_token_id"))
    if pad is None or pad in (ends if isinstance(ends, list) else [ends]):
        return torch.ones_like(ids)
    return torch.ne(ids, pad).long()
