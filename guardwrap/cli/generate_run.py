"""A run of ``guardwrap generate``: prompts in, written results out."""

from __future__ import annotations

import logging
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from guardwrap.cli.flags import in_flags
from guardwrap.cli.progress_log import Far, telling
from guardwrap.cli.results import Task, WrittenLines, line_file, sort_lines
from guardwrap.cli.shared import fail, in_one_line, printable_text, show
from guardwrap.constraints.files.coerce import PerPromptOptions
from guardwrap.documents.inputs import irregular
from guardwrap.errors import GuardwrapError, PromptError, UsageError, quoted
from guardwrap.formatting import counted_of
from guardwrap.outcomes import Outcome, Report
from guardwrap.prompt_files.records import AGAIN, record_of, to_bytes, why_short
from guardwrap.scheduling.request import RejectedAttempt

if TYPE_CHECKING:
    from guardwrap.cli.generate_request import GenerateRequest, OutputOptions
    from guardwrap.generator import GuardedGenerator

logger = logging.getLogger("guardwrap")


class Run:
    """Generates texts for prompts. Lines are written to a file as prompts end, and to streams in input order."""

    def __init__(
        self,
        tasks: Iterator[Task],
        total: int | None,
        written: WrittenLines,
        request: GenerateRequest,
        results: OutputOptions,
    ) -> None:
        self._tasks, self._total, self._request, self._results = tasks, total, request, results
        self._path = None if results.path is None or irregular(results.path) else results.path
        self._size, self._last, self._sorted = written.size, 0, not results.resume
        self._retries = len(written.failed) if results.retry_failed else 0
        self._tell: Callable[[], None] = lambda: None
        self._write: Callable[[Task, Outcome], None] = self._to_programs
        self._append: Callable[[bytes], None] = _to_stdout
        self._under_way: dict[int, Task] = {}  # by number in the call of stream
        self._own: deque[PerPromptOptions] = deque()
        self._current: Task | None = None
        self._begun = False
        self._retried = self._streamed = 0
        self._short_before = len(written.failed) - self._retries
        self._first: tuple[int, str] | None = None  # the first prompt of this run that is short, and why
        self.plain_for_chat = False
        self.failed = FailedPrompts()
        self.done = written.count - self._retries
        self.short = self._short_before

    @property
    def advice(self) -> str:
        """What helps the prompts that did not get all their texts."""
        if self._first is None:
            return "raise the budget"
        return f"the first{' of this run' if self._short_before else ''}, {self._first[1]}"

    def go(self, guarded: GuardedGenerator, options: Mapping[str, Any]) -> None:
        """Generate until the prompts end. After an error or an interruption, all that has ended is written."""
        try:
            self._generate(guarded, options)
        except BaseException:
            with suppress(OSError):  # --resume sorts them as well
                self.sort()
            raise
        self.sort()

    def sort(self) -> None:
        """Sort the lines of the file, unless they were written in order."""
        if self._path is not None and not self._sorted and self._path.exists():
            sort_lines(self._path)

    def _generate(self, guarded: GuardedGenerator, options: Mapping[str, Any]) -> None:
        prompts = self._prompts(guarded)
        if self._results.show_rejected:
            options = {**options, "on_rejected": RejectedTexts(self._results.show_rejected, self._where)}
        with ExitStack() as stack:
            self._open(stack)
            outcomes = guarded.stream(prompts, on_outcome=self._end, constraint_each=self._own_of_each(), **options)
            try:
                for call, outcome in enumerate(outcomes):
                    task = self._under_way.pop(call)
                    if self._path is None:
                        self._write(task, outcome)
                        self._streamed += 1
            except PromptError as error:
                where = f"{self._current.item.where}: " if self._current else ""
                raise PromptError(f"{where}{error}") from None

    def _end(self, call: int, outcome: Outcome) -> None:
        """Count a prompt that has ended, and write its line to the file."""
        task = self._under_way[call]
        if self._path is not None:
            self._write(task, outcome)
        self.done += 1
        self._retried += task.retried is not None
        if not outcome.ok:
            self.short += 1
            self.failed.add(task.number, task.item.where, outcome.report)
            if self._first is None or task.number < self._first[0]:
                self._first = task.number, f"{task.item.where}: {in_flags(why_short(outcome))}"
        self._tell()

    def _where(self, call: int) -> str:
        return self._under_way[call].item.where

    def state(self) -> str:
        """Return how many prompts are done, and how to continue."""
        path = self._path
        done = counted_of(self._streamed if path is None else self.done, self._total, "prompt")
        if path is None:
            return f"{done} done; a run with --output can be continued" if self._streamed else "no prompt is done yet"
        if self._retries:
            retried = counted_of(self._retried, self._retries, "prompt")
            words = "was retried and is" if self._retried == 1 else "were retried and are"
            kept = f"{retried} {words} in {path}" if self._retried else "no prompt was retried yet"
            return f"{kept}; continue with the same command"
        kept = "no prompt is" if self.done == 0 else f"{done} {'is' if self.done == 1 else 'are'}"
        return f"{kept} in {path}; continue with the same command and --resume"

    def _prompts(self, guarded: GuardedGenerator) -> Iterator[Any]:
        chats = guarded.session.takes_chats
        for call, task in enumerate(self._tasks):
            item = task.item
            prompt = item.given(self._request.chat)
            if not chats and not isinstance(prompt, str):
                way_out = 'leave out --chat, and give "prompt" instead of "messages"'
                raise UsageError(f"{item.where}: this model has no chat template; {way_out}")
            self.plain_for_chat = self.plain_for_chat or (chats and isinstance(prompt, str))
            own = item.own
            if own.seed is None:  # the number in the input, so that skipped lines do not change the randomness
                own = replace(own, number=task.number - 1)
            self._under_way[call] = task
            self._own.append(own)
            self._current = task
            logger.info("prompt %d is %s", call + 1, item.where)  # logs of the call have no other name for it
            yield prompt
            self._current = None
        self._begun = True

    def _own_of_each(self) -> Iterator[PerPromptOptions]:
        """Yield the options of each prompt, right after the prompt was taken."""
        while self._own:
            yield self._own.popleft()

    def _open(self, stack: ExitStack) -> None:
        """Open the output and the progress display."""
        from rich.console import Console
        from rich.text import Text

        if self._results.path is None and sys.stdout.isatty():
            console = Console(highlight=False)
            self._tell = self._teller(stack, console)

            def to_people(task: Task, outcome: Outcome) -> None:
                console.print(Text(f"\n{in_one_line(task.item.summary, console.width)}", style="bold"))
                show(console, outcome)

            self._write = to_people
            return
        self._tell = self._teller(stack, Console(stderr=True))
        if self._results.path is not None:
            self._append = stack.enter_context(line_file(self._results.path, self._size))

    def _to_programs(self, task: Task, outcome: Outcome) -> None:
        if len(outcome.texts) >= task.texts:  # otherwise the line of before, which has more texts, stays
            again = {} if task.retried is None else {AGAIN: task.retried + 1}
            settings = {**self._request.settings_of(task.item), **again}
            self._append(to_bytes(record_of(task.item.fields, outcome, settings, task.number)))
            self._sorted = self._sorted and task.number > self._last
            self._last = task.number

    def _teller(self, stack: ExitStack, console: Any) -> Callable[[], None]:
        """Start the progress display: a bar on a terminal, otherwise lines. Return what to call after each prompt."""
        if self._results.quiet:
            return lambda: None
        if not sys.stderr.isatty():
            far = partial(self._far, self.done)
            # In a retry, easy prompts finish first, so an ETA would be too short.
            stack.enter_context(telling(far, self._total, "prompt", timed=not self._retries))
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

    def _far(self, kept: int) -> Far:
        return Far(self.done, kept, self.short, self._begun)


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


