"""A growing text read by all parts of a constraint, each with its monitor and all within one time limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import guarded_call
from guardwrap.constraints.monitors import Combined
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.documents.time_limits import VERDICT_SECONDS, TimeLimit, call_apart, now, step_is_over, time_limit
from guardwrap.errors import CheckFailed

__all__ = ["PrefixReader", "ReadPrefix"]

PATIENCE = 2
RARELY = 50
MASK_SECONDS = 2.0
"""Of the verdicts on all candidates of one token: there may be a thousand of them."""


@dataclass(frozen=True, slots=True)
class ReadPrefix:
    """How far a text has been read.

    Parameters
    ----------
    text
        The text so far.
    monitors
        For each part its monitor, and how many characters that has read: one that took too long is behind.
    blame
        Title of the first part that no continuation can satisfy, or None.
    """

    text: str
    monitors: tuple[tuple[Monitor, int], ...]
    blame: str | None = None


class PrefixReader:
    """Reads texts for a constraint.

    Parameters
    ----------
    constraint
        The constraint; its parts are asked in order, and have the time of one verdict together.

    Attributes
    ----------
    slow : set of int
        Numbers of the parts that are not asked any more: those that took most of the time when it ended, more than
        ``PATIENCE`` times and in more than one of ``RARELY``. Once is nothing: Python's collector of garbage may have
        been at work. So are those whose verdicts on candidates took ``MASK_SECONDS`` more than ``PATIENCE`` times.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.slow: set[int] = set()
        self._asked = 0
        self._late: Counter[int] = Counter()
        self._masks_late: Counter[int] = Counter()
        self._parts = constraint.parts
        self.start = ReadPrefix("", tuple((part.monitor(), 0) for part in constraint.parts))

    def read(self, before: ReadPrefix, text: str) -> ReadPrefix:
        """Read on.

        Parameters
        ----------
        before
            How far a text has been read that this one begins with.
        text
            The whole text, from its beginning.
        """
        before = before if text.startswith(before.text) else self.start
        monitors, blame = list(before.monitors), None
        took: dict[int, float] = {}
        with time_limit(VERDICT_SECONDS) as clock:
            for number, part in enumerate(self._parts):
                if number in self.slow:
                    continue
                left = clock.end - now()
                monitor, done = monitors[number]
                read, verdict = _read(part, monitor, text[done:])
                took[number] = left - (clock.end - now())
                if read is not None:
                    monitors[number] = (read, len(text))
                if verdict is Verdict.VIOLATED:
                    blame = part.title
                    break
                if clock.late:
                    break
        self._asked += 1
        if blame is None and clock.late and not step_is_over():
            slowest = max(took, key=took.__getitem__)
            self._late[slowest] += 1
            if self._late[slowest] > PATIENCE and self._late[slowest] * RARELY > self._asked:
                self.slow.add(slowest)
        return ReadPrefix(text, tuple(monitors), blame)

    def monitor(self, before: ReadPrefix) -> Monitor:
        """Return a monitor of all parts that are still asked, after a text that has been read.

        Parameters
        ----------
        before
            How far it has been read.
        """
        asked = [read for number, read in enumerate(before.monitors) if number not in self.slow]
        parts = [monitor.read(behind) if (behind := before.text[done:]) else monitor for monitor, done in asked]
        return parts[0] if len(parts) == 1 else Combined(min, tuple(parts))

    def violated(self, before: ReadPrefix, texts: Sequence[str]) -> list[bool]:
        """Say which texts, if one came next, no continuation could satisfy the constraint after.

        Parameters
        ----------
        before
            How far the text before them has been read.
        texts
            What may come next.
        """
        found = [False] * len(texts)
        took: dict[int, float] = {}
        with time_limit(min(MASK_SECONDS, VERDICT_SECONDS * len(texts))) as clock:
            for number, part in enumerate(self._parts):
                left = [i for i, violated in enumerate(found) if not violated]
                if number in self.slow or not left:
                    continue
                monitor, done = before.monitors[number]
                behind = before.text[done:]
                began = clock.end - now()
                verdicts = _verdicts(part, monitor, [behind + texts[i] for i in left])
                took[number] = began - (clock.end - now())
                for i, verdict in zip(left, verdicts, strict=True):
                    found[i] = verdict is Verdict.VIOLATED
            over = now() >= clock.end
        if over and took and not step_is_over():
            slowest = max(took, key=took.__getitem__)
            self._masks_late[slowest] += 1
            if self._masks_late[slowest] > PATIENCE:
                self.slow.add(slowest)
        return found


def _read(part: Constraint, monitor: Monitor, text: str) -> tuple[Monitor | None, Verdict]:
    """Read within the time limit; None and UNDECIDED where it takes too long."""

    def ask() -> tuple[Monitor, Verdict]:
        with time_limit(VERDICT_SECONDS):
            read = monitor.read(text)
            return read, read.verdict

    with guarded_call(part):
        try:
            read, verdict = ask() if part.interruptible else call_apart(ask, part)
        except TimeLimit:
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
        except TimeLimit:
            return [Verdict.UNDECIDED] * len(texts)
