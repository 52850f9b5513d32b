"""Stop strings as OpenAI means them: the text ends before the first one, and so is judged without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.documents.time_limits import check_deadline
from guardwrap.outcomes import Draw

__all__ = ["StopAt", "cut"]


def _end(text: str, stops: Sequence[str]) -> int | None:
    """Return where the stop string begins that is complete first; of those that end together the longest."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def cut(text: str, stops: Sequence[str]) -> str:
    """Return a text without its first stop string and what comes after.

    Parameters
    ----------
    text
        The text as it was drawn.
    stops
        The stop strings, none of them empty.
    """
    return text[: _end(text, stops)]


@dataclass(frozen=True)
class _Reading(Monitor):
    """Hands on what no later character can take away: what may be the beginning of a stop string is held back."""

    inner: Monitor
    stops: tuple[str, ...]
    held: str = ""
    over: bool = False

    @property
    def verdict(self) -> Verdict:
        """Of what was handed on. After a stop string that is the whole text, which its prefix's verdict covers."""
        return self.inner.verdict

    def read(self, text: str, /) -> Monitor:
        """Read on, up to the first stop string."""
        check_deadline()
        if self.over:
            return self
        text = self.held + text
        end = _end(text, self.stops)
        if end is not None:
            return _Reading(self.inner.read(text[:end]), self.stops, over=True)
        longest = min(len(text), max(map(len, self.stops)) - 1)
        begun = (k for k in range(longest, 0, -1) if any(stop.startswith(text[-k:]) for stop in self.stops))
        keep = len(text) - next(begun, 0)
        return _Reading(self.inner.read(text[:keep]), self.stops, text[keep:])


@dataclass(frozen=True, eq=False, repr=False)
class StopAt(Constraint):
    """Another constraint, judged on the text before the first stop string.

    Parameters
    ----------
    of
        The constraint.
    stops
        The stop strings, none of them empty.
    """

    of: Constraint
    stops: tuple[str, ...]
    kind: Literal["until"] = field(default="until", kw_only=True)

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The price of the constraint."""
        return self.of.cost

    @cached_property
    def title(self) -> str:
        """That of the constraint: reports are about what was asked for."""
        return self.of.title

    @property
    def in_memory(self) -> bool:
        """True: no constraint file can spell it."""
        return True

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge the texts that leave."""
        return run_check(self.of, [self._left(draw) for draw in draws])

    def _left(self, draw: Draw) -> Draw:
        text = cut(draw.text, self.stops)
        full = None if draw.full is None else draw.full[: len(draw.full) - len(draw.text) + len(text)]
        return dataclasses.replace(draw, text=text, full=full)

    def verdict(self, prefix: str, /) -> Verdict:
        """Judge what of a prefix is sure to be left."""
        return self.monitor().read(prefix).verdict

    def monitor(self) -> Monitor:
        """Return one that holds back what may begin a stop string."""
        return _Reading(self.of.monitor(), self.stops)
