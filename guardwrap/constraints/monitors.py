"""Monitors for constraints that define none, and for combined constraints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.utf8 import REPLACEMENT
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.documents.time_limits import check_deadline

if TYPE_CHECKING:
    from guardwrap.constraints.base import Constraint


def _once(monitor: Monitor, ask: Callable[[], Verdict]) -> Verdict:
    """Return a monitor's verdict, computed once.

    This is not a ``cached_property``: until Python 3.12 that holds one lock for all monitors, so a user's function
    that hangs in one request would block the others.
    """
    attributes = vars(monitor)
    if "_verdict" not in attributes:
        attributes["_verdict"] = ask()
    verdict: Verdict = attributes["_verdict"]
    return verdict


@dataclass(frozen=True)
class Rereading(Monitor):
    """Monitor that judges the whole prefix again for each piece."""

    constraint: Constraint  # the constraint that judges
    prefix: str = ""  # the text read so far

    @property
    def verdict(self) -> Verdict:
        """The constraint's verdict on the prefix."""
        return _once(self, lambda: run_verdict(self.constraint, self.prefix))

    def read(self, text: str, /) -> Monitor:
        """Return the monitor of the longer prefix, or this one if its verdict is final."""
        decided = self.prefix and self.verdict is not Verdict.UNDECIDED
        return self if decided else Rereading(self.constraint, self.prefix + text)

    def may_begin(self, partial: bytes, /) -> bool:
        """Try one character of each group that the constraint treats alike, if it names the groups."""
        if self.may_read_one_of([REPLACEMENT]):
            return True
        possible = self.constraint.spelled_with(partial)
        return super().may_begin(partial) if possible is None else self.may_read_one_of(possible)


@dataclass(frozen=True)
class Combined(Monitor):
    """Monitor of several parts: Kleene's conjunction or disjunction of their verdicts."""

    choose: Callable[[Iterable[Verdict]], Verdict]  # ``min`` for a conjunction, ``max`` for a disjunction
    parts: Sequence[Monitor]  # the monitors

    @property
    def verdict(self) -> Verdict:
        """The minimum (conjunction) or maximum (disjunction) of the parts' verdicts."""
        return _once(
            self, lambda: self.choose(part.verdict for part in self.parts) if self.parts else Verdict.UNDECIDED
        )

    def read(self, text: str, /) -> Monitor:
        """Let each part read the text."""
        if self.verdict is not Verdict.UNDECIDED:
            return self
        read = []
        for part in self.parts:
            check_deadline()
            read.append(part.read(text))
        return Combined(self.choose, tuple(read))

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Return the combined verdict after each candidate; each part judges all of them in one call."""
        if self.verdict is not Verdict.UNDECIDED:
            return [self.verdict] * len(texts)
        each = [part.verdicts(texts) for part in self.parts]
        return [self.choose(column) for column in zip(*each, strict=True)]

    @property
    def violated_at(self) -> str | None:
        """The place of the first part of a conjunction that is violated."""
        if self.choose is not min:
            return None
        places = (part.violated_at for part in self.parts if part.verdict is Verdict.VIOLATED)
        return next(places, None)

    @property
    def key(self) -> Hashable | None:
        """The keys of all parts; None if one of them has none."""
        keys = tuple(part.key for part in self.parts)
        return None if None in keys else keys

    def may_begin(self, partial: bytes, /) -> bool:
        """Combine the parts' answers. For a conjunction this may be True though no one character suits all parts."""
        if self.verdict is not Verdict.UNDECIDED:
            return self.verdict is Verdict.SATISFIED
        answers = (part.may_begin(partial) for part in self.parts)
        return all(answers) if self.choose is min else any(answers)


@dataclass(frozen=True)
class Negated(Monitor):
    """Monitor of a negated constraint."""

    part: Monitor  # the monitor of the constraint that must not hold

    @property
    def verdict(self) -> Verdict:
        """The part's verdict, negated."""
        return Verdict(-self.part.verdict)

    def read(self, text: str, /) -> Monitor:
        """Let the part read the text."""
        return Negated(self.part.read(text))

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Return the part's verdicts on the candidates, negated."""
        return [Verdict(-verdict) for verdict in self.part.verdicts(texts)]

    @property
    def key(self) -> Hashable | None:
        """The part's key."""
        return self.part.key
