"""Rows in slots: the next attempt at once takes the slot of one that ends."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import Cache

from guardwrap.engine.forward_passes import fresh_cache, left_padded, run_model
from guardwrap.engine.scheduling.backend import Ids
from guardwrap.support.transformers_internals import (
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

    Keys and values of one shape and dtype are two parts of one tensor, because copying them together takes fewer
    operations.

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
        alike = keys.shape == values.shape and keys.dtype == values.dtype  # dtypes may differ under autocast
        parts = [(2, keys)] if alike else [(1, keys), (1, values)]
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

    def shift(self, row: int, start: int, columns: int) -> None:
        """Move the states of a row, which begin in a column, to the right, over those of its newest tokens."""
        end = self.columns.end
        for parts in self.rows:
            parts[:, row, :, start + columns : end] = parts[:, row, :, start : end - columns].clone()

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
    past = fresh_cache(model)
    logits = run_model(model, *left_padded([ids], model.device), past)
    return Prefix(len(ids), past.layers, logits=logits)


PASS = 2048
"""The most tokens in one pass over several prompts, which limits its memory."""

PADDED = 1.25
"""The most tokens in one pass over several prompts, padding included, for each token of theirs."""


def computed_prompts(model: Any, prompts: Sequence[Ids]) -> dict[Ids, Prefix]:
    """Compute distinct prompts, those of like lengths in one pass."""
    computed: dict[Ids, Prefix] = {}
    for group in _alike(prompts, padded=1.0 if recurs(fresh_cache(model).layers) else PADDED):
        computed |= _in_one_pass(model, group) if len(group) > 1 else {group[0]: computed_prompt(model, group[0])}
    return computed


def _alike(prompts: Sequence[Ids], padded: float) -> Iterator[list[Ids]]:
    """Group prompts by length, so that padding adds no more than ``padded`` allows."""
    group: list[Ids] = []
    tokens = 0
    for ids in sorted(prompts, key=len):
        if group and len(ids) * (len(group) + 1) > min(PASS, padded * (tokens + len(ids))):
            yield group
            group, tokens = [], 0
        group.append(ids)
        tokens += len(ids)
    if group:
        yield group


def _in_one_pass(model: Any, prompts: Sequence[Ids]) -> dict[Ids, Prefix]:
    """Compute prompts in one pass."""
    past = fresh_cache(model)
    logits = run_model(model, *left_padded(prompts, model.device), past)
    computed = {}
    for row, prompt in enumerate(prompts):
        layers = [_row_of(layer, row, len(prompt)) for layer in past.layers]
        computed[prompt] = Prefix(len(prompt), layers, logits=logits[row : row + 1].clone())
    return computed


def _row_of(layer: Any, row: int, length: int) -> Any:
    """Return a layer with a copy of one row's states, which the other rows' would outlive otherwise."""
    alone = copy.copy(layer)
    vars(alone).update({name: dict(value) for name, value in vars(layer).items() if isinstance(value, dict)})
    alone.reorder_cache(torch.tensor([row]))
    if has_states(alone):
        alone.keys, alone.values = alone.keys[:, :, -length:], alone.values[:, :, -length:]
    if hasattr(alone, "cumulative_length"):
        alone.cumulative_length = length
    return alone


def recurs(layers: Sequence[Any]) -> bool:
    """Return whether a layer has recurrent states, which padding and each next token change."""
    return any(isinstance(layer, LinearAttentionLayer) for layer in layers)


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
        return some is not None and not recurs(some.layers)

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        new = self._computed(prompts)
        self._new += new
        return torch.cat([prompt.logits for prompt in new if prompt.logits is not None])

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``."""
        kept = len(prefix)
        while kept > prompt and prefix[:kept] not in self._prefixes:
            kept -= 1
        start = self._computed([prefix[:prompt]])[0] if kept == prompt else self._prefixes[prefix[:kept]]
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

    def rewind(self, row: int, prefix: Ids, prompt: int) -> None:
        """See ``Rows.rewind``. The row keeps its states, and is aligned on the right again."""
        start = self._starts[row]
        columns = self._columns.end - start - len(prefix)
        for layer in self._slot_layers():
            layer.shift(row, start, columns)
        self._starts[row] = start + columns
        self._stands[row] = None
        self._columns.first = min(self._starts)

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

    def _computed(self, prompts: Sequence[Ids]) -> list[Prefix]:
        """Return prompts with their states, which are computed unless they are still kept."""
        kept = {ids: prefix for ids in prompts if (prefix := self._prompts.take(ids)) is not None}
        new = [ids for ids in dict.fromkeys(prompts) if ids not in kept]
        for ids, prefix in computed_prompts(self._model, new).items():
            kept[ids] = prefix
            if (gone := self._prompts.put(ids, prefix)) is not None:
                self._prefixes.drop(gone)
            if self._past is None:
                self._past = Cache(layers=[slot_layer(layer, self._columns) for layer in prefix.layers])
                each = sum(layer.page_bytes for layer in self._slot_layers())
                self._prefixes.capacity = min(max(LEAST, self._memory // max(each, 1)), MOST)
        return [kept[ids] for ids in prompts]

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
