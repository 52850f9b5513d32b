"""Rows of a batch: where attempts of any prompts keep their attention states between tokens.

Three ways to do it, with one interface. ``Slots`` takes new rows at any time, ``Wave`` only when it is empty, and
``Plain`` keeps nothing and computes every token from the whole text. All give the same logits; ``choose`` tries them
on the model at hand, fastest first.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from transformers import Cache, DynamicCache, GenerationConfig
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from guardwrap.engine.prepare import without_stop_strings
from guardwrap.errors import ModelError

logger = logging.getLogger("guardwrap")

__all__ = ["Plain", "Rows", "Slots", "Wave", "choose"]


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

    def add(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Append a row for each prompt (ids, ``[length]``); logits of the next token, ``[prompts, vocabulary]``."""

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Drop all rows but these, given in ascending order; returns the old numbers of the rows as they now stand."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append a token to each row (``[rows]``); logits of the next one, ``[rows, vocabulary]``, float32."""


@cache
def _parameters(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def _run(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Cache | None
) -> torch.Tensor:
    """Run the model; logits of the last position, ``[rows, vocabulary]``, float32."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    known = _parameters(type(base).forward)
    extra = {"position_ids": positions, "logits_to_keep": 1, "attention_mask": mask}
    extra |= {"past_key_values": past, "cache_params": past}  # Mamba's name for it
    output = model(
        input_ids=ids,
        use_cache=past is not None,
        return_dict=True,
        **{name: value for name, value in extra.items() if name in known and value is not None},
    )
    logits: torch.Tensor = output.logits[:, -1].float()
    return logits


def _fresh_cache(model: Any) -> DynamicCache:
    return DynamicCache(config=model.config.get_text_config(decoder=True))


class Plain:
    """No cache: each token is computed from the whole text, rows of equal length together.

    Slow, and right for every causal model.
    """

    name = "plain"
    refills = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self._texts: list[torch.Tensor] = []

    def add(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Rows."""
        new = [prompt.to(self._model.device) for prompt in prompts]
        self._texts += new
        return self._logits(new)

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See Rows."""
        self._texts = [self._texts[row] for row in rows]
        return list(rows)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
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
            for row, logits in zip(rows, _run(self._model, ids, mask, mask.cumsum(-1) - 1, None), strict=True):
                results[row] = logits
        return torch.stack(results)


class Wave:
    """The library's own cache: rows begin together, prompts padded on the left, and leave one by one."""

    name = "evict-only"
    refills = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._mask = torch.empty(0)
        self._past: DynamicCache | None = None

    def add(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Rows."""
        device = self._model.device
        place: dict[tuple[int, ...], int] = {}
        rows = torch.tensor([place.setdefault(tuple(p.tolist()), len(place)) for p in prompts], device=device)
        longest = max(len(prompt) for prompt in place)
        ids = torch.zeros(len(place), longest, dtype=torch.long, device=device)
        mask = torch.zeros_like(ids)
        for prompt, row in place.items():
            ids[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
            mask[row, longest - len(prompt) :] = 1
        self._past = _fresh_cache(self._model)
        logits = _run(self._model, ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), self._past)
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

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """See Rows."""
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        positions = self._mask.sum(-1, keepdim=True) - 1
        return _run(self._model, tokens[:, None], self._mask, positions, self._past)


class _Columns:
    """Which columns of the rectangles are live; one object for all layers.

    Rows are aligned on the right: every row's newest state stands in column ``end - 1``, and its oldest in its own
    ``start``. All rows write column ``end`` next.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.first = 0
        self.end = 0


class _SlotLayer(DynamicLayer):
    """Keys and values of all rows in one rectangle, written in place: no copy of everything at each token."""

    def __init__(self, columns: _Columns, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.columns = columns
        # Zeros, not uninitialised memory: a masked column weighs 0, and 0 times NaN is NaN.
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
        """Move what is live into a rectangle of this size, so that it ends at column ``end``."""
        c = self.columns
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(rows, old.shape[1], columns, old.shape[3])
            new[: c.rows, :, end - (c.end - c.first) : end] = old[: c.rows, :, c.first : c.end]
            setattr(self, name, new)

    def place(self, rows: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write a prompt's states into new rows."""
        # A sliding window layer has the last states of a long prompt only; its mask hides the rest.
        live = slice(self.columns.end - keys.shape[2], self.columns.end)
        self.keys[rows, :, live], self.values[rows, :, live] = keys, values

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy rows over others."""
        live = slice(self.columns.first, self.columns.end)
        self.keys[target, :, live] = self.keys[source, :, live]
        self.values[target, :, live] = self.values[source, :, live]


class _SlotStates(LinearAttentionLayer):
    """Convolution and recurrent states of all rows, for linear attention."""

    def place_states(self, like: LinearAttentionLayer, count: int) -> None:
        """Append a prompt's states as new rows."""
        for mine, theirs in ((self.conv_states, like.conv_states), (self.recurrent_states, like.recurrent_states)):
            for i, state in theirs.items():
                if state is not None:
                    new = state.expand(count, *state.shape[1:])
                    mine[i] = new.clone() if mine[i] is None else torch.cat([mine[i], new])
        for flags in ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state"):
            setattr(self, flags, dict(getattr(like, flags)))
        self.conv_kernel_size = dict(like.conv_kernel_size)
        self.device, self.dtype = like.device, like.dtype

    def select_states(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        for states in (self.conv_states, self.recurrent_states):
            for i, state in states.items():
                if state is not None:
                    states[i] = state[list(rows)]


class _SlotHybrid(_SlotStates, _SlotLayer):
    """Both in one layer."""

    def __init__(self, columns: _Columns, like: Any) -> None:
        _SlotStates.__init__(self, like.number_of_states)  # type: ignore[call-arg]  # the library is untyped
        _SlotLayer.__init__(self, columns, like.keys, like.values)


class Slots:
    """Our own cache: a row that ends frees a slot, and the next attempt of any prompt takes it at once.

    A distinct prompt is computed once and copied into the rows that need it, aligned on the right; the mask hides
    what stands to its left. Rows stay at the front of the rectangles: the last ones move into the gaps.

    Parameters
    ----------
    model
        The model.
    prompts
        How many prompts' states are kept for further rows.
    """

    name = "refill"
    refills = True

    def __init__(self, model: Any, prompts: int = 64) -> None:
        self._model = model
        self._recent: OrderedDict[tuple[int, ...], _Prefilled] = OrderedDict()
        self._capacity = prompts
        self._columns = _Columns()
        self._size = (0, 0)  # rows and columns of the rectangles
        self._starts: list[int] = []
        self._new: list[_Prefilled] = []  # added, and not yet placed: many end with their first token
        self._past: Cache | None = None

    def add(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Rows."""
        new = [self._prefilled(prompt) for prompt in prompts]
        self._new += new
        return torch.cat([prefilled.logits for prefilled in new])

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See Rows."""
        before = self._columns.rows
        placed = [row for row in rows if row < before]
        late = list(rows[len(placed) :])
        self._new = [self._new[row - before] for row in late]
        return self._close_gaps(placed) + late

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """See Rows."""
        self._place_new()
        c = self._columns
        if c.end == self._size[1]:
            live = c.end - c.first
            # Shift to the left while that frees enough, or else grow.
            width = self._size[1] if live < self._size[1] * 3 // 4 else live + live // 2 + 32
            self._lay_out(self._size[0], width, live)
        starts = torch.tensor(self._starts, device=tokens.device)[:, None]
        mask = (torch.arange(c.first, c.end + 1, device=tokens.device) >= starts).long()
        logits = _run(self._model, tokens[:, None], mask, c.end - starts, self._past)
        c.end += 1
        return logits

    def _prefilled(self, prompt: torch.Tensor) -> _Prefilled:
        key = tuple(prompt.tolist())
        if key not in self._recent:
            ids = prompt[None].to(self._model.device)
            mask = torch.ones_like(ids)
            past = _fresh_cache(self._model)
            logits = _run(self._model, ids, mask, mask.cumsum(-1) - 1, past)
            self._recent[key] = _Prefilled(past, logits, len(key))
        self._recent.move_to_end(key)
        while len(self._recent) > self._capacity:
            self._recent.popitem(last=False)
        return self._recent[key]

    def _place_new(self) -> None:
        if not self._new:
            return
        c = self._columns
        if self._past is None:
            self._past = Cache(layers=[_slot_layer(layer, c) for layer in self._new[0].past.layers])
        longest = max(prefilled.length for prefilled in self._new)
        if c.rows == 0:
            c.first = c.end = 0
        rows, width = self._size
        need = c.rows + len(self._new)
        if need > rows or max(c.end, longest) >= width:
            rows = rows if need <= rows else max(need, 2 * rows)
            live = c.end - c.first
            self._lay_out(rows, max(width, max(live, longest) + 64), max(live, longest) if c.rows else 0)
        if c.rows == 0:
            c.first = c.end = longest
        elif c.end < longest:
            self._lay_out(*self._size, longest)
        for prefilled, group in itertools.groupby(self._new, key=lambda prefilled: prefilled):
            count = len(list(group))
            for mine, theirs in zip(self._past.layers, prefilled.past.layers, strict=True):
                if isinstance(mine, _SlotLayer):
                    mine.place(range(c.rows, c.rows + count), theirs.keys, theirs.values)
                if isinstance(mine, _SlotStates):
                    mine.place_states(theirs, count)
            c.rows += count
            self._starts += [c.end - prefilled.length] * count
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
        """Keep these rows: the last ones move into the places of those that go."""
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
        c.rows = len(rows)
        c.first = min(self._starts, default=c.end)
        return order


@dataclass(frozen=True, eq=False)
class _Prefilled:
    """A prompt's states and the logits of its first new token, ``[1, vocabulary]``."""

    past: DynamicCache
    logits: torch.Tensor
    length: int


def _slot_layer(layer: Any, columns: _Columns) -> Any:
    """Return the layer of ours that takes the place of one of the library's."""
    kind = type(layer)
    if kind in (DynamicLayer, DynamicSlidingWindowLayer):
        # A layer that shares another's states, or has none, is never written.
        return _SlotLayer(columns, layer.keys, layer.values) if layer.is_initialized else DynamicLayer()
    if kind is LinearAttentionLayer:
        return _SlotStates(layer.number_of_states)
    if kind is LinearAttentionAndFullAttentionLayer:
        return _SlotHybrid(columns, layer)
    raise NotImplementedError(kind.__name__)


@torch.no_grad()
def choose(model: Any) -> type[Rows]:
    """Find the fastest way to keep rows that gives this model's own logits.

    Each is tried with prompts of different lengths, rows that leave, and rows that come later, against computing every
    text from its beginning.

    Parameters
    ----------
    model
        A causal language model.

    Returns
    -------
    type
        Slots, Wave or Plain; called with the model it makes empty rows. What was found is remembered as long as the
        model lives.
    """
    found = _chosen.setdefault(model, {})
    key = (model.dtype, str(model.device))
    if key not in found:
        found[key] = _tested(model)
    return found[key]


_chosen: WeakKeyDictionary[Any, dict[Any, type[Rows]]] = WeakKeyDictionary()


def _tested(model: Any) -> type[Rows]:
    _require_generate(model)
    if _rope_types(model.config.get_text_config()) & {"dynamic", "longrope"}:
        return Plain  # the longest row of a batch sets the frequencies of all
    kinds: tuple[type[Slots] | type[Wave], ...] = (Slots, Wave)
    for kind in kinds:
        try:
            error = _difference(kind(model), Plain(model))
        except Exception as reason:  # whatever an architecture does with a cache it does not know
            logger.debug("%s does not work with %s", kind.name, type(model).__name__, exc_info=reason)
            continue
        if error < _tolerance(model):
            return kind
        logger.debug("%s differs by %.2g with %s", kind.name, error, type(model).__name__)
    return Plain


def _tolerance(model: Any) -> float:
    """Largest difference of logits, in units of their spread, that is rounding.

    Float32 agrees to about 1e-5; half precision rounds at 1e-2, and a misplaced state is off by 1.
    """
    return 2e-3 if model.dtype in (torch.float32, torch.float64) else 0.1


def _rope_types(config: Any) -> set[str]:
    """Kinds of rotary embedding, of the model or of its layer types."""
    found: set[str] = set()
    stack = [getattr(config, "rope_parameters", None) or {}]
    while stack:
        parameters = stack.pop()
        found.add(str(parameters.get("rope_type")))
        stack += [value for value in parameters.values() if isinstance(value, dict)]
    return found


def _require_generate(model: Any) -> None:
    """Refuse models whose generate does more than feed them tokens, such as appending a mask.

    Raises
    ------
    ModelError
        If the logits of ``model.generate`` are not those of the model called on the same tokens.
    """
    size = model.config.get_text_config().vocab_size
    ids = torch.randint(size, (1, 4), generator=torch.Generator().manual_seed(0)).to(model.device)
    config = GenerationConfig(
        max_new_tokens=3,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    with warnings.catch_warnings(), without_stop_strings(model.generation_config):
        warnings.simplefilter("ignore")  # about settings of the model's own that a greedy trial does not use
        made = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    plain = Plain(model)
    reference = plain.add([ids[0]])
    for step, logits in enumerate(made.logits):
        if step:
            reference = plain.forward(made.sequences[:, ids.shape[1] + step - 1])
        spread = reference.std(-1).mean().clamp(min=1e-6)
        if float(((logits.float() - reference).abs().amax() / spread).item()) > _tolerance(model):
            raise ModelError(
                f"{type(model).__name__} is not supported: its generate feeds it other inputs than the text's tokens"
            )


def _difference(rows: Rows, plain: Rows) -> float:
    """Run both through the same changes; largest difference of logits, relative to their spread."""
    chance = torch.Generator().manual_seed(0)
    size = plain._model.config.get_text_config().vocab_size  # type: ignore[attr-defined]

    def tokens(count: int) -> torch.Tensor:
        return torch.randint(size, (count,), generator=chance)

    worst, count = 0.0, 0
    script: list[Any] = ["add", 1, 1, [0, 2], 1, "more", 1, [1, 2], 1, 1]
    if not rows.refills:
        script = ["add", 1, 1, [0, 2], 1, 1]
    prompts = {"add": [tokens(5), tokens(3), tokens(5)], "more": [tokens(9)]}
    prompts["add"][2] = prompts["add"][0]
    device = plain._model.device  # type: ignore[attr-defined]
    for action in script:
        if isinstance(action, list):
            plain.keep(rows.keep(action))
            count = len(action)
            continue
        if isinstance(action, str):
            mine, reference = rows.add(prompts[action]), plain.add(prompts[action])
            count += len(prompts[action])
        else:
            next_tokens = tokens(count).to(device)
            mine, reference = rows.forward(next_tokens), plain.forward(next_tokens)
        spread = reference.std(-1).mean().clamp(min=1e-6)
        worst = max(worst, float(((mine - reference).abs().amax() / spread).item()))
    return worst
