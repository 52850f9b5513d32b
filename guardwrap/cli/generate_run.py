"""A run of ``guardwrap generate``: prompts in, written results out."""

from __future__ import annotations

import logging
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from guardwrap.calls.records import AGAIN, record_of, to_bytes, why_short
from guardwrap.cli.generate_request import GenerateRequest
from guardwrap.cli.progress import Progress, progress_shown, write_to_stderr
from guardwrap.cli.results import Task, WrittenLines, line_file
from guardwrap.cli.shared import fail, in_flags, in_one_line, interruptible, printable_text, show
from guardwrap.cli.signals import describe_os_error
from guardwrap.constraints.files.constraint_file import PerPromptOptions
from guardwrap.errors import GuardwrapError, PromptError, UsageError, quoted
from guardwrap.outcomes import Outcome, Report
from guardwrap.support.formatting import counted_of
from guardwrap.support.limits import irregular

if TYPE_CHECKING:
    from guardwrap.engine.scheduling.request import RejectedAttempt
    from guardwrap.generator import GuardedGenerator

logger = logging.getLogger("guardwrap")


class Run:
    """Generates texts for prompts. Lines are written to a file as prompts end, and to streams in input order."""

    def __init__(
        self, request: GenerateRequest, tasks: Iterator[Task], total: int | None, written: WrittenLines
    ) -> None:
        self._request, self._options = request, request.options
        self._tasks, self._total, self._size = tasks, total, written.size
        output = self._options.output
        self._file = None if output is None or irregular(output) else output
        self._retries = len(written.failed) if self._options.retry_failed else 0
        self._under_way: dict[int, Task] = {}  # by number in the call of stream
        self._own: deque[PerPromptOptions] = deque()
        self._current: Task | None = None  # the prompt that the call is reading
        self._shown = RejectedTexts(self._options.show_rejected, self._where)
        self._rejected_texts: defaultdict[int, list[str]] = defaultdict(list)  # to keep, by number in the input
        self._kept = self.done = written.count - self._retries
        self._short_before = self.short = len(written.failed) - self._retries
        self._retried = self._streamed = 0
        self._all_started = False
        self._first_short: tuple[int, str] | None = None  # the first prompt of this run that is short, and why
        self.plain_for_chat = False
        self.failed = FailedPrompts()

    @property
    def advice(self) -> str:
        """What helps the prompts that did not get all their texts."""
        if self._first_short is None:
            return "raise the budget"
        return f"the first{' of this run' if self._short_before else ''}, {self._first_short[1]}"

    def go(self, guarded: GuardedGenerator, seed: int) -> None:
        """Generate until the prompts end. After an error or an interruption, all that has ended is written."""
        options = {**self._request.call_options, "seed": seed}
        if self._options.show_rejected or self._options.keep_rejected:
            options |= {"on_rejected": self._rejected, "whole_rejected": self._options.keep_rejected > 0}
        with ExitStack() as stack:
            write = self._opened(stack)

            def end(call: int, outcome: Outcome) -> None:
                if self._file is not None:
                    write(self._under_way[call], outcome)
                self._count(self._under_way[call], outcome)

            prompts, own = self._prompts(guarded), self._own_of_each()
            try:
                for call, outcome in enumerate(guarded.stream(prompts, on_outcome=end, constraint_each=own, **options)):
                    task = self._under_way.pop(call)
                    if self._file is None:
                        write(task, outcome)
                        self._streamed += 1
            except PromptError as error:
                where = f"{self._current.item.where}: " if self._current else ""
                raise PromptError(f"{where}{error}") from None

    def _count(self, task: Task, outcome: Outcome) -> None:
        """Count a prompt that has ended."""
        self.done += 1
        self._retried += task.retried is not None
        if outcome.ok:
            return
        self.short += 1
        self.failed.add(task.number, task.item.where, outcome.report)
        if self._first_short is None or task.number < self._first_short[0]:
            self._first_short = task.number, f"{task.item.where}: {in_flags(why_short(outcome))}"

    def _rejected(self, rejected: RejectedAttempt) -> None:
        """Show and keep a rejected attempt, unless its prompt has had enough of them."""
        self._shown(rejected)
        texts = self._rejected_texts[self._under_way[rejected.prompt].number]
        if rejected.whole and len(texts) < self._options.keep_rejected:
            texts.append(rejected.draw.text)

    def _where(self, call: int) -> str:
        return self._under_way[call].item.where

    def state(self) -> str:
        """Return how many prompts are done, and how to continue."""
        if self._file is None:
            done = counted_of(self._streamed, self._total, "prompt")
            return f"{done} done; a run with --output can be continued" if self._streamed else "no prompt is done yet"
        if self._retries:
            retried = counted_of(self._retried, self._retries, "prompt")
            words = "was retried and is" if self._retried == 1 else "were retried and are"
            kept = f"{retried} {words} in {self._file}" if self._retried else "no prompt was retried yet"
            return f"{kept}; continue with the same command"
        done = counted_of(self.done, self._total, "prompt")
        kept = "no prompt is" if self.done == 0 else f"{done} {'is' if self.done == 1 else 'are'}"
        return f"{kept} in {self._file}; continue with the same command and --resume"

    def _prompts(self, guarded: GuardedGenerator) -> Iterator[Any]:
        takes_chats = guarded.session.takes_chats
        for call, task in enumerate(self._tasks):
            item = task.item
            prompt = item.given(self._options.chat)
            if not takes_chats and not isinstance(prompt, str):
                way_out = 'leave out --chat, and give "prompt" instead of "messages"'
                raise UsageError(f"{item.where}: this model has no chat template; {way_out}")
            self.plain_for_chat = self.plain_for_chat or (takes_chats and isinstance(prompt, str))
            own = item.own
            if own.seed is None:  # the number in the input, so that skipped lines do not change the randomness
                own = replace(own, number=task.number - 1)
            self._under_way[call] = task
            self._own.append(own)
            self._current = task
            logger.info("prompt %d is %s", call + 1, item.where)  # logs of the call have no other name for it
            yield prompt
            self._current = None
        self._all_started = True

    def _own_of_each(self) -> Iterator[PerPromptOptions]:
        """Yield the options of each prompt, right after the prompt was taken."""
        while self._own:
            yield self._own.popleft()

    def _opened(self, stack: ExitStack) -> Callable[[Task, Outcome], None]:
        """Open the output and the progress display, and return what writes an outcome."""
        from rich.console import Console
        from rich.text import Text

        output = self._options.output
        for_people = Console(highlight=False) if output is None and sys.stdout.isatty() else None
        if not self._options.quiet:
            stack.enter_context(progress_shown(self._progress, self._total, "prompt", for_people))
        append = _to_stdout if output is None else stack.enter_context(line_file(output, self._size))

        def to_people(task: Task, outcome: Outcome) -> None:
            assert for_people is not None
            for_people.print(Text(f"\n{in_one_line(task.item.summary, for_people.width)}", style="bold"))
            show(for_people, outcome)

        def to_programs(task: Task, outcome: Outcome) -> None:
            texts = self._rejected_texts.pop(task.number, [])
            if len(outcome.texts) >= task.texts:  # otherwise the line of before, which has more texts, stays
                again = {} if task.retried is None else {AGAIN: task.retried + 1}
                settings = {**self._request.settings_of(task.item), **again}
                rejected = texts if self._options.keep_rejected else None
                append(to_bytes(record_of(task.item.fields, outcome, settings, task.number, rejected)))

        return to_people if for_people else to_programs

    def _progress(self) -> Progress:
        return Progress(self.done, self._kept, self.short, self._all_started)


@contextmanager
def state_in_errors(state: Callable[[], str], done: Callable[[], int]) -> Iterator[None]:
    """End an interruption or an error with a message about the progress, unless nothing was done before an error."""
    try:
        with interruptible(state):
            yield
    except OSError as error:
        raise typer.Exit(fail(f"{describe_os_error(error)}; {state()}", 1)) from None
    except GuardwrapError as error:
        message = in_flags(str(error))
        raise typer.Exit(fail(f"{message}; {state()}" if done() else message, 2)) from None


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
        write_to_stderr("\n".join([head, *(f"    {line}" for line in lines)]))


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
