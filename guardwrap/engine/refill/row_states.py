"""Rows of a batch, which keep the attention states of attempts of any prompts between tokens.

There are several classes with one interface. ``slots.Slots`` accepts new rows at any time, ``Wave`` only when it is
empty, and ``Plain`` keeps no states. They should all give the same logits. ``mode_selection.select_rows`` tests which
do for a given model, and selects the fastest of these. ``Separate`` computes one row at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers import DynamicCache

from guardwrap.engine.forward_passes import fresh_cache, left_padded, length_threshold, run_model, run_next, run_text
from guardwrap.engine.refill.slots import Prefix, Recent, Slots, computed_prompt, recurs
from guardwrap.engine.scheduling.backend import Ids


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

    def rewind(self, row: int, prefix: Ids, prompt: int) -> None:
        """Have a row end with ``prefix``, the first of its ids, of which the first ``prompt`` are the prompt.

        Requires ``can_rewind``.
        """

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """Append a token to each row (``[rows]``); return logits of the next one, ``[rows, vocabulary]``, float32.

        ``remember`` has the rows whose states to keep for other rows to start from, with all their ids, including the
        new token.
        """


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

    def rewind(self, row: int, prefix: Ids, prompt: int) -> None:
        """See ``Rows.rewind``."""
        self._texts[row] = self._texts[row][: len(prefix)]

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

    def rewind(self, row: int, prefix: Ids, prompt: int) -> None:
        """See ``Rows.rewind``."""
        raise NotImplementedError

    def add(self, prefixes: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        device = self._model.device
        row_of: dict[Ids, int] = {}
        rows = torch.tensor([row_of.setdefault(prefix, len(row_of)) for prefix in prefixes], device=device)
        self._past = fresh_cache(self._model)
        ids, mask, positions = left_padded(list(row_of), device)
        logits = run_model(self._model, ids, mask, positions, self._past)
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


class Separate:
    """Rows with a cache of the library each, computed one at a time. Each distinct prompt is computed once and copied.

    In half precision, rounding depends on the shape of the batch: on the number of rows, and on the columns that are
    masked because rows differ in length. Here each call of the model has one row of its own length, so a seed gives the
    same texts whatever the company.
    """

    name = "separate"
    refills = True
    shares = False

    def __init__(self, model: Any, prompts: int = 64) -> None:
        self._model = model
        self._prompts = Recent(prompts)
        self._texts: list[torch.Tensor] = []  # ``[1, length]`` each
        self._pasts: list[Any] = []

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``. The row may also start with a text that another class of rows has computed so far."""
        begin = max(prompt, min(len(prefix), length_threshold(self._model) or prompt))
        text = torch.tensor([prefix], device=self._model.device)
        _, past = run_text(self._model, text, begin, fresh_cache(self._model))
        self._texts.append(text)
        self._pasts.append(past)
        return len(prefix) - prompt

    def rewind(self, row: int, prefix: Ids, prompt: int) -> None:
        """See ``Rows.rewind``. The states are computed again, so that they are those of a row that came here."""
        self.join(prefix, prompt)
        self._texts[row], self._pasts[row] = self._texts.pop(), self._pasts.pop()

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        known = [self._prompt(ids) for ids in prompts]
        self._pasts += [self._past(copy.deepcopy(prefix.layers)) for prefix in known]
        self._texts += [torch.tensor([ids], device=self._model.device) for ids in prompts]
        return torch.cat([prefix.logits for prefix in known if prefix.logits is not None])

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See ``Rows.keep``."""
        self._pasts = [self._pasts[row] for row in rows]
        self._texts = [self._texts[row] for row in rows]
        return list(rows)

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See ``Rows.forward``."""
        self._texts = [
            torch.cat([text, token], dim=1) for text, token in zip(self._texts, tokens[:, None, None], strict=True)
        ]
        logits = []
        for row, text in enumerate(self._texts):
            computed, self._pasts[row] = run_next(self._model, text, self._pasts[row])
            logits.append(computed)
        return torch.cat(logits)

    def _prompt(self, ids: Ids) -> Prefix:
        prefix = self._prompts.take(ids)
        if prefix is None:
            prefix = computed_prompt(self._model, ids)
            self._prompts.put(ids, prefix)
        return prefix

    def _past(self, layers: Sequence[Any]) -> DynamicCache:
        past = fresh_cache(self._model)
        past.layers = list(layers)
        return past


