"""Prompts as tensors, for ``generate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput
from transformers.pipelines import Pipeline

from guardwrap.errors import UsageError
from guardwrap.pipelines.calls import CALL_OPTIONS
from guardwrap.pipelines.position_limit import position_limit, require_context
from guardwrap.pipelines.prepare import PreparedPrompt, prepare, resolved
from guardwrap.pipelines.prompt_forms import unpadded


def prepare_rows(
    pipe: Pipeline, ids: Any, options: Mapping[str, Any], *, two_parts: bool
) -> tuple[list[PreparedPrompt], list[torch.Tensor]]:
    """Prepare prompts given as rows of token ids.

    Parameters
    ----------
    pipe
        The pipeline.
    ids
        Token ids, ``[prompts, length]`` or ``[length]``; None if the options contain ``input_ids``.
    options
        The arguments of ``generate``.
    two_parts
        Whether the model has an encoder, which receives the prompt.

    Returns
    -------
    list of PreparedPrompt
        One prompt per row.
    list of torch.Tensor
        The tokens that each returned row begins with: the input row, or with an encoder the decoder's first tokens.

    Raises
    ------
    UsageError
        If ``ids`` is not a tensor of token ids of this model, or the attention mask does not fit.
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
    """Put rows together as ``generate`` returns them.

    Parameters
    ----------
    new
        Pairs of a prompt and the new tokens of one of its texts; at least one.
    begins
        The tokens that the rows of each prompt begin with, from ``prepare_rows``.
    two_parts
        Whether the model has an encoder.

    Returns
    -------
    torch.Tensor or ModelOutput
        ``[rows, length]``, padded on the right; a ModelOutput with ``return_dict_in_generate``.
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
