"""Rows of a batch, which keep the attention states of attempts of any prompts between tokens.

There are three classes with one interface: ``slots.Slots`` accepts new rows at any time, ``Wave`` only when it is
empty, and ``Plain`` keeps no states and computes every token from the whole text. They should all give the same logits;
``mode_selection.select_rows`` tests which do for a given model, and selects the fastest of these.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from transformers import Cache, DynamicCache

from guardwrap.backends.attention_kernels import for_any_shape
from guardwrap.backends.length_thresholds import length_threshold, one_pass_length, restore_rotary
from guardwrap.environment.model_loading import computing
from guardwrap.environment.transformers_internals import CACHE_NAMES, uncompiled
from guardwrap.scheduling.backend import Ids


class Rows(Protocol):
    """The rows of a batch, numbered from 0."""

    name: str  # the name of the mode in reports
    refills: bool  # whether rows can be added while others are in use

    def __init__(self, model: Any) -> None:
        """Create an empty batch for a model."""

    @property
    def shares(self) -> bool:
        """Whether rows can start at prefixes that other rows have reached, so that ``remember`` has an effect."""

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """Append a row for each prompt; return logits of the next token, ``[prompts, vocabulary]``."""

    def join(self, prefix: Ids, prompt: int) -> int:
        """Append a row that starts with ``prefix``, of which the first ``prompt`` ids are the prompt.

        Requires ``shares``. Returns the number of tokens for which the model was run, without those of prompts.
        """

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Drop all rows except these, which are in ascending order; return their old numbers in their new order."""

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """Append a token to each row (``[rows]``); return logits of the next one, ``[rows, vocabulary]``, float32.

        ``remember`` has the rows whose states to keep for other rows to start from, with all their ids, including the
        new token.
        """


def taken_by(model: Any) -> frozenset[str]:
    """Return the names of the arguments of a model's ``forward``; of one that wraps another, of the model below it."""
    return _parameters(type(_base(model)))  # type: ignore[arg-type]


def _base(model: Any) -> Any:
    """Return the model below an adapter or ``torch.compile``."""
    model = uncompiled(model)
    return uncompiled(model.get_base_model()) if hasattr(model, "get_base_model") else model