INDENT = "    "


class RejectedTexts:
    """Prints the first rejected attempts of each prompt."""

    def __init__(self, limit: int, where: Callable[[int], str]) -> None:
        self._limit = limit
        self._where = where
        self._shown: Counter[int] = Counter()

    def __call__(self, rejected: RejectedAttempt) -> None:
        """Print an attempt, unless its prompt has had enough of them."""
        if self._shown[rejected.prompt] >= self._limit:
            return
        self._shown[rejected.prompt] += 1
        head = f"{self._where(rejected.prompt)}, attempt {rejected.attempt + 1}, rejected by {_parts(rejected)}:"
        lines = printable_text(rejected.draw.text).splitlines() or ["(no text)"]
        with suppress(OSError):  # a closed stderr must not end the run
            typer.echo("\n".join([head, *(f"{INDENT}{line}" for line in lines)]), err=True)


def _parts(rejected: RejectedAttempt) -> str:
    try:
        return ", ".join(map(str, rejected.explain().rejections))
    except GuardwrapError:  # the attempt has been judged already, so the run can continue
        return quoted(rejected.part)


MOST = 10
"""The most rules, and the most prompts of one rule, that are listed."""


class FailedPrompts:
    """Collects the prompts that did not get all their texts, and describes them after the run."""

    def __init__(self) -> None:
        self._prompts: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        self._rejected: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()

    def add(self, number: int, where: str, report: Report) -> None:
        """Add a prompt, given its number and its place in the input."""
        rule = max(report.rejections, key=report.rejections.__getitem__, default="")
        label = quoted(rule) if rule else f"no rule (ended by {report.ended})"
        self._prompts[label].append((number, f"{where} ({report.accepted} of {report.requested} texts)"))
        self._rejected[label] += report.rejections.get(rule, 0)
        self._attempts[label] += report.usage.attempts

    def lines(self) -> list[str]:
        """Return one line for each rule, the one of most prompts first; none for a single prompt.

        A rule is listed with the prompts whose attempts it rejected more of than any other rule.
        """
        if sum(map(len, self._prompts.values())) < 2:
            return []
        rules = sorted(self._prompts, key=lambda label: (-len(self._prompts[label]), label))
        listed = [self._line(label) for label in rules[:MOST]]
        return [*listed, f"  and {len(rules) - MOST} more rules"] if len(rules) > MOST else listed

    def _line(self, label: str) -> str:
        prompts = [words for _, words in sorted(self._prompts[label])]
        more = f" and {len(prompts) - MOST:,} more" if len(prompts) > MOST else ""
        rejected = f"rejected {self._rejected[label]:,} of {self._attempts[label]:,} attempts"
        return f"  {label} {rejected}: {', '.join(prompts[:MOST])}{more}"
