"""Rows in slots: the next attempt at once takes the slot of one that ends."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import Cache

from guardwrap.backends.refill.prompt_tree import Prefix, Recent
from guardwrap.backends.refill.row_states import Ids, fresh_cache, run_model
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

__all__ = ["Slots"]


LEAST, MOST = 256, 4096
"""Minimum and maximum number of tokens whose states are kept, whatever their size."""


class _Columns:
    """The range of columns in use, ``first`` to ``end - 1``, shared by all layers.

    Rows are aligned on the right: every row has its newest state in column ``end - 1``, and its oldest in a column of
    its own, its start. All rows write column ``end`` next.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.first = 0
        self.end = 0


class _SlotLayer(DynamicLayer):
    """Keys and values of all rows in one preallocated tensor, written in place, so that a token copies nothing."""

    def __init__(self, columns: _Columns, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.columns = columns
        # Zeros and not uninitialized memory: masked columns are multiplied by 0, and 0 times NaN is NaN.
        self.keys = keys.new_zeros(0, keys.shape[1], 0, keys.shape[3])
        self.values = values.new_zeros(0, values.shape[1], 0, values.shape[3])
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return self.columns.end - self.columns.first

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.columns
        live = slice(c.first, c.end + 1)
        self.keys[: c.rows, :, c.end] = key_states[:, :, 0]
        self.values[: c.rows, :, c.end] = value_states[:, :, 0]
        return self.keys[: c.rows, :, live], self.values[: c.rows, :, live]

    def lay_out(self, rows: int, columns: int, end: int) -> None:
        """Move the columns in use into a tensor of ``rows`` by ``columns``, so that they end before column ``end``."""
        c = self.columns
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(rows, old.shape[1], columns, old.shape[3])
            new[: c.rows, :, end - (c.end - c.first) : end] = old[: c.rows, :, c.first : c.end]
            setattr(self, name, new)

    def place(self, rows: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write a prompt's states into new rows."""
        # A sliding window layer has only the last states of a long prompt; its mask hides the earlier columns.
        live = slice(self.columns.end - keys.shape[2], self.columns.end)
        self.keys[rows, :, live], self.values[rows, :, live] = keys, values

    def column(self, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a copy of the newest column of rows: keys and values, ``[rows, heads, size]`` each."""
        return self.keys[rows, :, self.columns.end], self.values[rows, :, self.columns.end]

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Overwrite the rows ``target`` with the rows ``source``."""
        live = slice(self.columns.first, self.columns.end)
        self.keys[target, :, live] = self.keys[source, :, live]
        self.values[target, :, live] = self.values[source, :, live]


class _SlotStates(LinearAttentionLayer):
    """Convolution states and recurrent states of all rows, for linear attention."""

    def place_states(self, like: LinearAttentionLayer, count: int) -> None:
        """Append ``count`` rows with a prompt's states."""
        states = kept_states(self)
        for place, state in kept_states(like).items():
            new = state.expand(count, *state.shape[1:])
            put_state(self, place, torch.cat([states[place], new]) if place in states else new.clone())
        take_flags(self, like)

    def select_states(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        for place, state in kept_states(self).items():
            put_state(self, place, state[list(rows)])


class _SlotHybrid(_SlotStates, _SlotLayer):
    """Both kinds of states, for layers with both kinds of attention."""

    def __init__(self, columns: _Columns, like: Any) -> None:
        _SlotStates.__init__(self)
        _SlotLayer.__init__(self, columns, like.keys, like.values)


class Slots:
    """Rows in our own cache: a row that ends frees a slot, and the next attempt of any prompt takes it at once.

    Each distinct prompt is computed once and copied into its rows, aligned on the right; the mask hides the columns to
    its left. Rows stay contiguous: when rows end, the last ones move into the gaps. A row can also start at a prefix
    that another row has reached: their states are kept as a tree of prefixes.

    Parameters
    ----------
    model
        The model.
    prompts
        Number of prompts whose states are kept for further rows.
    states
        Memory for the states of other tokens, in bytes; those of ``LEAST`` tokens are kept in any case.
    """

    name = "refill"
    refills = True

    def __init__(self, model: Any, prompts: int = 64, states: int = 2**27) -> None:
        self._model = model
        self._prompts = Recent(prompts)
        self._prefixes = Recent(LEAST)
        self._memory = states
        self._columns = _Columns()
        self._size = (0, 0)  # allocated rows and columns
        self._starts: list[int] = []  # the first column of each row
        self._stands: list[Prefix | None] = []  # the prefix of each row, if it is kept in the tree
        self._new: list[Prefix] = []  # added but not copied into rows yet, as many end with their first token
        self._past: Cache | None = None

    @property
    def shares(self) -> bool:
        """See Rows. False for recurrent states, which the next token overwrites, and before the first prompt."""
        some = next(iter(self._prompts.values()), None)
        return some is not None and not any(isinstance(layer, LinearAttentionLayer) for layer in some.layers)

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        new = [self._prompt(ids) for ids in prompts]
        self._new += new
        return torch.cat([prompt.logits for prompt in new if prompt.logits is not None])

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``."""
        kept = len(prefix)
        while kept > prompt and prefix[:kept] not in self._prefixes:
            kept -= 1
        start = self._prompt(prefix[:prompt]) if kept == prompt else self._prefixes[prefix[:kept]]
        if kept < len(prefix):
            start = self._extended(start, prefix)
        else:
            self._prefixes.take(prefix)
        self._new.append(start)
        return len(prefix) - kept

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See ``Rows.keep``."""
        before = self._columns.rows
        placed = [row for row in rows if row < before]
        late = list(rows[len(placed) :])
        self._new = [self._new[row - before] for row in late]
        return self._close_gaps(placed) + late

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See ``Rows.forward``."""
        self._place_new()
        c = self._columns
        if c.end == self._size[1]:
            live = c.end - c.first
            # Shift the columns to the left if that frees a quarter or more; otherwise allocate more.
            width = self._size[1] if live < self._size[1] * 3 // 4 else _grown(live)
            self._lay_out(self._size[0], width, live)
        starts = torch.tensor(self._starts, device=tokens.device)[:, None]
        mask = (torch.arange(c.first, c.end + 1, device=tokens.device) >= starts).long()
        logits = run_model(self._model, tokens[:, None], mask, c.end - starts, self._past)
        self._remember(remember or {})
        c.end += 1
        return logits

    def _remember(self, rows: Mapping[int, Ids]) -> None:
        """Add the newest tokens' states to the tree, for rows whose prefix is in the tree."""
        in_tree = {row: ids for row, ids in rows.items() if self._stands[row] is not None}
        stands: list[Prefix | None] = [None] * len(self._stands)
        if in_tree:
            index = list(in_tree)
            layers = [
                layer.column(index) if isinstance(layer, _SlotLayer) else None
                for layer in (self._past.layers if self._past else ())
            ]
            for i, (row, ids) in enumerate(in_tree.items()):
                states = [None if layer is None else (layer[0][i], layer[1][i]) for layer in layers]
                stands[row] = self._kept(ids, Prefix(len(ids), states, self._stands[row]))
        self._stands = stands

    def _kept(self, ids: Ids, prefix: Prefix) -> Prefix:
        if not self._prefixes:
            each = sum(part.nbytes for states in prefix.layers if states is not None for part in states)
            self._prefixes.capacity = min(max(LEAST, self._memory // max(each, 1)), MOST)
        self._prefixes.put(ids, prefix)
        return prefix

    def _prompt(self, ids: Ids) -> Prefix:
        prefix = self._prompts.take(ids)
        if prefix is None:
            row = torch.tensor([ids], device=self._model.device)
            mask = torch.ones_like(row)
            past = fresh_cache(self._model)
            logits = run_model(self._model, row, mask, mask.cumsum(-1) - 1, past)
            prefix = Prefix(len(ids), past.layers, logits=logits)
            if (gone := self._prompts.put(ids, prefix)) is not None:
                self._prefixes.drop(gone)
        return prefix

    def _extended(self, start: Prefix, ids: Ids) -> Prefix:
        """Compute the tokens of ``ids`` after the prefix ``start`` in one pass, and add their states to the tree."""
        past = fresh_cache(self._model)
        past.layers = [start.layer(number) for number in range(len(start.root.layers))]
        rest = torch.tensor([ids[start.length :]], device=self._model.device)
        mask = torch.ones(1, len(ids), dtype=torch.long, device=rest.device)
        run_model(self._model, rest, mask, torch.arange(start.length, len(ids), device=rest.device)[None], past)
        if any(_holds(layer) and layer.keys.shape[2] < rest.shape[1] for layer in past.layers):
            return Prefix(len(ids), past.layers)  # a sliding window no longer has the states of all these tokens
        for end in range(start.length + 1, len(ids) + 1):
            states = [
                (layer.keys[0, :, end - len(ids) - 1].clone(), layer.values[0, :, end - len(ids) - 1].clone())
                if _holds(layer)
                else None
                for layer in past.layers
            ]
            start = self._kept(ids[:end], Prefix(end, states, start))
        return start

    def _place_new(self) -> None:
        if not self._new:
            return
        c = self._columns
        if self._past is None:
            self._past = Cache(layers=[_slot_layer(layer, c) for layer in self._new[0].root.layers])
        longest = max(prefix.length for prefix in self._new)
        if c.rows == 0:
            c.first = c.end = 0
        rows, width = self._size
        need = c.rows + len(self._new)
        if need > rows or max(c.end, longest) >= width:
            rows = rows if need <= rows else max(need, _grown(rows))
            live = c.end - c.first
            self._lay_out(rows, max(width, max(live, longest) + 32), max(live, longest) if c.rows else 0)
        if c.rows == 0:
            c.first = c.end = longest
        elif c.end < longest:
            self._lay_out(*self._size, longest)
        for prefix, group in itertools.groupby(self._new, key=lambda prefix: prefix):
            count = len(list(group))
            for number, layer in enumerate(self._past.layers):
                if isinstance(layer, _SlotLayer):
                    layer.place(range(c.rows, c.rows + count), *prefix.states(number))
                if isinstance(layer, _SlotStates):
                    layer.place_states(prefix.layers[number], count)
            c.rows += count
            self._starts += [c.end - prefix.length] * count
            self._stands += [prefix] * count
        c.first = min(self._starts)
        self._new = []

    def _lay_out(self, rows: int, columns: int, end: int) -> None:
        c = self._columns
        for layer in self._past.layers if self._past else ():
            if isinstance(layer, _SlotLayer):
                layer.lay_out(rows, columns, end)
        moved = end - c.end
        c.first, c.end = c.first + moved, end
        self._starts = [start + moved for start in self._starts]
        self._size = (rows, columns)

    def _close_gaps(self, rows: Sequence[int]) -> list[int]:
        """Keep these rows, moving the last ones into free slots; return their old numbers in their new order."""
        c = self._columns
        if len(rows) == c.rows:
            return list(rows)
        order = list(range(len(rows)))
        gaps = sorted(set(order) - set(rows))
        movers = [row for row in rows if row >= len(rows)]
        for gap, row in zip(gaps, movers, strict=True):
            order[gap] = row
        for layer in self._past.layers if self._past else ():
            if isinstance(layer, _SlotLayer) and gaps:
                layer.move(movers, gaps)
            if isinstance(layer, _SlotStates):
                layer.select_states(order)
        self._starts = [self._starts[row] for row in order]
        self._stands = [self._stands[row] for row in order]
        c.rows = len(rows)
        c.first = min(self._starts, default=c.end)
        return order


def _grown(size: int) -> int:
    """Return the next larger size to allocate. Doubling took 2.5 times the memory of ``generate``."""
    return size + size // 4 + 1


def _holds(layer: Any) -> bool:
    """Return whether an attention layer has keys and values of its own, and does not share another layer's."""
    return layer.keys is not None and layer.is_initialized


def _slot_layer(layer: Any, columns: _Columns) -> Any:
    """Return our layer that replaces one of the library's."""
    kind = type(layer)
    if kind in (DynamicLayer, DynamicSlidingWindowLayer):
        # A layer that has no states, or shares another layer's, is never written to.
        return _SlotLayer(columns, layer.keys, layer.values) if _holds(layer) else DynamicLayer()
    if kind is DummyLayer:
        return kind()
    if kind is LinearAttentionLayer:
        return _SlotStates()
    if kind is LinearAttentionAndFullAttentionLayer:
        return _SlotHybrid(columns, layer)
    raise NotImplementedError(kind.__name__)