@cache
def _parameters(kind: type) -> frozenset[str]:
    """Return the names of the arguments of ``forward``, and those that it may pass on to the class that it extends."""
    names: set[str] = set()
    for parent in kind.__mro__:
        if "forward" in vars(parent):
            parameters = inspect.signature(vars(parent)["forward"]).parameters
            names |= parameters.keys()
            if not {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= {
                parameter.kind for parameter in parameters.values()
            }:
                break
    return frozenset(names)


def run_model(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Cache | None
) -> torch.Tensor:
    """Run the model; return logits of the last position, ``[rows, vocabulary]``, float32."""
    return _run(model, ids, mask, positions, past, 1)[:, -1]


def in_one_pass(model: Any, ids: torch.Tensor, last: int | None = None) -> torch.Tensor:
    """Run the model on texts of one length without a cache.

    Returns
    -------
    torch.Tensor
        Logits of all positions, or of the ``last`` ones; ``[rows, tokens, vocabulary]``, float32.
    """
    mask = torch.ones_like(ids)
    return _run(model, ids, mask, mask.cumsum(-1) - 1, None, last or ids.shape[1])


def run_next(model: Any, ids: torch.Tensor, past: Any) -> tuple[torch.Tensor, Any]:
    """Run the model as ``generate`` does for one text, ``[1, length]``, of which all but the last token are cached.

    Returns
    -------
    logits : torch.Tensor
        Logits of the next token, ``[1, vocabulary]``, float32.
    past : Cache
        The cache with all tokens: the same one, unless the model has computed the text again.
    """
    end = ids.shape[1]
    mask = torch.ones_like(ids)
    positions = torch.arange(end, device=ids.device)[None]
    threshold = length_threshold(model)
    if threshold is None or end <= threshold:
        return run_model(model, ids[:, -1:], mask, positions[:, -1:], past), past
    accepted = taken_by(model)
    cache_name = next((name for name in CACHE_NAMES if name in accepted), None)
    if cache_name is None:
        return run_model(model, ids, mask, positions, None), past
    extra = {"position_ids": positions, "logits_to_keep": 1}
    inputs = _base(model).prepare_inputs_for_generation(
        ids,
        next_sequence_length=1,
        attention_mask=mask,
        use_cache=True,
        **{cache_name: past},
        **{name: value for name, value in extra.items() if name in accepted},
    )
    restore_rotary(model)
    with computing(), for_any_shape(model):
        output = model(**inputs, return_dict=True)
    return output.logits[:, -1].float(), output[cache_name]


def scores_of_text(model: Any, ids: Ids, prompt: int) -> torch.Tensor:
    """Compute a text as ``generate`` does, given its prompt's length; return logits after the prompt and each token.

    What any passes compute alike is computed in one. ``[len(ids) - prompt + 1, vocabulary]``.
    """
    text = torch.tensor([ids], device=model.device)
    threshold = one_pass_length(model)
    begin = len(ids) if threshold is None else min(len(ids), max(prompt, threshold))
    past = None if begin == len(ids) else fresh_cache(model)
    logits, _ = run_text(model, text, begin, past, begin - prompt + 1)
    return logits


def run_text(model: Any, text: torch.Tensor, begin: int, past: Any, kept: int = 1) -> tuple[torch.Tensor, Any]:
    """Compute the first ``begin`` tokens of a text, ``[1, length]``, in one pass, and the others as they are drawn.

    Returns
    -------
    logits : torch.Tensor
        Logits after the last ``kept`` of the first tokens and after each other token, ``[tokens, vocabulary]``.
    past : Cache or None
        The cache with all tokens.
    """
    mask = torch.ones_like(text[:, :begin])
    steps = [_run(model, text[:, :begin], mask, mask.cumsum(-1) - 1, past, kept)[0]]
    for end in range(begin + 1, text.shape[1] + 1):
        logits, past = run_next(model, text[:, :end], past)
        steps.append(logits)
    return torch.cat(steps), past


def _run(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: Cache | None, kept: int
) -> torch.Tensor:
    accepted = taken_by(model)
    extra = {"position_ids": positions, "logits_to_keep": kept, "attention_mask": mask}
    extra |= dict.fromkeys(CACHE_NAMES, past)
    inputs = {name: value for name, value in extra.items() if name in accepted and value is not None}
    restore_rotary(model)
    with computing(), for_any_shape(model):
        output = model(input_ids=ids, use_cache=past is not None, return_dict=True, **inputs)
    logits: torch.Tensor = output.logits[:, -kept:].float()
    return logits


def fresh_cache(model: Any) -> DynamicCache:
    """Return an empty cache of the library's class for a model."""
    return DynamicCache(config=model.config.get_text_config(decoder=True))


class Plain:
    """Rows without a cache: each token is computed from the whole text, for rows of equal length together.

    This is slow, and correct for every causal model.
    """

    name = "plain"
    refills = True
    shares = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._texts: list[torch.Tensor] = []

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``."""
        raise NotImplementedError

    def add(self, prefixes: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        new = [torch.tensor(prefix, dtype=torch.long, device=self._model.device) for prefix in prefixes]
        self._texts += new
        return self._logits(new)

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See ``Rows.keep``."""
        self._texts = [self._texts[row] for row in rows]
        return list(rows)

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See ``Rows.forward``."""
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
    """Rows in the library's own cache: they start together, with prompts padded on the left, and end one by one."""

    name = "evict-only"
    refills = False
    shares = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._mask = torch.empty(0)
        self._past: DynamicCache | None = None

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``."""
        raise NotImplementedError

    def add(self, prefixes: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
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
        """See ``Rows.keep``."""
        index = torch.tensor(rows, dtype=torch.long, device=self._mask.device)
        self._mask = self._mask[index]
        if rows and self._past is not None:
            self._past.reorder_cache(index)
        return list(rows)

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See ``Rows.forward``."""
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        positions = self._mask.sum(-1, keepdim=True) - 1
        return run_model(self._model, tokens[:, None], self._mask, positions, self._past)
