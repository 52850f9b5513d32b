"""Monitors for constraints that have none of their own, and for those that are made of others."""

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

__all__ = ["Combined", "Negated", "Rereading"]


def _once(monitor: Monitor, ask: Callable[[], Verdict]) -> Verdict:
    """Return a monitor's verdict, asked for once.

    No ``cached_property``: until Python 3.12 that holds a lock of all monitors meanwhile, so that a function of one
    request that hangs would hang the others.
    """
    kept = vars(monitor)
    if "_verdict" not in kept:
        kept["_verdict"] = ask()
    verdict: Verdict = kept["_verdict"]
    return verdict


@dataclass(frozen=True)
class Rereading(Monitor):
    """Judges the whole prefix anew for each piece.

    Parameters
    ----------
    constraint
        Whose verdicts it gives.
    prefix
        What it has read.
    """

    constraint: Constraint
    prefix: str = ""

    @property
    def verdict(self) -> Verdict:
        """That of the prefix."""
        return _once(self, lambda: run_verdict(self.constraint, self.prefix))

    def read(self, text: str, /) -> Monitor:
        """Return one of a longer prefix."""
        decided = self.prefix and self.verdict is not Verdict.UNDECIDED
        return self if decided else Rereading(self.constraint, self.prefix + text)

    def may_begin(self, partial: bytes, /) -> bool:
        """Try one character of each kind, where the constraint names them."""
        if self.may_read_one_of([REPLACEMENT]):
            return True
        possible = self.constraint.spelled_with(partial)
        return super().may_begin(partial) if possible is None else self.may_read_one_of(possible)


@dataclass(frozen=True)
class Combined(Monitor):
    """Monitors side by side: Kleene's conjunction or disjunction of their verdicts.

    Parameters
    ----------
    choose
        ``min`` for a conjunction, ``max`` for a disjunction.
    parts
        The monitors.
    """

    choose: Callable[[Iterable[Verdict]], Verdict]
    parts: Sequence[Monitor]

    @property
    def verdict(self) -> Verdict:
        """The least, or the greatest, of the parts' verdicts."""
        return _once(
            self, lambda: self.choose(part.verdict for part in self.parts) if self.parts else Verdict.UNDECIDED
        )

    def read(self, text: str, /) -> Monitor:
        """Hand the text to each part."""
        if self.verdict is not Verdict.UNDECIDED:
            return self
        read = []
        for part in self.parts:
            check_deadline()
            read.append(part.read(text))
        return Combined(self.choose, tuple(read))

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Ask each part about all candidates at once."""
        if self.verdict is not Verdict.UNDECIDED:
            return [self.verdict] * len(texts)
        each = [part.verdicts(texts) for part in self.parts]
        return [self.choose(column) for column in zip(*each, strict=True)]

    @property
    def key(self) -> Hashable | None:
        """All of the parts' keys."""
        keys = tuple(part.key for part in self.parts)
        return None if None in keys else keys

    def may_begin(self, partial: bytes, /) -> bool:
        """Ask each part, though no one character need be possible for all of them."""
        if self.verdict is not Verdict.UNDECIDED:
            return self.verdict is Verdict.SATISFIED
        answers = (part.may_begin(partial) for part in self.parts)
        return all(answers) if self.choose is min else any(answers)


@dataclass(frozen=True)
class Negated(Monitor):
    """The other way round.

    Parameters
    ----------
    part
        The monitor of what must not hold.
    """

    part: Monitor

    @property
    def verdict(self) -> Verdict:
        """That of the part, negated."""
        return Verdict(-self.part.verdict)

    def read(self, text: str, /) -> Monitor:
        """Hand the text on."""
        return Negated(self.part.read(text))

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Ask the part about all candidates at once."""
        return [Verdict(-verdict) for verdict in self.part.verdicts(texts)]

    @property
    def key(self) -> Hashable | None:
        """That of the part."""
        return self.part.key
