"""Constraints on the text itself: regular expressions, lengths, and how it ended."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import regex

from guardwrap.constraints.base import Constraint, about, require, shown
from guardwrap.constraints.kinds import regex_analysis
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import VIEWS, View, sentences, settled_parts, view
from guardwrap.documents.time_limits import (
    CHECK_SECONDS,
    VERDICT_SECONDS,
    StepOver,
    TimeLimit,
    charged,
    matches,
    time_limit,
    within,
)
from guardwrap.errors import CheckFailed, Unsatisfiable, is_count, is_number, nearest
from guardwrap.formatting import counted
from guardwrap.outcomes import Draw

__all__ = ["Finished", "Length", "Regex", "TextConstraint"]

Flag = Literal["ignorecase", "multiline", "dotall", "verbose", "ascii"]
Unit = Literal["characters", "words", "sentences", "lines", "tokens"]


def require_choice(value: object, choices: tuple[str, ...], field_name: str) -> None:
    """Raise ConstraintError, with the nearest valid spelling, unless a value is one of the choices."""
    require(
        value in choices,
        f"{field_name}={value!r} is not one of {', '.join(choices)}{nearest(value, choices)}",
    )


class TextConstraint(Constraint):
    """A constraint that judges one string at a time, through a view of the draw.

    Every part that the view yields must hold. Subclasses give ``holds`` and, where it can be sound, ``prefix_verdict``.
    What these take counts towards the seconds that all parts of a constraint together may spend on one text.
    """

    on: View
    way_out: ClassVar[str] = ""
    """What to do where something exceeds a limit of its own."""

    @abstractmethod
    def holds(self, text: str) -> bool:
        """Judge one whole string."""

    def fault(self, text: str) -> str:
        """Say what is wrong with a string that does not hold, in a few words; "" where the title says it all.

        It may quote the string: so it is for whoever gave the text, and no error or report has it.
        """
        return ""

    def fault_of(self, draw: Draw) -> str:
        """Say what is wrong with a draw that was rejected: with the first part of its view that does not hold."""
        try:
            with charged(draw):
                return next((self.fault(text) for text in view(draw, self.on) if not self.holds(text)), "")
        except TimeLimit:
            return ""

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge a prefix of the string that ``holds`` will see."""
        return Verdict.UNDECIDED

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge the view of each draw."""
        return [self._holds(draw) for draw in draws]

    def _holds(self, draw: Draw) -> bool:
        try:
            with charged(draw):
                return all(self.holds(text) for text in view(draw, self.on))
        except StepOver:
            raise
        except TimeLimit as limit:
            text = f"one text of {len(draw.text)} characters"
            reason = f"took more than {limit.seconds:g} s on {text}{self.way_out}"
            if limit.shared:
                reason = (
                    f"was at work when the {limit.seconds:g} s that all parts together may take on {text} were over; "
                    "make it simpler, or the texts shorter"
                )
            raise CheckFailed(self.title, reason) from None

    def verdict(self, prefix: str, /) -> Verdict:
        """Judge what is settled of the view; VIOLATED as soon as one settled part fails."""
        try:
            with time_limit(VERDICT_SECONDS):
                return self.prefix_verdict(prefix) if self.on == "completion" else self._settled_verdict(prefix)
        except TimeLimit:
            return Verdict.UNDECIDED

    def _settled_verdict(self, prefix: str) -> Verdict:
        parts = settled_parts(prefix, self.on)
        try:
            if not all(self.holds(text) for text in parts):
                return Verdict.VIOLATED
        except CheckFailed:  # the final check will say so
            return Verdict.UNDECIDED
        return Verdict.SATISFIED if parts and self.on == "first_sentence" else Verdict.UNDECIDED


@dataclass(frozen=True, eq=False, repr=False)
class Regex(TextConstraint):
    r"""The text matches a regular expression (``regex`` module, version 0 behaviour).

    Parameters
    ----------
    pattern
        The expression.
    match
        ``"search"``: somewhere; ``"fullmatch"``: from end to end.
    flags
        Any of ``"ignorecase"``, ``"multiline"``, ``"dotall"``, ``"verbose"``, ``"ascii"``.
    checksum
        ``"luhn"``: a match counts only if its digits pass the Luhn check (ISO/IEC 7812-1).
    timeout
        Seconds that one match may take, at most 2: all parts of a constraint together have no more for one text.
        Beyond them the check raises CheckFailed.
    on
        The view of the text that is judged.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If the expression or a parameter is invalid.

    Notes
    -----
    Prefix verdicts are given where they are sound: in a search, a match that no later character can undo; in a
    full match, a prefix that begins no match. Expressions outside the subset that ``patterns`` understands stay
    UNDECIDED, and so does a prefix that takes more than 0.05 s to judge, all parts together.

    Examples
    --------
    >>> Regex(r"\d{3}-\d{4}").accepts("call 555-1234")
    True
    """

    pattern: str
    match: Literal["search", "fullmatch"] = field(default="search", kw_only=True)
    flags: Sequence[Flag] = field(default=(), kw_only=True)
    checksum: Literal["luhn"] | None = field(default=None, kw_only=True)
    timeout: float = field(default=1.0, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["regex"] = field(default="regex", kw_only=True)

    way_out = " (catastrophic backtracking?); rewrite the expression or raise timeout"

    def __post_init__(self) -> None:
        require(isinstance(self.pattern, str), f"pattern must be a string, not {shown(self.pattern)}")
        require_choice(self.match, ("search", "fullmatch"), "match")
        given: Any = self.flags
        require(isinstance(given, str | Iterable), f"flags must be a list, not {shown(given)}")
        flags = (given,) if isinstance(given, str) else tuple(given)
        for flag in flags:
            require_choice(flag, get_args(Flag), "flags")
        object.__setattr__(self, "flags", tuple(sorted(set(flags))))
        require(self.checksum in (None, "luhn"), f"checksum={self.checksum!r} is not luhn")
        require(self.checksum is None or self.match == "search", "checksum goes with match='search' only")
        in_range = is_number(self.timeout) and 0 < self.timeout <= CHECK_SECONDS
        most = f"{CHECK_SECONDS:g}, which is what judging one text may take"
        require(in_range, f"timeout must be seconds above 0, and at most {most}; rewrite an expression that needs more")
        object.__setattr__(self, "timeout", float(self.timeout))
        require_choice(self.on, VIEWS, "on")
        # An invalid expression is reported here, not at the first text, and what takes time is done here.
        with about("pattern"):
            self.compiled, self.extent  # noqa: B018

    @cached_property
    def compiled(self) -> regex.Pattern[str]:
        """The compiled expression."""
        return regex_analysis.compile_pattern(self.pattern, self.flags)

    @cached_property
    def extent(self) -> regex_analysis.Extent:
        """What is known of its matches in texts that go on."""
        return regex_analysis.extent(self.pattern, self.flags)

    @property
    def lookahead(self) -> int | None:
        """How many characters beyond a match can decide about it; None where that is not known."""
        return self.extent.lookahead

    @property
    def reach(self) -> int | None:
        """How many characters from the start of a match decide about its extent; None where that is not known."""
        widest, lookahead = self.extent.widest, self.lookahead
        return None if widest is None or lookahead is None else widest + lookahead

    @property
    def consuming(self) -> bool:
        """Whether the expression only consumes characters, so that partial matching is sound."""
        return self.extent.only_consumes

    def spelled_with(self, partial: bytes, /) -> str | None:
        """Return one character of each kind that the expression tells apart, in a full match that only consumes."""
        known = self.match == "fullmatch" and self.consuming and self.on == "completion"
        return regex_analysis.character_kinds(self.pattern, tuple(self.flags), partial) if known else None

    def holds(self, text: str) -> bool:
        """Match one string."""
        if self.checksum:
            found = matches(self.compiled, text, most=self.timeout, overlapped=True)
            return any(luhn(match.group()) for match in found)
        return within(getattr(self.compiled, self.match), text, most=self.timeout) is not None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Settled match, or dead prefix."""
        if self.match == "fullmatch":
            dead = self.consuming and not within(self.compiled.fullmatch, prefix, most=self.timeout, partial=True)
            return Verdict.VIOLATED if dead else Verdict.UNDECIDED
        if self.checksum is None and self.lookahead is not None:
            last = len(prefix) - self.lookahead
            found = matches(self.compiled, prefix, most=self.timeout, overlapped=True)
            return Verdict.SATISFIED if any(match.end() <= last for match in found) else Verdict.UNDECIDED
        if self.checksum and self.reach is not None:
            # One more digit can make the match longer and its checksum wrong, so its extent must be settled too.
            last = len(prefix) - self.reach
            found = matches(self.compiled, prefix, most=self.timeout, overlapped=True)
            settled = any(match.start() <= last and luhn(match.group()) for match in found)
            return Verdict.SATISFIED if settled else Verdict.UNDECIDED
        return Verdict.UNDECIDED


