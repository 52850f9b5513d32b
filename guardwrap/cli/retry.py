"""Drawing again for the prompts of an output file that did not get all their texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

from guardwrap.cli.generate_run import Run, Write
from guardwrap.cli.results import WrittenLines, replace_lines, to_line
from guardwrap.outcomes import Outcome
from guardwrap.prompt_files.prompts import Item
from guardwrap.prompt_files.records import AGAIN

__all__ = ["RetryRun"]

EVERY = 60.0
"""Seconds after which the file is written anew: what is killed loses no more than these."""


class RetryRun(Run):
    """Prompts that are drawn for again. Their new lines stand in the place of old ones with no more texts; others stay.

    Parameters
    ----------
    done
        What the output file has.
    seed
        Another one than before, which would draw the same attempts.
    settings, output, quiet
        As of a ``Run``.

    Attributes
    ----------
    size : int
        Of the output file, in bytes.
    """

    timed = False  # what passes at once is done first, and the rest takes the longer

    def __init__(
        self, done: WrittenLines, seed: int, settings: Mapping[str, Any], *, output: Path, quiet: bool = False
    ) -> None:
        items = (
            dataclasses.replace(item, own=dataclasses.replace(item.own, seed=seed, number=number))
            for number, item, _, _ in done.failed
        )
        super().__init__(items, len(done.failed), WrittenLines(), settings, output=output, quiet=quiet)
        self.size = done.size
        self._path = output
        self._failed = done.failed
        self._new: dict[int, bytes] = {}
        self._written = monotonic()
        self._write: Write = lambda *_: None

    def state(self) -> str:
        """Say how far it came, and how to go on."""
        kept = f"{self.done} of {self._total} prompts were drawn for again and are in {self._path}"
        return f"{kept if self.done else 'no prompt was drawn for again yet'}; continue with the same command"

    def _writer(self, stack: ExitStack) -> Write:
        from rich.console import Console

        self._tell = self._teller(stack, Console(stderr=True))

        def write(at: int, item: Item, outcome: Outcome) -> None:
            number, _, before, texts = self._failed[at]
            if len(outcome.texts) >= texts:  # what was found is not given up for less
                self._new[number] = to_line(item, outcome, {**self._settings, AGAIN: before + 1})
            if monotonic() - self._written > EVERY:
                self._keep()

        self._write = write
        return write

    def _leave(self) -> None:
        try:
            for call, outcome in self._ended.items():  # where it is given up: these need not wait for those before them
                self._write(*self._under_way[call], outcome)
                self.done += 1
        finally:
            self._keep()

    def _keep(self) -> None:
        if self._new:
            self.size = replace_lines(self._path, self._new)
            self._new = {}
        self._written = monotonic()
