"""Retries for the prompts of an output file that did not get all their texts."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

from guardwrap.cli.generate_request import GenerateRequest
from guardwrap.cli.generate_run import Run, Write
from guardwrap.cli.results import WrittenLines, replace_lines, to_line
from guardwrap.formatting import counted_of
from guardwrap.outcomes import Outcome
from guardwrap.prompt_files.prompts import Item
from guardwrap.prompt_files.records import AGAIN

EVERY = 60.0
"""Seconds between updates of the output file: a run that is killed loses at most the results of these."""


class RetryRun(Run):
    """A retry of failed prompts. New lines replace old ones, unless the old line has more texts than the new one."""

    timed = False  # easy prompts finish first, so an ETA would be too short

    def __init__(self, done: WrittenLines, seed: int, request: GenerateRequest, *, output: Path, **shown: Any) -> None:
        items = (
            dataclasses.replace(item, own=dataclasses.replace(item.own, seed=seed, number=number))
            for number, item, _, _ in done.failed
        )
        super().__init__(items, len(done.failed), WrittenLines(), request, output=output, **shown)
        self.size = done.size
        self._path = output
        self._failed = done.failed
        self._new: dict[int, bytes] = {}
        self._written = monotonic()
        self._write: Write = lambda *_: None

    def state(self) -> str:
        """Return how many prompts were retried, and how to continue."""
        were, are = ("was", "is") if self.done == 1 else ("were", "are")
        kept = f"{counted_of(self.done, self._total, 'prompt')} {were} retried and {are} in {self._path}"
        return f"{kept if self.done else 'no prompt was retried yet'}; continue with the same command"

    def _writer(self, stack: ExitStack) -> Write:
        from rich.console import Console

        self._tell = self._teller(stack, Console(stderr=True))

        def write(at: int, item: Item, outcome: Outcome) -> None:
            number, _, before, texts = self._failed[at]
            if len(outcome.texts) >= texts:  # otherwise the old line, which has more texts, stays
                self._new[number] = to_line(item, outcome, {**self._request.settings_of(item), AGAIN: before + 1})
            if monotonic() - self._written > EVERY:
                self._keep()

        self._write = write
        return write

    def _leave(self) -> None:
        try:
            for call, outcome in self._ended.items():  # after an interruption; lines are replaced in any order
                self._write(*self._under_way[call], outcome)
                self.done += 1
        finally:
            self._keep()

    def _keep(self) -> None:
        if self._new:
            self.size = replace_lines(self._path, self._new)
            self._new = {}
        self._written = monotonic()
