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

from guardwrap.backends.length_thresholds import length_threshold
from guardwrap.backends.refill.prompt_tree import Prefix, Recent, computed_prompt
from guardwrap.backends.refill.row_states import Plain, fresh_cache, run_next, run_text
from guardwrap.scheduling.backend import Ids


class Separate:
    """Rows with a cache of the library each. Each distinct prompt is computed once and copied."""

    name = "separate"
    refills = True
    shares = False

    def __init__(self, model: Any, prompts: int = 64) -> None:
        self._model = model
        self._prompts = Recent(prompts)
        self._texts: list[torch.Tensor] = []  # ``[1, length]`` each
        self._pasts: list[Any] = []

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``. The row may also start with a text that another class of rows has computed so far."""
        begin = max(prompt, min(len(prefix), length_threshold(self._model) or prompt))
        text = torch.tensor([prefix], device=self._model.device)
        _, past = run_text(self._model, text, begin, fresh_cache(self._model))
        self._texts.append(text)
        self._pasts.append(past)
        return len(prefix) - prompt

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        known = [self._prompt(ids) for ids in prompts]
        self._pasts += [self._past(copy.deepcopy(prefix.layers)) for prefix in known]
        self._texts += [torch.tensor([ids], device=self._model.device) for ids in prompts]
        return torch.cat([prefix.logits for prefix in known if prefix.logits is not None])

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See ``Rows.keep``."""
        self._pasts = [self._pasts[row] for row in rows]
        self._texts = [self._texts[row] for row in rows]
        return list(rows)

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See ``Rows.forward``."""
        self._texts = [
            torch.cat([text, token], dim=1) for text, token in zip(self._texts, tokens[:, None, None], strict=True)
        ]
        logits = []
        for row, text in enumerate(self._texts):
            computed, self._pasts[row] = run_next(self._model, text, self._pasts[row])
            logits.append(computed)
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


class SeparatePlain(Plain):
    """Rows without a cache, one at a time, for models whose cache does not give their own logits."""

    name = "separate, without a cache"

    def _logits(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([super(SeparatePlain, self)._logits([text]) for text in texts])
