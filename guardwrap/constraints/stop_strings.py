"""Stop strings with OpenAI's meaning: a text ends before the first one, and is checked without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from guardwrap.constraints.base import All, Constraint, Wrapper, walk
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.verdicts import Context, Monitor, Verdict
from guardwrap.constraints.views import begun_length
from guardwrap.outcomes import Draw
from guardwrap.support.time_limits import check_deadline


def _end(text: str, stops: Sequence[str], begin: int = 0) -> int | None:
    """Return the start of the stop string that ends first (the longest one, if several end there), or None."""
    matches = [(at + len(stop), at) for stop in stops if (at := text.find(stop, begin)) >= 0]
    return min(matches)[1] if matches else None


def cut(text: str, stops: Sequence[str]) -> str:
    """Return a text up to its first stop string."""
    return text[: _end(text, stops)]


@dataclass
class GrowingCut:
    """A text that grows, cut at its first stop string: what of it is certain to remain."""

    stops: tuple[str, ...]  # Non-empty stop strings
    text: str = ""  # the text so far
    settled: int = 0  # number of its characters that are certain to remain

    def read(self, piece: str) -> str:
        """Add a piece, and return the characters that have become certain to remain."""
        self.text += piece
        end = _end(self.text, self.stops, self.settled)
        if end is None:
            end = len(self.text) - (begun_length(self.text, self.stops) if self.stops else 0)
        before, self.settled = self.settled, end
        return self.text[before:end]


@dataclass(frozen=True)
class _Reading(Monitor):
    """Monitor that forwards text to another one, and holds back what may be the beginning of a stop string."""

    inner: Monitor
    stops: tuple[str, ...]
    held: str = ""
    over: bool = False

    @property
    def verdict(self) -> Verdict:
        return self.inner.verdict

    @property
    def rereads(self) -> bool:
        return self.inner.rereads

    def read(self, text: str, /) -> Monitor:
        check_deadline()
        if self.over:
            return self
        text = self.held + text
        end = _end(text, self.stops)
        if end is not None:
            return _Reading(self.inner.read(text[:end]), self.stops, over=True)
        keep = len(text) - begun_length(text, self.stops)
        return _Reading(self.inner.read(text[:keep]), self.stops, text[keep:])


@dataclass(frozen=True, eq=False, repr=False)
class StopAt(Wrapper):
    """A constraint that applies another one to the text before the first stop string."""

    of: Constraint  # the constraint to apply
    stops: tuple[str, ...]  # Non-empty stop strings
    kind: Literal["until"] = field(default="until", kw_only=True)

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        return run_check(self.of, [self._left(draw) for draw in draws])

    def _left(self, draw: Draw) -> Draw:
        if draw.message is not None:
            return draw  # it was parsed without what follows a stop string
        text = cut(draw.text, self.stops)
        full = None if draw.full is None else draw.full[: len(draw.full) - len(draw.text) + len(text)]
        whole = draw.parts == (("answer", (draw.text,)),)  # a fallback
        return dataclasses.replace(draw, text=text, full=full, parts=(("answer", (text,)),) if whole else draw.parts)

    def verdict(self, prefix: str, /) -> Verdict:
        return self.monitor().read(prefix).verdict

    def monitor(self) -> Monitor:
        return _Reading(self.of.monitor(), self.stops)

    def monitor_in(self, context: Context, /) -> Monitor:
        monitor = self.of.monitor_in(context)
        return monitor if context.lines else _Reading(monitor, self.stops)


def stops_of(constraint: Constraint) -> tuple[str, ...]:
    """Return the stop strings before which ``stopped`` ends texts."""
    return next((part.stops for part in walk(constraint) if isinstance(part, StopAt)), ())


def shown(draw: Draw, stops: Sequence[str]) -> str:
    """Return the text of a draw up to its first stop string. Messages were parsed without what follows one."""
    return draw.text if draw.message is not None else cut(draw.text, stops)


def stopped(constraint: Constraint, stops: tuple[str, ...]) -> Constraint:
    """Return a constraint that judges texts before their first stop string, part by part."""
    if not stops:
        return constraint
    parts = [part.wrapped(lambda inner: StopAt(inner, stops)) for part in constraint.parts]
    return parts[0] if len(parts) == 1 else All(tuple(parts))
