"""Rows in slots: the next attempt at once takes the slot of one that ends."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import Cache

from guardwrap.backends.refill.prompt_tree import Pages, Prefix, Recent, computed_prompt
from guardwrap.backends.refill.row_states import fresh_cache, run_model
from guardwrap.backends.refill.slot_layers import Columns, Index, PromptIndex, SlotLayer, SlotStates, slot_layer
from guardwrap.environment.transformers_internals import LinearAttentionLayer
from guardwrap.scheduling.backend import Ids

LEAST, MOST = 256, 4096
"""Minimum and maximum number of tokens whose states are kept, whatever their size."""

FEW = 64
"""Minimum number of tokens for whose states memory is added."""


class Slots:
    """Rows in our own cache: a row that ends frees a slot, and the next attempt of any prompt takes it at once.

    Each distinct prompt is computed once and copied into its rows, aligned on the right; the mask hides the columns to
    its left. Rows stay contiguous: when rows end, the last ones move into the gaps. A row can also start at a prefix
    that another row has reached: their states are kept as a tree of prefixes.

    ``states``: memory for the states of other tokens, in bytes; those of ``LEAST`` tokens are kept in any case.
    """

    name = "refill"
    refills = True

    def __init__(self, model: Any, prompts: int = 64, states: int = 2**27) -> None:
        self._model = model
        self._prompts = Recent(prompts)
        self._prefixes = Recent(LEAST)
        self._memory = states
        self._columns = Columns()
        self._size = (0, 0)  # allocated rows and columns
        self._starts: list[int] = []  # the first column of each row
        self._stands: list[Prefix | None] = []  # the prefix of each row, if it is kept in the tree
        self._new: list[Prefix] = []  # added but not copied into rows yet, as many end with their first token
        self._pages = Pages()
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
        parents = {row: parent for row in rows if (parent := self._stands[row]) is not None}
        self._stands = [None] * len(self._stands)
        if not parents:
            return
        self._reserve(len(parents))
        pages = []
        for row, parent in parents.items():
            self._stands[row] = prefix = self._pages.extended(parent)
            self._prefixes.put(rows[row], prefix)
            pages.append(prefix.page)
        index = Index(pages, list(parents), [self._columns.end] * len(pages))
        for layer in self._slot_layers():
            layer.remember(*index.on(layer.device))

    def _reserve(self, new: int) -> None:
        """Allocate pages for ``new`` prefixes."""
        lacking, count = self._pages.lacking(new), self._pages.count
        if lacking:
            # Rows may hold on to prefixes that the tree no longer has, so its capacity is not the largest number.
            count += max(lacking, FEW, min(count, self._prefixes.capacity - count))
            for layer in self._slot_layers():
                layer.grow_pages(count)
            self._pages.grow(count)

    @property
    def _layers(self) -> Sequence[Any]:
        return self._past.layers if self._past else ()

    def _slot_layers(self) -> list[SlotLayer]:
        return [layer for layer in self._layers if isinstance(layer, SlotLayer)]

    def _prompt(self, ids: Ids) -> Prefix:
        prefix = self._prompts.take(ids)
        if prefix is None:
            prefix = computed_prompt(self._model, ids)
            if (gone := self._prompts.put(ids, prefix)) is not None:
                self._prefixes.drop(gone)
            if self._past is None:
                self._past = Cache(layers=[slot_layer(layer, self._columns) for layer in prefix.layers])
                each = sum(layer.page_bytes for layer in self._slot_layers())
                self._prefixes.capacity = min(max(LEAST, self._memory // max(each, 1)), MOST)
        return prefix

    def _extended(self, start: Prefix, ids: Ids) -> Prefix:
        """Compute the tokens of ``ids`` after the prefix ``start`` in one pass, and add their states to the tree."""
        root, pages = start.path()
        past, before = fresh_cache(self._model), Index(pages)
        past.layers = [copy.copy(layer) for layer in root.layers]
        kept = [(ours, its) for ours, its in zip(self._layers, past.layers, strict=True) if isinstance(ours, SlotLayer)]
        if pages:
            for ours, its in kept:
                its.update(*ours.read_pages(*before.on(ours.device)))
        rest = torch.tensor([ids[start.length :]], device=self._model.device)
        mask = torch.ones(1, len(ids), dtype=torch.long, device=rest.device)
        run_model(self._model, rest, mask, torch.arange(start.length, len(ids), device=rest.device)[None], past)
        new = rest.shape[1]
        if any(its.keys.shape[2] < new for _, its in kept):
            return Prefix(len(ids), past.layers)  # a sliding window no longer has the states of all these tokens
        self._reserve(new)
        for end in range(start.length + 1, len(ids) + 1):
            start = self._pages.extended(start)
            self._prefixes.put(ids[:end], start)
        after = Index(start.path()[1][-new:])
        for ours, its in kept:
            (numbers,) = after.on(ours.device)
            ours.write_pages(numbers, its.keys[:, :, -new:], its.values[:, :, -new:])
        return start

    def _place_new(self) -> None:
        if not self._new:
            return
        c = self._columns
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
        self._write_new()
        self._starts += [c.end - prefix.length for prefix in self._new]
        self._stands += self._new
        c.rows += len(self._new)
        c.first = min(self._starts)
        self._new = []

    def _write_new(self) -> None:
        """Copy the states of new rows into them: those of each prompt, then those of all tokens after prompts."""
        end = self._columns.end
        roots: list[Prefix] = []
        starts: dict[Prefix, tuple[list[int], list[int]]] = {}  # by prompt, its rows and their first columns
        pages: list[int] = []
        page_rows: list[int] = []
        page_columns: list[int] = []
        for row, prefix in enumerate(self._new, self._columns.rows):
            root, path = prefix.path()
            roots.append(root)
            rows, columns = starts.setdefault(root, ([], []))
            rows.append(row)
            columns.append(end - prefix.length)
            pages += path
            page_rows += [row] * len(path)
            page_columns += range(end - len(path), end)
        prompts = {root: PromptIndex(*numbers, root.length) for root, numbers in starts.items()}
        index = Index(pages, page_rows, page_columns)
        for number, layer in enumerate(self._layers):
            if isinstance(layer, SlotLayer):
                for root, places in prompts.items():
                    prompt_rows, prompt_columns = places.on(layer.device)
                    layer.place(prompt_rows, prompt_columns, *root.states[number])
                if pages:
                    layer.recall(*index.on(layer.device))
            if isinstance(layer, SlotStates):
                layer.place_states([root.layers[number] for root in roots])

    def _lay_out(self, rows: int, columns: int, end: int) -> None:
        c = self._columns
        for layer in self._slot_layers():
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
        moves, selected = Index(movers, gaps), Index(order)
        for layer in self._layers:
            if isinstance(layer, SlotLayer) and gaps:
                layer.move(*moves.on(layer.device))
            if isinstance(layer, SlotStates):
                layer.select_states(selected)
        self._starts = [self._starts[row] for row in order]
        self._stands = [self._stands[row] for row in order]
        c.rows = len(rows)
        c.first = min(self._starts, default=c.end)
        return order


def _grown(size: int) -> int:
    """Return the next larger size to allocate. Doubling took 2.5 times the memory of ``generate``."""
    return size + size // 4 + 1
