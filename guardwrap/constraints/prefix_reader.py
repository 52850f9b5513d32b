"""Reads a growing text with the monitors of all parts of a constraint, within one time limit."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import Combined, guarded_call
from guardwrap.constraints.verdicts import READ_ALWAYS, Context, Monitor, Verdict
from guardwrap.errors import CheckFailed
from guardwrap.support.time_limits import VERDICT_SECONDS, OutOfTime, call_apart, now, step_is_over, time_limit

PATIENCE = 2
"""How many times a part may exceed the limit before it can be dropped."""
RARELY = 50
"""A part that exceeds the limit in at most one of so many readings is kept."""
READ_AGAIN = 32
"""A text longer than ``READ_ALWAYS`` is read again, by monitors that have to, when it has grown by a 32nd.

So what is read grows with the length of a text and not with its square, and an attempt that fails ends up to a 32nd
later. At 4 000 tokens, ``Order`` took 14 ms for each one, and takes 0.14 ms (``benchmarks/long_texts.py``).
"""
MASK_SECONDS = 2.0
"""Limit in seconds for the verdicts on all candidates for one token, of which there may be a thousand."""


@dataclass(frozen=True, slots=True)
class ReadPrefix:
    """A text that has been read, with the monitor of each part."""

    text: str  # the text so far
    # For each part, its monitor and the number of characters that this monitor has read. A part that was too slow has
    # read less than the whole text.
    monitors: tuple[tuple[Monitor, int], ...]
    blame: str | None = None  # title of the first part that no continuation can satisfy, or None
    # where in the text that part is violated, without generated text; None if that is not known
    place: str | None = None
    # title of the first part whose verdict is not SATISFIED; None if every continuation satisfies all parts
    undecided: str | None = None


class PrefixReader:
    """Reads texts for a constraint.

    ``constraint``: the constraint. Its parts judge in order, and share the time limit of one verdict
    (``VERDICT_SECONDS``).

    ``slow``: indices of the parts that are no longer asked, because they were too slow. A part is dropped in two
    cases: it took the most time of all parts when the limit was exceeded, more than ``PATIENCE`` times and in more
    than one of ``RARELY`` readings; or it did so for the verdicts on candidates (``MASK_SECONDS``) more than
    ``PATIENCE`` times. A single slow reading does not count against a part: it may be Python's garbage collector.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self._parts = constraint.parts
        self.slow: set[int] = set()
        self._asked = 0
        self._late: Counter[int] = Counter()
        self._masks_late: Counter[int] = Counter()
        self.start: ReadPrefix = self._begun(tuple((part.monitor(), 0) for part in constraint.parts))

    def after(self, context: Context) -> PrefixReader:
        """Return a reader of texts that follow a prompt. Both readers drop the parts that are too slow for either."""
        reader = copy.copy(self)
        reader.start = self._begun(tuple((part.monitor_in(context), 0) for part in self._parts))
        return reader

    def _begun(self, monitors: tuple[tuple[Monitor, int], ...]) -> ReadPrefix:
        return ReadPrefix("", monitors, undecided=self._parts[0].title)

    def read(self, before: ReadPrefix, text: str) -> ReadPrefix:
        """Read the rest of a text, part of which has been read."""
        before = before if text.startswith(before.text) else self.start
        if before.blame is not None:
            return replace(before, text=text)
        monitors, blame, place = list(before.monitors), None, None
        took: dict[int, float] = {}
        satisfied: set[int] = set()
        with time_limit(VERDICT_SECONDS) as clock:
            for number, part in enumerate(self._parts):
                if number in self.slow:
                    continue
                left = clock.end - now()
                monitor, done = monitors[number]
                if monitor.rereads and len(text) > READ_ALWAYS and (len(text) - done) * READ_AGAIN < len(text):
                    read: Monitor | None = monitor
                    verdict = monitor.verdict
                else:
                    read, verdict = _read(part, monitor, text[done:])
                    took[number] = left - (clock.end - now())
                    if read is not None:
                        monitors[number] = (read, len(text))
                if verdict is Verdict.SATISFIED:
                    satisfied.add(number)
                if verdict is Verdict.VIOLATED:
                    blame, place = part.title, getattr(read, "violated_at", None)
                    break
                if clock.late:
                    break
        self._asked += 1
        if blame is None and took and clock.late and not step_is_over():
            slowest = max(took, key=took.__getitem__)
            self._late[slowest] += 1
            if self._late[slowest] > PATIENCE and self._late[slowest] * RARELY > self._asked:
                self.slow.add(slowest)
        undecided = next((part.title for number, part in enumerate(self._parts) if number not in satisfied), None)
        return ReadPrefix(text, tuple(monitors), blame, place, undecided)

    def monitor(self, before: ReadPrefix) -> Monitor:
        """Return one monitor for all parts that are not in ``slow``, after the text that has been read."""
        asked = [read for number, read in enumerate(before.monitors) if number not in self.slow]
        parts = [monitor.read(behind) if (behind := before.text[done:]) else monitor for monitor, done in asked]
        return parts[0] if len(parts) == 1 else Combined(min, tuple(parts))

    def violated(self, before: ReadPrefix, texts: Sequence[str]) -> list[bool]:
        """Return, for each candidate, whether the text plus that candidate can no longer satisfy the constraint."""
        if before.blame is not None:
            return [True] * len(texts)
        violated = [False] * len(texts)
        took: dict[int, float] = {}
        with time_limit(min(MASK_SECONDS, VERDICT_SECONDS * len(texts))) as clock:
            for number, part in enumerate(self._parts):
                left = [i for i, is_violated in enumerate(violated) if not is_violated]
                if number in self.slow or not left:
                    continue
                monitor, done = before.monitors[number]
                behind = before.text[done:]
                began = clock.end - now()
                verdicts = _verdicts(part, monitor, [behind + texts[i] for i in left])
                took[number] = began - (clock.end - now())
                for i, verdict in zip(left, verdicts, strict=True):
                    violated[i] = verdict is Verdict.VIOLATED
            over = now() >= clock.end
        if over and took and not step_is_over():
            slowest = max(took, key=took.__getitem__)
            self._masks_late[slowest] += 1
            if self._masks_late[slowest] > PATIENCE:
                self.slow.add(slowest)
        return violated


def _read(part: Constraint, monitor: Monitor, text: str) -> tuple[Monitor | None, Verdict]:
    """Return the monitor and its verdict; None and UNDECIDED if the time limit is exceeded."""

    def ask() -> tuple[Monitor, Verdict]:
        with time_limit(VERDICT_SECONDS):
            read = monitor.read(text)
            return read, read.verdict

    with guarded_call(part):
        try:
            read, verdict = ask() if part.interruptible else call_apart(ask, part)
        except OutOfTime:
            return None, Verdict.UNDECIDED
    if not isinstance(verdict, Verdict):
        raise CheckFailed(part.title, f"returned {type(verdict).__name__} instead of Verdict")
    return read, verdict


def _verdicts(part: Constraint, monitor: Monitor, texts: Sequence[str]) -> list[Verdict]:
    with guarded_call(part):
        try:
            if part.interruptible:
                return monitor.verdicts(texts)
            return call_apart(lambda: monitor.verdicts(texts), part)
        except OutOfTime:
            return [Verdict.UNDECIDED] * len(texts)
