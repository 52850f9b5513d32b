"""Rows of models that compute texts past a length threshold in another way (see ``backends.length_thresholds``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from guardwrap.backends.length_thresholds import length_threshold
from guardwrap.backends.refill.row_states import Rows
from guardwrap.backends.refill.separate_rows import Separate
from guardwrap.scheduling.backend import Ids


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
