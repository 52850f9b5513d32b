"""Layers of a cache for rows in slots: states of all rows in preallocated tensors, and those of single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from guardwrap.environment.transformers_internals import (
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
    kept_states,
    put_state,
    take_flags,
)


class Columns:
    """The range of columns in use, ``first`` to ``end - 1``, shared by all layers.

    Rows are aligned on the right: every row has its newest state in column ``end - 1``, and its oldest in a column of
    its own, its start. All rows write column ``end`` next.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.first = 0
        self.end = 0


class Index:
    """Lists of equal length, of rows, columns or pages, as tensors that are copied to a device once for all layers."""

    def __init__(self, *lists: Sequence[int]) -> None:
        self._lists = lists
        self._copies: dict[Any, tuple[torch.Tensor, ...]] = {}

    def on(self, device: Any) -> tuple[torch.Tensor, ...]:
        """Return the tensors on a device."""
        if device not in self._copies:
            self._copies[device] = self._copied(device)
        return self._copies[device]

    def _copied(self, device: Any) -> tuple[torch.Tensor, ...]:
        return torch.tensor(self._lists, dtype=torch.long, device=device).unbind()


class PromptIndex(Index):
    """Rows ``[rows, 1]`` that start with one prompt, and the columns of the prompt in each, ``[rows, length]``."""

    def __init__(self, rows: Sequence[int], starts: Sequence[int], length: int) -> None:
        super().__init__(rows, starts)
        self._length = length

    def _copied(self, device: Any) -> tuple[torch.Tensor, ...]:
        rows, starts = super()._copied(device)
        return rows[:, None], starts[:, None] + torch.arange(self._length, device=device)


class SlotLayer(DynamicLayer):
    """Keys and values of all rows in preallocated tensors, written in place, so that a token copies nothing.

    Keys and values of one shape are two parts of one tensor, because copying them together takes fewer operations.

    Attributes
    ----------
    rows : list of torch.Tensor
        The states of rows, ``[parts, rows, heads, columns, size]``: one tensor with both parts, or one for each.
    pages : list of torch.Tensor
        The states of tokens in the tree of prefixes, ``[pages, parts, heads, size]``, as many tensors.
    """

    def __init__(self, columns: Columns, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.columns = columns
        parts = [(2, keys)] if keys.shape == values.shape else [(1, keys), (1, values)]
        self.pages = [like.new_empty(0, count, like.shape[1], like.shape[3]) for count, like in parts]
        # Zeros and not uninitialized memory: masked columns are multiplied by 0, and 0 times NaN is NaN.
        self._allocated([like.new_zeros(count, 0, like.shape[1], 0, like.shape[3]) for count, like in parts])
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def _allocated(self, rows: list[torch.Tensor]) -> None:
        self.rows = rows
        self.keys, self.values = (part for parts in rows for part in parts.unbind())

    @property
    def page_bytes(self) -> int:
        """Memory that the states of one token take."""
        return sum(kept.element_size() * kept.shape[1:].numel() for kept in self.pages)

    def get_seq_length(self) -> int:
        """Return the number of columns in use."""
        return self.columns.end - self.columns.first

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the newest tokens' states into the next column; return the states of all columns in use."""
        c = self.columns
        live = slice(c.first, c.end + 1)
        self.keys[: c.rows, :, c.end] = key_states[:, :, 0]
        self.values[: c.rows, :, c.end] = value_states[:, :, 0]
        return self.keys[: c.rows, :, live], self.values[: c.rows, :, live]

    def lay_out(self, rows: int, columns: int, end: int) -> None:
        """Move the columns in use into a tensor of ``rows`` by ``columns``, so that they end before column ``end``."""
        c = self.columns
        larger = []
        for old in self.rows:
            new = old.new_zeros(old.shape[0], rows, old.shape[2], columns, old.shape[4])
            new[:, : c.rows, :, end - (c.end - c.first) : end] = old[:, : c.rows, :, c.first : c.end]
            larger.append(new)
        self._allocated(larger)

    def place(self, rows: torch.Tensor, columns: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write a prompt's states, ``[length, heads, size]``, into rows; see ``PromptIndex``."""
        # A sliding window layer has only the last states of a long prompt; its mask hides the earlier columns.
        columns = columns if len(keys) == columns.shape[1] else columns[:, -len(keys) :]
        self.keys[rows, :, columns], self.values[rows, :, columns] = keys, values

    def grow_pages(self, count: int) -> None:
        """Allocate memory for ``count`` pages."""
        for number, old in enumerate(self.pages):
            self.pages[number] = old.new_empty(count, *old.shape[1:])
            self.pages[number][: len(old)] = old

    def remember(self, pages: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Copy states from one column of each of these rows to pages."""
        for kept, parts in zip(self.pages, self.rows, strict=True):
            kept[pages] = parts[:, rows, :, columns]

    def recall(self, pages: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Copy states from pages to one column of each of these rows."""
        for kept, parts in zip(self.pages, self.rows, strict=True):
            parts[:, rows, :, columns] = kept[pages]

    def write_pages(self, pages: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Copy states of successive tokens, ``[1, heads, tokens, size]``, to pages."""
        new = [part[0].transpose(0, 1) for part in (keys, values)]
        for kept, parts in zip(self.pages, [new] if len(self.pages) == 1 else [new[:1], new[1:]], strict=True):
            kept[pages] = torch.stack(parts, dim=1)

    def read_pages(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a copy of the keys and values of successive tokens, ``[1, heads, tokens, size]`` each."""
        keys, values = (part.transpose(0, 1)[None] for kept in self.pages for part in kept[pages].unbind(1))
        return keys, values

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Overwrite the rows ``target`` with the rows ``source``."""
        for parts in self.rows:
            live = parts[:, :, :, self.columns.first : self.columns.end]
            live[:, target] = live[:, source]


class SlotStates(LinearAttentionLayer):
    """Convolution states and recurrent states of all rows, for linear attention."""

    def place_states(self, new: Sequence[LinearAttentionLayer]) -> None:
        """Append a row with the states of each of these layers."""
        states = kept_states(self)
        prompts = {layer: kept_states(layer) for layer in new}
        for place in prompts[new[0]]:
            before = [states[place]] if place in states else []
            put_state(self, place, torch.cat([*before, *(prompts[layer][place] for layer in new)]))
        take_flags(self, new[-1])

    def select_states(self, rows: Index) -> None:
        """Keep these rows, in this order."""
        for place, state in kept_states(self).items():
            put_state(self, place, state[rows.on(state.device)[0]])


class SlotHybrid(SlotStates, SlotLayer):
    """Both kinds of states, for layers with both kinds of attention."""

    def __init__(self, columns: Columns, like: Any) -> None:
        SlotStates.__init__(self)
        SlotLayer.__init__(self, columns, like.keys, like.values)


def has_states(layer: Any) -> bool:
    """Return whether a layer has keys and values of its own, and does not share another layer's."""
    return getattr(layer, "keys", None) is not None and layer.is_initialized


def slot_layer(layer: Any, columns: Columns) -> Any:
    """Return our layer that replaces one of the library's."""
    kind = type(layer)
    if kind in (DynamicLayer, DynamicSlidingWindowLayer):
        # A layer that has no states, or shares another layer's, is never written to.
        return SlotLayer(columns, layer.keys, layer.values) if has_states(layer) else DynamicLayer()
    if kind is DummyLayer:
        return kind()
    if kind is LinearAttentionLayer:
        return SlotStates()
    if kind is LinearAttentionAndFullAttentionLayer:
        return SlotHybrid(columns, layer)
    raise NotImplementedError(kind.__name__)
