"""The decoding loop: a wave of attempts of any prompts, one model call a token."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from transformers import DynamicCache

from guardwrap.engine.prepare import Settings
from guardwrap.engine.randomness import uniforms
from guardwrap.engine.tokens import argmax, inverse_cdf

__all__ = ["Decoded", "Launch", "decode"]


@dataclass(frozen=True, slots=True)
class Launch:
    """An attempt about to be drawn.

    Parameters
    ----------
    settings
        Of its prompt; launches that share the object share one prefill.
    seed, prompt, attempt
        What its randomness belongs to.
    deadline
        ``time.monotonic()`` at which it is abandoned, or None.
    """

    settings: Settings
    seed: int
    prompt: int
    attempt: int
    deadline: float | None = None


@dataclass(slots=True)
class Decoded:
    """An attempt as the loop left it.

    Parameters
    ----------
    launch
        What was asked.
    token_ids
        The new tokens, the end-of-sequence token included.
    log_probability
        log a' of ``token_ids`` in nats, summed in float64.
    status
        ``"running"``, ``"finished"`` (ended by itself), ``"cut"`` (token limit), ``"aborted"`` (verdict VIOLATED) or
        ``"abandoned"`` (deadline).
    blame
        Which part of the constraint aborted it.
    """

    launch: Launch
    token_ids: list[int] = field(default_factory=list)
    log_probability: float = 0.0
    status: str = "running"
    blame: str | None = None


Watch = Callable[[Sequence[int]], str | None]
"""From the token ids so far to the part of the constraint that they violate for good, or None."""


@torch.no_grad()
def decode(model: Any, launches: Sequence[Launch], watch: Watch | None = None) -> list[Decoded]:
    """Draw attempts side by side until each has ended.

    Parameters
    ----------
    model
        A causal language model.
    launches
        The attempts. Each distinct ``settings`` object is prefilled once.
    watch
        Judges the tokens of a running attempt; a title aborts it.

    Returns
    -------
    list of Decoded
        In the order of ``launches``.
    """
    attempts = [Decoded(launch) for launch in launches]
    streams = {id(attempt): _stream(attempt.launch) for attempt in attempts}
    prompts = list({id(launch.settings): launch.settings for launch in launches}.values())
    place = {id(settings): i for i, settings in enumerate(prompts)}
    rows = torch.tensor([place[id(launch.settings)] for launch in launches], device=model.device)
    ids, mask = _left_padded([settings.prompt_ids for settings in prompts], model.device)
    past = DynamicCache(config=model.config.get_text_config(decoder=True))
    logits = _forward(model, ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), past)[rows]
    past.reorder_cache(rows)
    mask = mask[rows]
    live = attempts
    while True:
        uniform = torch.tensor([next(streams[id(attempt)]) for attempt in live], dtype=torch.float64)
        tokens = _draw(_process(logits, live), uniform.to(logits.device), live)
        _settle(live, watch)
        keep = [i for i, attempt in enumerate(live) if attempt.status == "running"]
        if not keep:
            return attempts
        if len(keep) < len(live):
            rows = torch.tensor(keep, device=model.device)
            past.reorder_cache(rows)
            mask, tokens = mask[rows], tokens[rows]
            live = [live[i] for i in keep]
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        logits = _forward(model, tokens[:, None], mask, mask.sum(-1, keepdim=True) - 1, past)


def _stream(launch: Launch) -> uniforms:
    return uniforms(launch.seed, launch.prompt, launch.attempt)


def _left_padded(prompts: Sequence[torch.Tensor], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Stack prompts of different lengths; ids and mask, ``[prompts, longest]``."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt.to(device)
        mask[row, longest - len(prompt) :] = 1
    return ids, mask


@cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def _forward(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: DynamicCache
) -> torch.Tensor:
    """Run the model; logits of the last position, ``[rows, vocabulary]``, float32."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    known = _parameters(type(base).forward)
    extra = {"position_ids": positions, "logits_to_keep": 1}
    output = model(
        input_ids=ids,
        attention_mask=mask,
        past_key_values=past,
        use_cache=True,
        return_dict=True,
        **{name: value for name, value in extra.items() if name in known},
    )
    logits: torch.Tensor = output.logits[:, -1].float()
    return logits


def _groups(live: Sequence[Decoded]) -> Iterator[tuple[Settings, list[int], torch.Tensor]]:
    """For each prompt its settings, its rows, and their token ids, prompt included and without padding."""
    by_prompt: dict[int, list[int]] = {}
    for row, attempt in enumerate(live):
        by_prompt.setdefault(id(attempt.launch.settings), []).append(row)
    for rows in by_prompt.values():
        settings = live[rows[0]].launch.settings
        new = torch.tensor([live[row].token_ids for row in rows], dtype=torch.long)
        prompt = settings.prompt_ids.expand(len(rows), -1)
        yield settings, rows, torch.cat([prompt, new.to(prompt.device)], dim=1)


def _process(logits: torch.Tensor, live: Sequence[Decoded]) -> torch.Tensor:
    """Apply the logits processors, to each prompt's rows as if they were alone, then the warpers to all."""
    first = live[0].launch.settings
    scores = logits
    if first.processors:
        scores = logits.clone()
        for settings, rows, ids in _groups(live):
            scores[rows] = settings.processors(ids.to(logits.device), logits[rows])
    # The warpers come from the call's own settings, so they are the same for every prompt.
    return first.warpers(torch.empty(len(live), 0, dtype=torch.long), scores) if first.warpers else scores


def _draw(scores: torch.Tensor, uniform: torch.Tensor, live: Sequence[Decoded]) -> torch.Tensor:
    """Draw a token for each row and note it."""
    choose = inverse_cdf if live[0].launch.settings.mode == "sample" else argmax
    tokens, log_probabilities = choose(scores, uniform)
    for attempt, token, value in zip(live, tokens.tolist(), log_probabilities.tolist(), strict=True):
        attempt.token_ids.append(token)
        attempt.log_probability += value
    return tokens


def _settle(live: Sequence[Decoded], watch: Watch | None) -> None:
    """Set the status of the attempts that end with their newest token."""
    now = time.monotonic()
    if live[0].launch.settings.criteria:
        for settings, rows, ids in _groups(live):
            done = settings.criteria(ids, None).tolist()
            for row, stop in zip(rows, done, strict=True):
                if stop:
                    live[row].status = "finished"
    for attempt in live:
        settings = attempt.launch.settings
        if attempt.status == "finished" or attempt.token_ids[-1] in settings.end_ids:
            attempt.status = "finished"
        elif len(settings.prompt_ids) + len(attempt.token_ids) >= settings.max_length:
            attempt.status = "cut"
        elif watch and (blame := watch(attempt.token_ids)):
            attempt.status, attempt.blame = "aborted", blame
        elif attempt.launch.deadline is not None and now >= attempt.launch.deadline:
            attempt.status = "abandoned"