class SeparatePlain(Plain):
    """Rows without a cache, one at a time, for models whose cache does not give their own logits."""

    name = "separate, without a cache"

    def _logits(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([super(SeparatePlain, self)._logits([text]) for text in texts])


def can_rewind(kind: type[Rows], model: Any) -> bool:
    """Return whether rows of a class can drop their newest tokens; see ``Rows.rewind``.

    Those of a ``Wave`` cannot, nor those that are computed alone past some length, nor recurrent states.
    """
    if kind is Slots:
        return length_threshold(model) is None and not recurs(fresh_cache(model).layers)
    return kind is Separate or (issubclass(kind, Plain) and length_threshold(model) is None)


def rows_of(kind: type[Rows], model: Any) -> Rows:
    """Create an empty batch of a class of rows, for texts of any length."""
    threshold = length_threshold(model)
    return kind(model) if threshold is None or kind is Separate else ThresholdRows(model, kind, threshold)


@dataclass(eq=False)
class _Row:
    """A row: its tokens, the length of its prompt, and its number among the rows that are computed as it is."""

    ids: list[int]
    prompt: int
    number: int
    alone: bool


class ThresholdRows:
    """Rows that are computed together until one is longer than the threshold, which is from then on computed alone."""

    def __init__(self, model: Any, kind: type[Rows], threshold: int) -> None:
        self._parts: dict[bool, Rows] = {False: kind(model), True: Separate(model)}  # by whether rows are alone
        self._threshold = threshold
        self._rows: list[_Row] = []
        self.name = self._together.name
        self.refills = self._together.refills

    @property
    def _together(self) -> Rows:
        return self._parts[False]

    @property
    def shares(self) -> bool:
        """See ``Rows.shares``."""
        return self._together.shares

    def add(self, prompts: Sequence[Ids]) -> torch.Tensor:
        """See ``Rows.add``."""
        new = [self._row(ids, len(ids)) for ids in prompts]
        return self._merged(new, lambda part, rows: part.add([tuple(row.ids) for row in rows]))

    def join(self, prefix: Ids, prompt: int) -> int:
        """See ``Rows.join``."""
        return self._parts[self._row(prefix, prompt).alone].join(prefix, prompt)

    def rewind(self, row: int, prefix: Ids, prompt: int) -> None:
        """See ``Rows.rewind``."""
        raise NotImplementedError

    def keep(self, rows: Sequence[int]) -> list[int]:
        """See ``Rows.keep``."""
        self._rows = [self._rows[row] for row in rows]
        self._keep(False)
        self._keep(True)
        return list(rows)

    def forward(self, tokens: torch.Tensor, remember: Mapping[int, Ids] | None = None) -> torch.Tensor:
        """See ``Rows.forward``."""
        self._part_from_long_rows()
        for row, token in zip(self._rows, tokens.tolist(), strict=True):
            row.ids.append(token)
        token_of = {id(row): tokens[place] for place, row in enumerate(self._rows)}
        kept = {self._rows[place].number: ids for place, ids in (remember or {}).items() if not self._rows[place].alone}

        def run(part: Rows, rows: Sequence[_Row]) -> torch.Tensor:
            together = part is self._together
            return part.forward(torch.stack([token_of[id(row)] for row in rows]), kept if together else None)

        return self._merged(self._rows, run)

    def _row(self, ids: Ids, prompt: int) -> _Row:
        """Append a row."""
        alone = len(ids) > self._threshold
        row = _Row(list(ids), prompt, sum(other.alone == alone for other in self._rows), alone)
        self._rows.append(row)
        return row

    def _part_from_long_rows(self) -> None:
        """Have rows computed alone to whose texts the next token adds one too many."""
        long = [row for row in self._rows if not row.alone and len(row.ids) >= self._threshold]
        if not long:
            return
        count = sum(row.alone for row in self._rows)
        for number, row in enumerate(long, count):
            row.alone, row.number = True, number
            self._parts[True].join(tuple(row.ids), row.prompt)
        self._keep(False)

    def _keep(self, alone: bool) -> None:
        """Keep the listed rows of a part, and number them as it does."""
        rows = {row.number: row for row in self._rows if row.alone == alone}
        for number, before in enumerate(self._parts[alone].keep(sorted(rows))):
            rows[before].number = number

    def _merged(self, rows: Sequence[_Row], run: Any) -> torch.Tensor:
        """Run each part on its rows, in its order; return the logits in the order of ``rows``."""
        logits: dict[int, torch.Tensor] = {}
        for alone, part in self._parts.items():
            of_part = sorted((row for row in rows if row.alone == alone), key=lambda row: row.number)
            if of_part:
                logits |= {id(row): each for row, each in zip(of_part, run(part, of_part), strict=True)}
        return torch.stack([logits[id(row)] for row in rows])
