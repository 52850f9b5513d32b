"""Texts from their beginning, with the states that a model has after them: a tree, a token a node."""

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
    """A text from its beginning: a prompt, or a prefix and one more token.

    Parameters
    ----------
    length
        In tokens.
    layers
        A prompt's layers as the library left them, or what one token adds: for each layer keys and values,
        ``[heads, size]``, or None.
    parent
        What the token was added to.
    logits
        Of the token that follows a prompt; ``[1, vocabulary]``.
    """

    length: int
    layers: Sequence[Any]
    parent: Prefix | None = None
    logits: torch.Tensor | None = None

    @property
    def root(self) -> Prefix:
        """The prompt."""
        found = self
        while found.parent is not None:
            found = found.parent
        return found

    def states(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a layer, ``[1, heads, length, size]``."""
        whole, new = self.root.layers[number], self._new(number)
        if new is None:
            return whole.keys, whole.values
        return torch.cat([whole.keys, new[0]], dim=2), torch.cat([whole.values, new[1]], dim=2)

    def layer(self, number: int) -> Any:
        """Return a layer of the library's with these states, which the library may write on."""
        made, new = copy.copy(self.root.layers[number]), self._new(number)
        if new is not None:
            made.update(*new)
        return made

    def _new(self, number: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return what tokens have added to the prompt's keys and values of a layer, if anything."""
        columns = []
        found = self
        while found.parent is not None:
            columns.append(found.layers[number])
            found = found.parent
        if not columns or columns[0] is None:
            return None
        keys, values = (torch.stack(part[::-1], dim=1)[None] for part in zip(*columns, strict=True))
        return keys, values


class Recent(OrderedDict[Ids, Prefix]):
    """The prefixes used last, ``capacity`` of them. What one stands on counts as used after it, so leaves go first."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def take(self, ids: Ids) -> Prefix | None:
        """Return a prefix and note that it was used."""
        found = self.get(ids)
        while found is not None:
            if ids[: found.length] in self:
                self.move_to_end(ids[: found.length])
            found = found.parent
        return self.get(ids)

    def put(self, ids: Ids, prefix: Prefix) -> Ids | None:
        """Add one; the one not used for longest goes, and its ids are returned."""
        self[ids] = prefix
        self.take(ids)
        return self.popitem(last=False)[0] if len(self) > self.capacity else None

    def drop(self, prompt: Ids) -> None:
        """Forget everything that begins with a prompt which is gone."""
        for ids in [ids for ids in self if ids[: len(prompt)] == prompt]:
            del self[ids]