def luhn(text: str) -> bool:
    """Whether the digits of a text pass the Luhn check (ISO/IEC 7812-1); False without digits."""
    digits = [int(char) for char in text if char.isdecimal()]
    doubled = [d * 2 - 9 * (d > 4) for d in digits[-2::-2]]
    return bool(digits) and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


@dataclass(frozen=True, eq=False, repr=False)
class Length(TextConstraint):
    """The text is neither shorter nor longer than given.

    Parameters
    ----------
    min, max
        Limits, inclusive; None is no limit.
    unit
        ``"characters"`` (code points), ``"words"`` (separated by white space), ``"sentences"``, ``"lines"``, or
        ``"tokens"`` (of the attempt, the end-of-sequence token included; on the completion only).
    on
        The view of the text that is judged.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.
    Unsatisfiable
        If ``min`` exceeds ``max``.
    """

    min: int | None = field(default=None, kw_only=True)
    max: int | None = field(default=None, kw_only=True)
    unit: Unit = field(default="characters", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["length"] = field(default="length", kw_only=True)

    def __post_init__(self) -> None:
        for limit in (self.min, self.max):
            require(limit is None or is_count(limit), f"limit {shown(limit)}: give a whole number of at least 0")
        require(self.min is not None or self.max is not None, "Length needs min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise Unsatisfiable(f"Length min={self.min} exceeds max={self.max}")
        require_choice(self.unit, get_args(Unit), "unit")
        require_choice(self.on, VIEWS, "on")
        require(self.unit != "tokens" or self.on == "completion", "unit='tokens' goes with on='completion' only")

    def measure(self, text: str) -> int:
        """Count the units of one string. Never falls as the string goes on."""
        if self.unit == "characters":
            return len(text)
        if self.unit == "words":
            return len(text.split())
        return len(sentences(text) if self.unit == "sentences" else text.splitlines())

    def within(self, count: int) -> bool:
        """Whether a count is between the limits."""
        return (self.min is None or count >= self.min) and (self.max is None or count <= self.max)

    def holds(self, text: str) -> bool:
        """Measure one string."""
        return self.within(self.measure(text))

    def fault(self, text: str) -> str:
        """Say how long it is, and how long it may be."""
        if self.unit == "tokens":
            return ""
        limits = [f"at {word} {most}" for word, most in (("least", self.min), ("most", self.max)) if most is not None]
        return f"has {counted(self.measure(text), self.unit[:-1])}, not {' and '.join(limits)}"

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Measure the view, or the tokens of the attempt."""
        if self.unit != "tokens":
            return super().check(draws)
        if any(draw.text and not draw.token_ids for draw in draws):
            raise CheckFailed(self.title, "counts tokens, and a plain text has none; judge it in another unit")
        return [self.within(len(draw.token_ids)) for draw in draws]

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Too long stays too long; long enough stays long enough."""
        if self.unit == "tokens":
            return Verdict.UNDECIDED
        count = self.measure(prefix)
        if self.max is not None:
            return Verdict.VIOLATED if count > self.max else Verdict.UNDECIDED
        return Verdict.SATISFIED if self.within(count) else Verdict.UNDECIDED

    def excludes(self, other: Constraint) -> str | None:
        """Why another constraint contradicts this one, where that is plain to see."""
        if not isinstance(other, Length) or (self.unit, self.on) != (other.unit, other.on):
            return None
        if self.min is not None and other.max is not None and self.min > other.max:
            return f"at least {self.min} and at most {other.max} {self.unit}"
        return None


@dataclass(frozen=True, eq=False, repr=False)
class Finished(Constraint):
    """The attempt ended by itself (end-of-sequence token or stop string), not at the token limit.

    Parameters
    ----------
    name
        What reports call it.
    """

    name: str | None = field(default=None, kw_only=True)
    kind: Literal["finished"] = field(default="finished", kw_only=True)

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Look at how the attempts ended."""
        return [draw.finished for draw in draws]
