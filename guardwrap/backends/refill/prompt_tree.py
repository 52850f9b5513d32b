"""Prefixes of texts with the model's states after them: trees with a prompt as root and one token per other node."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from guardwrap.backends.refill.row_states import fresh_cache, run_model
from guardwrap.backends.refill.slot_layers import has_states
from guardwrap.scheduling.backend import Ids


@dataclass(frozen=True, eq=False)
class Prefix:
    """A prefix of texts: a prompt, or a shorter prefix with one more token."""

    length: int  # number of tokens
    layers: Sequence[Any] = ()  # for a prompt, its cache layers from the library; empty for a token
    parent: Prefix | None = None  # the prefix without its last token; None for a prompt
    # for a token, the number under which each layer keeps the keys and values that it adds; see ``Pages``
    page: int = -1
    logits: torch.Tensor | None = None  # logits of the token after a prompt, ``[1, vocabulary]``; None otherwise

    @cached_property
    def states(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Views of a prompt's keys and values, ``[length, heads, size]`` each, by the number of the layer."""
        return {
            number: (layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1))
            for number, layer in enumerate(self.layers)
            if has_states(layer)
        }

    def path(self) -> tuple[Prefix, list[int]]:
        """Return the prefix of the prompt, and the pages of the tokens after it."""
        pages = []
        prefix = self
        while prefix.parent is not None:
            pages.append(prefix.page)
            prefix = prefix.parent
        return prefix, pages[::-1]


def computed_prompt(model: Any, ids: Ids) -> Prefix:
    """Compute a prompt in one pass of the model, alone, so that its states depend on nothing else."""
    row = torch.tensor([ids], device=model.device)
    mask, past = torch.ones_like(row), fresh_cache(model)
    logits = run_model(model, row, mask, mask.cumsum(-1) - 1, past)
    return Prefix(len(ids), past.layers, logits=logits)


class Pages:
    """Numbers for the states of tokens, each for one prefix at a time.

    A prefix that was removed from the tree may still be the parent of one in the tree, or of a row's. So a number is
    reused only when nothing refers to its prefix any more.
    """

    def __init__(self) -> None:
        self.count = 0
        self._free: list[int] = []

    def lacking(self, new: int) -> int:
        """Return how many pages to add before ``new`` prefixes can have one each."""
        return max(0, new - len(self._free))

    def grow(self, count: int) -> None:
        """Add free pages, so that there are ``count``."""
        self._free += range(self.count, count)
        self.count = count

    def extended(self, parent: Prefix) -> Prefix:
        """Return ``parent`` with one more token, with a free page for its states."""
        prefix = Prefix(parent.length + 1, parent=parent, page=self._free.pop())
        weakref.finalize(prefix, self._free.append, prefix.page)
        return prefix


class Recent(OrderedDict[Ids, Prefix]):
    """The ``capacity`` most recently used prefixes. Using one also uses its parents, so leaves are removed first."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def take(self, ids: Ids) -> Prefix | None:
        """Return a prefix, or None if it is not kept, and mark it and its parents as used."""
        prefix = self.get(ids)
        while prefix is not None:
            if ids[: prefix.length] in self:
                self.move_to_end(ids[: prefix.length])
            prefix = prefix.parent
        return self.get(ids)

    def put(self, ids: Ids, prefix: Prefix) -> Ids | None:
        """Add a prefix. If there are too many, remove the least recently used one, and return its ids."""
        self[ids] = prefix
        self.take(ids)
        return self.popitem(last=False)[0] if len(self) > self.capacity else None

    def drop(self, prompt: Ids) -> None:
        """Remove all prefixes that start with a prompt, after this was removed."""
        for ids in [ids for ids in self if ids[: len(prompt)] == prompt]:
            del self[ids]
