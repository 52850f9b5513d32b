"""Rows that are computed one at a time, so that a row's logits do not depend on what else is computed.

In half precision, rounding depends on the shape of the batch: on the number of rows, and on the columns that are masked
because rows differ in length. Here each call of the model has one row of its own length. So the logits after a text
are a function of the text, and a seed gives the same texts whatever the company.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from guardwrap.backends.refill.prompt_tree import Prefix, Recent, computed_prompt
from guardwrap.backends.refill.row_states import Ids, Plain, fresh_cache, run_model

__all__ = ["Separate", "SeparatePlain"]


class Separate:
    """Rows with a cache of the library each. Each distinct prompt is computed once and copied.

    Parameters
    ----------
    model
        The model.
    prompts
        Number of prompts whose states are kept for further rows.
    """

    name = "separate"
    refills = True
    shares = False

    def __init__(self, model: Any, prompts: int = 64) -> None:
        self._model = model
        self._prompts = Recent(prompts)
        self._lengths: list[int] = []
        self._pasts: list[DynamicCache] = []

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``."""
        raise NotImplementedError

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        known = [self._prompt(ids) for ids in prompts]
        self._pasts += [self._past(copy.deepcopy(prefix.layers)) for prefix in known]
        self._lengths += map(len, prompts)
        return torch.cat([prefix.logits for prefix in known if prefix.logits is not None])

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See ``Rows.keep``."""
        self._pasts = [self._pasts[row] for row in rows]
        self._lengths = [self._lengths[row] for row in rows]
        return list(rows)

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See ``Rows.forward``."""
        each = zip(tokens[:, None, None], self._lengths, self._pasts, strict=True)
        logits = [self._computed(token, length, past) for token, length, past in each]
        self._lengths = [length + 1 for length in self._lengths]
        return torch.cat(logits)

    def _prompt(self, ids: Ids) -> Prefix:
        prefix = self._prompts.take(ids)
        if prefix is None:
            prefix = computed_prompt(self._model, ids)
            self._prompts.put(ids, prefix)
        return prefix

    def _past(self, layers: Sequence[Any]) -> DynamicCache:
        past = fresh_cache(self._model)
        past.layers = list(layers)
        return past

    def _computed(self, new: torch.Tensor, length: int, past: DynamicCache) -> torch.Tensor:
        """Run the model on the tokens of one row after ``length`` others; return logits, ``[1, vocabulary]``."""
        end = length + new.shape[1]
        mask = torch.ones(1, end, dtype=torch.long, device=new.device)
        return run_model(self._model, new, mask, torch.arange(length, end, device=new.device)[None], past)


class SeparatePlain(Plain):
    """Rows without a cache, one at a time, for models whose cache does not give their own logits."""

    name = "separate, without a cache"

    def _logits(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([super(SeparatePlain, self)._logits([text]) for text in texts])
