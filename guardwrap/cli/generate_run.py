"""A run of ``guardwrap generate``: prompts in, written results out."""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from guardwrap.cli.failed_prompts import FailedPrompts
from guardwrap.cli.flags import in_flags
from guardwrap.cli.out_of_order_cache import keep_ahead, path_of
from guardwrap.cli.progress_log import Far, telling
from guardwrap.cli.rejected_texts import RejectedTexts
from guardwrap.cli.results import WrittenLines, line_file, to_line
from guardwrap.cli.shared import fail, in_one_line, show
from guardwrap.constraints.files.coerce import PerPromptOptions
from guardwrap.documents.inputs import irregular
from guardwrap.errors import PromptError, UsageError
from guardwrap.formatting import counted_of
from guardwrap.outcomes import Outcome
from guardwrap.prompt_files.prompts import Item
from guardwrap.prompt_files.records import why_short

if TYPE_CHECKING:
    from guardwrap.cli.generate_request import GenerateRequest
    from guardwrap.generator import GuardedGenerator

logger = logging.getLogger("guardwrap")

Write = Callable[[int, Item, Outcome], None]


class Run:
    """Generates texts for prompts, and writes the results in input order."""

    timed = True

    def __init__(
        self,
        items: Iterator[Item],
        total: int | None,
        done: WrittenLines,
        request: GenerateRequest,
        *,
        output: Path | None,
        quiet: bool = False,
        kept: Mapping[int, bytes] | None = None,
        show_rejected: int = 0,
        fits: Callable[[Item, bytes], bool] = lambda *_: False,
    ) -> None:
        self._items = items
        self._total = total
        self._request = request
        self._output = output
        self._quiet = quiet
        self._show_rejected = show_rejected
        self._kept = dict(kept or {})
        self._fits = fits
        self._tell: Callable[[], None] = lambda: None
        self._append: Callable[[bytes], None] = _to_stdout
        self._size = done.size
        self._under_way: dict[int, tuple[int, Item]] = {}  # by number in the call of stream
        self._ended: dict[int, Outcome] = {}  # finished, but waiting for an earlier prompt
        self._waiting: dict[int, bytes] = {}  # lines of an earlier run that wait for an earlier prompt
        self._reused = 0
        self._own: deque[PerPromptOptions] = deque()
        self._current: Item | None = None
        self.plain_for_chat = False
        self._begun = False
        self._told = False
        self.failed = FailedPrompts()
        self.saved = 0
        self.done = done.count
        self.short = done.short
        self.advice = "raise the budget"

    def go(self, guarded: GuardedGenerator, options: Mapping[str, Any]) -> None:
        """Generate until the prompts end. Each outcome is written once all earlier ones are."""
        each = self._own_of_each()
        prompts = self._prompts(guarded)
        if self._show_rejected:
            options = {**options, "on_rejected": RejectedTexts(self._show_rejected, self._where)}
        outcomes = guarded.stream(prompts, on_outcome=self._ended.__setitem__, constraint_each=each, **options)
        with ExitStack() as stack:
            write = self._writer(stack)
            stack.callback(self._leave)
            try:
                for call, outcome in enumerate(outcomes):
                    self._write_waiting()
                    number, item = self._under_way[call]
                    write(number, item, outcome)
                    del self._under_way[call]
                    self._ended.pop(call, None)
                    self._count(outcome.ok)
                    if not outcome.ok:
                        self.failed.add(item.where, outcome.report)
                    if not outcome.ok and not self._told:
                        which = "the first" if self.short == 1 else "the first of this run"
                        self.advice = f"{which}, {item.where}: {in_flags(why_short(outcome))}"
                        self._told = True
                self._write_waiting()
                self._kept.clear()  # what is left belongs to prompts that the input no longer has
            except PromptError as error:
                where = f"{self._current.where}: " if self._current else ""
                raise PromptError(f"{where}{error}") from None

    def _where(self, call: int) -> str:
        return self._under_way[call][1].where

    def _count(self, ok: bool) -> None:
        self.done += 1
        self.short += not ok
        self._tell()

    def _write_waiting(self) -> None:
        """Write the lines of an earlier run that are next in order."""
        while self.done in self._waiting:
            line = self._waiting[self.done]
            self._append(line)
            del self._waiting[self.done]
            self._count(json.loads(line)["ok"])

    def _leave(self) -> None:
        """Save results that wait for an earlier prompt. After a complete run, there are none."""
        if self._output is None or irregular(self._output):
            return
        lines: dict[int, bytes] = {}
        for call, outcome in self._ended.items():
            number, item = self._under_way[call]
            lines[number] = to_line(item, outcome, self._request.settings_of(item))
        lines = {number: line for number, line in (lines | self._waiting | self._kept).items() if number >= self.done}
        with suppress(OSError):  # on a full disk, these prompts are generated again later
            keep_ahead(self._output, lines)
            self.saved = len(lines)

    def state(self) -> str:
        """Return how many prompts are done, and how to continue."""
        done = counted_of(self.done, self._total, "prompt")
        if self.done == self.saved == 0 and (self._output is None or irregular(self._output)):
            return "no prompt is done yet"
        if self._output is None:
            return f"{done} done; a run with --output can be continued"
        kept = "no prompt is" if self.done == 0 else f"{done} {'is' if self.done == 1 else 'are'}"
        ahead = f", and {self.saved} waiting for a slow one ({self._slow()}) in {path_of(self._output)}"
        return f"{kept} in {self._output}{ahead if self.saved else ''}; continue with the same command and --resume"

    def _slow(self) -> str:
        """Return the place of the prompt that finished ones wait for."""
        with suppress(StopIteration, RuntimeError):  # the dict may change, as this is called from another thread
            return next(iter(self._under_way.values()))[1].where
        return ""

    def _prompts(self, guarded: GuardedGenerator) -> Iterator[Any]:
        chats = guarded.session.takes_chats
        call = 0
        for number, item in enumerate(self._items, start=self.done):
            line = self._kept.pop(number, None)
            if line is not None and self._fits(item, line):
                self._waiting[number] = line
                self._reused += 1
                continue
            prompt = item.given(self._request.chat)
            if not chats and not isinstance(prompt, str):
                way_out = 'leave out --chat, and give "prompt" instead of "messages"'
                raise UsageError(f"{item.where}: this model has no chat template; {way_out}")
            self.plain_for_chat = self.plain_for_chat or (chats and isinstance(prompt, str))
            own = item.own
            if own.seed is None:  # the number in the input, so that skipped lines do not change the randomness
                own = replace(own, number=number)
            self._under_way[call] = number, item
            self._own.append(own)
            self._current = item
            logger.info("prompt %d is %s", call + 1, item.where)  # logs of the call have no other name for it
            yield prompt
            self._current = None
            call += 1
        self._begun = True

    def _own_of_each(self) -> Iterator[PerPromptOptions]:
        """Yield the options of each prompt, right after the prompt was taken."""
        while self._own:
            yield self._own.popleft()

    def _writer(self, stack: ExitStack) -> Write:
        """Open the output and the progress display, and return the function that writes a result."""
        from rich.console import Console
        from rich.text import Text

        if self._output is None and sys.stdout.isatty():
            console = Console(highlight=False)
            self._tell = self._teller(stack, console)

            def to_people(_: int, item: Item, outcome: Outcome) -> None:
                console.print(Text(f"\n{in_one_line(item.summary, console.width)}", style="bold"))
                show(console, outcome)

            return to_people
        self._tell = self._teller(stack, Console(stderr=True))
        if self._output is not None:
            self._append = stack.enter_context(line_file(self._output, self._size))

        def to_programs(_: int, item: Item, outcome: Outcome) -> None:
            self._append(to_line(item, outcome, self._request.settings_of(item)))

        return to_programs

    def _far(self, kept: int) -> Far:
        ahead = len(self._ended) + len(self._waiting)
        return Far(self.done, kept + self._reused, self.short, ahead, self._slow(), self._begun)

    def _teller(self, stack: ExitStack, console: Any) -> Callable[[], None]:
        """Start the progress display: a bar on a terminal, otherwise lines. Return what to call after each prompt."""
        if self._quiet:
            return lambda: None
        if not sys.stderr.isatty():
            stack.enter_context(telling(partial(self._far, self.done), self._total, "prompt", timed=self.timed))
            return lambda: None
        from rich import progress

        columns = (
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
        )
        bar = progress.Progress("generating", *columns, console=console, transient=True)
        task = stack.enter_context(bar).add_task("", total=self._total, completed=self.done)
        return lambda: bar.advance(task)


def require_another_seed(output: Path, seed: int, before: int | None) -> None:
    """Raise UsageError if prompts would be retried with the seed that they failed with."""
    if seed == before:
        raise UsageError(f"{str(output)!r} was made with --seed {seed}, so a retry needs a different one")


def missing_texts(short: int, total: int, what: str, advice: str, *, kept: bool, seed: int | None) -> typer.Exit:
    """Print to stderr that texts are missing, and return the exit."""
    other = "" if seed is None else ", with another --seed or without one"
    retry = f"; retry them with --resume --retry-failed{other}" if kept else ""
    return typer.Exit(fail(f"{short} of {total} {what} did not get all their texts; {advice}{retry}", 3))


def _to_stdout(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
