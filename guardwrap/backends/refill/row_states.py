"""Rows of a batch: where attempts of any prompts keep their attention states between tokens.

Three ways to do it, with one interface: ``slots.Slots`` takes new rows at any time, ``Wave`` only when it is empty, and
``Plain`` keeps nothing and computes every token from the whole text. All give the same logits; ``selftest.select_rows``
finds the fastest one that does so for the model at hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from transformers import Cache, DynamicCache

from guardwrap.environment.transformers_internals import CACHE_NAMES
from guardwrap.scheduling.backend import Ids

__all__ = ["Ids", "Plain", "Rows", "Wave", "anew", "fresh_cache", "run_model", "taken_by"]


class Rows(Protocol):
    """The rows of a batch, numbered from 0.

    Attributes
    ----------
    name : str
        What reports call it.
    refills : bool
        Whether rows can be added while others run.
    """

    name: str
    refills: bool

    def __init__(self, model: Any) -> None:
        """Make empty rows of a model."""

    @property
    def shares(self) -> bool:
        """Whether rows can begin where others have been: ``remember`` is heeded."""

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """Append a row for each prompt; logits of the next token, ``[prompts, vocabulary]``."""

    def join(self, prefix: Ids, prompt: int) -> int:
        """Append a row that begins with more than a prompt, which is so many of its ids; only where ``shares``.

        Returns how many tokens the model had to be run for. That of prompts is not counted.
        """

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Drop all rows but these, given in ascending order; returns the old numbers of the rows as they now stand."""

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """Append a token to each row (``[rows]``); logits of the next one, ``[rows, vocabulary]``, float32.

        ``remember`` gives rows that others may begin from, with all their ids, the new token included.
        """


def taken_by(model: Any) -> frozenset[str]:
    """Names of the arguments of a model's ``forward``; under an adapter, of the model below it."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return _parameters(type(base).forward)


@cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def run_model(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Cache | None
) -> torch.Tensor:
    """Run the model; logits of the last position, ``[rows, vocabulary]``, float32."""
    return _run(model, ids, mask, positions, past, 1)[:, -1]


def anew(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Run the model on whole texts of one length; logits after each token, ``[rows, tokens, vocabulary]``, float32."""
    mask = torch.ones_like(ids)
    return _run(model, ids, mask, mask.cumsum(-1) - 1, None, ids.shape[1])


def _run(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Cache | None, kept: int
) -> torch.Tensor:
    known = taken_by(model)
    extra = {"position_ids": positions, "logits_to_keep": kept, "attention_mask": mask}
    extra |= dict.fromkeys(CACHE_NAMES, past)
    output = model(
        input_ids=ids,
        use_cache=past is not None,
        return_dict=True,
        **{name: value for name, value in extra.items() if name in known and value is not None},
    )
    logits: torch.Tensor = output.logits[:, -kept:].float()
    return logits


def fresh_cache(model: Any) -> DynamicCache:
    """Return an empty cache of the library's for a model."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))


class Plain:
    """No cache: each token is computed from the whole text, rows of equal length together.

    Slow, and right for every causal model.
    """

    name = "plain"
    refills = True
    shares = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._texts: list[torch.Tensor] = []

    def join(self, prefix: Ids, prompt: int) -> int:
        """See Rows."""
        raise NotImplementedError

    def add(self, prefixes: Sequence[Ids]) -> torch.Tensor:
        """See Rows."""
        new = [torch.tensor(prefix, dtype=torch.long, device=self._model.device) for prefix in prefixes]
        self._texts += new
        return self._logits(new)

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See Rows."""
        self._texts = [self._texts[row] for row in rows]
        return list(rows)

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See Rows."""
        self._texts = [torch.cat([text, token[None]]) for text, token in zip(self._texts, tokens, strict=True)]
        return self._logits(self._texts)

    def _logits(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        lengths: dict[int, list[int]] = {}
        for row, text in enumerate(texts):
            lengths.setdefault(len(text), []).append(row)
        results: list[torch.Tensor] = [torch.empty(0)] * len(texts)
        for rows in lengths.values():
            ids = torch.stack([texts[row] for row in rows])
            mask = torch.ones_like(ids)
            for row, logits in zip(rows, run_model(self._model, ids, mask, mask.cumsum(-1) - 1, None), strict=True):
                results[row] = logits
        return torch.stack(results)


class Wave:
    """The library's own cache: rows begin together, prompts padded on the left, and leave one by one."""

    name = "evict-only"
    refills = False
    shares = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._mask = torch.empty(0)
        self._past: DynamicCache | None = None

    def join(self, prefix: Ids, prompt: int) -> int:
        """See Rows."""
        raise NotImplementedError

    def add(self, prefixes: Sequence[Ids]) -> torch.Tensor:
        """See Rows."""
        device = self._model.device
        place: dict[Ids, int] = {}
        rows = torch.tensor([place.setdefault(prefix, len(place)) for prefix in prefixes], device=device)
        longest = max(len(prompt) for prompt in place)
        ids = torch.zeros(len(place), longest, dtype=torch.long, device=device)
        mask = torch.zeros_like(ids)
        for prompt, row in place.items():
            ids[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
            mask[row, longest - len(prompt) :] = 1
        self._past = fresh_cache(self._model)
        logits = run_model(self._model, ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), self._past)
        self._past.reorder_cache(rows)
        self._mask = mask[rows]
        return logits[rows]

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See Rows."""
        index = torch.tensor(rows, dtype=torch.long, device=self._mask.device)
        self._mask = self._mask[index]
        if rows and self._past is not None:
            self._past.reorder_cache(index)
        return list(rows)

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See Rows."""
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        positions = self._mask.sum(-1, keepdim=True) - 1
        return run_model(self._model, tokens[:, None], self._mask, positions, self._past)
