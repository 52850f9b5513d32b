"""Prefixes of texts with the model's states after them: trees with a prompt as root and one token per other node."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from guardwrap.backends.refill.row_states import Ids

__all__ = ["Prefix", "Recent"]


@dataclass(frozen=True, eq=False)
class Prefix:
    """A prefix of texts: a prompt, or a shorter prefix with one more token.

    Parameters
    ----------
    length
        Number of tokens.
    layers
        For a prompt, its cache layers from the library. For a token, the keys and values that it adds to each layer,
        ``[heads, size]`` each, or None for a layer without.
    parent
        The prefix without its last token; None for a prompt.
    logits
        Logits of the token after a prompt, ``[1, vocabulary]``; None otherwise.
    """

    length: int
    layers: Sequence[Any]
    parent: Prefix | None = None
    logits: torch.Tensor | None = None

    @property
    def root(self) -> Prefix:
        """The prefix of the prompt."""
        prefix = self
        while prefix.parent is not None:
            prefix = prefix.parent
        return prefix

    def states(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a layer, ``[1, heads, length, size]`` each."""
        whole, new = self.root.layers[number], self._new(number)
        if new is None:
            return whole.keys, whole.values
        return torch.cat([whole.keys, new[0]], dim=2), torch.cat([whole.values, new[1]], dim=2)

    def layer(self, number: int) -> Any:
        """Return a cache layer of the library's class with these states, to which the library may append."""
        layer, new = copy.copy(self.root.layers[number]), self._new(number)
        if new is not None:
            layer.update(*new)
        return layer

    def _new(self, number: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the keys and values of a layer for the tokens after the prompt; None if there are none."""
        columns = []
        prefix = self
        while prefix.parent is not None:
            columns.append(prefix.layers[number])
            prefix = prefix.parent
        if not columns or columns[0] is None:
            return None
        keys, values = (torch.stack(part[::-1], dim=1)[None] for part in zip(*columns, strict=True))
        return keys, values


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
