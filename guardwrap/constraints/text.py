"""Constraints on the text itself: regular expressions, keywords, lengths."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import regex

from guardwrap.constraints import patterns
from guardwrap.constraints.base import Constraint, Verdict, is_count, is_number, require
from guardwrap.constraints.views import VIEWS, View, sentences, settled, view
from guardwrap.draws import Draw
from guardwrap.errors import CheckFailed, Unsatisfiable, nearest

__all__ = ["Finished", "Keyword", "Length", "Regex", "TextConstraint"]

# A verdict is asked for at every token, so it may take less time than the check at the end.
_PREFIX_SECONDS = 0.05
_MAX_SECONDS = 86_400

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
    """

    on: View

    @abstractmethod
    def holds(self, text: str) -> bool:
        """Judge one whole string."""

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge a prefix of the string that ``holds`` will see."""
        return Verdict.UNDECIDED

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge the view of each draw."""
        return [all(self.holds(text) for text in view(draw, self.on)) for draw in draws]

    def verdict(self, prefix: str, /) -> Verdict:
        """Judge what is settled of the view; VIOLATED as soon as one settled part fails."""
        if self.on == "completion":
            return self.prefix_verdict(prefix)
        parts = settled(prefix, self.on)
        try:
            if not all(self.holds(text) for text in parts):
                return Verdict.VIOLATED
        except CheckFailed:  # too slow to tell now; the final check will say so
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
        Seconds that one match may take. Beyond them the check raises CheckFailed.
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
    UNDECIDED, and so does a prefix that takes more than 0.05 s to judge.

    Examples
    --------
    >>> Regex(r"\d{3}-\d{4}").accepts("call 555-1234")
    True
    """

    pattern: str
    match: Literal["search", "fullmatch"] = field(default="search", kw_only=True)
    flags: tuple[Flag, ...] = field(default=(), kw_only=True)
    checksum: Literal["luhn"] | None = field(default=None, kw_only=True)
    timeout: float = field(default=1.0, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["regex"] = field(default="regex", kw_only=True)

    def __post_init__(self) -> None:
        require(isinstance(self.pattern, str), f"pattern must be a string, not {type(self.pattern).__name__}")
        require_choice(self.match, ("search", "fullmatch"), "match")
        given: Any = self.flags
        require(isinstance(given, str | Iterable), f"flags must be a list, not {type(given).__name__}")
        flags = (given,) if isinstance(given, str) else tuple(given)
        for flag in flags:
            require_choice(flag, get_args(Flag), "flags")
        object.__setattr__(self, "flags", tuple(sorted(set(flags))))
        require(self.checksum in (None, "luhn"), f"checksum={self.checksum!r} is not luhn")
        require(self.checksum is None or self.match == "search", "checksum goes with match='search' only")
        in_range = is_number(self.timeout) and 0 < self.timeout <= _MAX_SECONDS
        require(in_range, "timeout must be seconds above 0, and at most a day")
        object.__setattr__(self, "timeout", float(self.timeout))
        require_choice(self.on, VIEWS, "on")
        self.compiled  # noqa: B018  # an invalid expression is reported here, not at the first text

    @cached_property
    def compiled(self) -> regex.Pattern[str]:
        """The compiled expression."""
        return patterns.compile_pattern(self.pattern, self.flags)

    @cached_property
    def lookahead(self) -> int | None:
        """How many characters beyond a match can decide about it; None where that is not known."""
        return patterns.lookahead(self.pattern, self.flags)

    @cached_property
    def reach(self) -> int | None:
        """How many characters from the start of a match decide about its extent; None where that is not known."""
        width = patterns.widest(self.pattern, self.flags)
        return None if width is None or self.lookahead is None else width + self.lookahead

    @cached_property
    def consuming(self) -> bool:
        """Whether the expression only consumes characters, so that partial matching is sound."""
        return patterns.only_consumes(self.pattern, self.flags)

    def holds(self, text: str) -> bool:
        """Match one string."""
        try:
            if self.checksum:
                matches = self.compiled.finditer(text, overlapped=True, timeout=self.timeout)
                return any(luhn(match.group()) for match in matches)
            return getattr(self.compiled, self.match)(text, timeout=self.timeout) is not None
        except TimeoutError:
            raise CheckFailed(
                self.title,
                f"took more than {self.timeout:g} s on one text of {len(text)} characters (catastrophic "
                "backtracking?); rewrite the expression or raise timeout",
            ) from None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Settled match, or dead prefix."""
        seconds = min(self.timeout, _PREFIX_SECONDS)
        try:
            if self.match == "fullmatch":
                dead = self.consuming and not self.compiled.fullmatch(prefix, partial=True, timeout=seconds)
                return Verdict.VIOLATED if dead else Verdict.UNDECIDED
            if self.checksum is None and self.lookahead is not None:
                last = len(prefix) - self.lookahead
                matches = self.compiled.finditer(prefix, overlapped=True, timeout=seconds)
                return Verdict.SATISFIED if any(match.end() <= last for match in matches) else Verdict.UNDECIDED
            if self.checksum and self.reach is not None:
                # One more digit can make the match longer and its checksum wrong, so its extent must be settled too.
                last = len(prefix) - self.reach
                matches = self.compiled.finditer(prefix, overlapped=True, timeout=seconds)
                settled = any(match.start() <= last and luhn(match.group()) for match in matches)
                return Verdict.SATISFIED if settled else Verdict.UNDECIDED
        except TimeoutError:
            pass
        return Verdict.UNDECIDED


def luhn(text: str) -> bool:
    """Whether the digits of a text pass the Luhn check (ISO/IEC 7812-1); False without digits."""
    digits = [int(char) for char in text if char.isdecimal()]
    doubled = [d * 2 - 9 * (d > 4) for d in digits[-2::-2]]
    return bool(digits) and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


@dataclass(frozen=True, eq=False, repr=False)
class Keyword(TextConstraint):
    """Words or phrases that the text must, or must not, contain.

    Parameters
    ----------
    words
        One word or phrase, or several.
    match
        ``"any"``: their occurrences together number at least ``min_count`` and at most ``max_count``;
        ``"all"``: so do the occurrences of each; ``"none"``: none occurs.
    case_sensitive
        Whether case counts.
    whole_words
        Whether an occurrence must not be part of a longer word.
    min_count, max_count
        Limits on the number of non-overlapping occurrences; not with ``"none"``.
    on
        The view of the text that is judged.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.
    Unsatisfiable
        If ``min_count`` exceeds ``max_count``.

    Examples
    --------
    >>> Keyword(["mug", "cup"]).accepts("A Mug of tea")
    True
    """

    words: str | tuple[str, ...]
    match: Literal["any", "all", "none"] = field(default="any", kw_only=True)
    case_sensitive: bool = field(default=False, kw_only=True)
    whole_words: bool = field(default=True, kw_only=True)
    min_count: int = field(default=1, kw_only=True)
    max_count: int | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["keyword"] = field(default="keyword", kw_only=True)

    def __post_init__(self) -> None:
        # Not a set: its order, and with it the digest, would change from one process to the next.
        require(isinstance(self.words, Sequence), f"words must be a list of strings, not {type(self.words).__name__}")
        words = (self.words,) if isinstance(self.words, str) else tuple(self.words)
        require(
            bool(words) and all(isinstance(w, str) and w.strip() for w in words),
            "words must be non-empty strings",
        )
        object.__setattr__(self, "words", words)
        require_choice(self.match, ("any", "all", "none"), "match")
        require(is_count(self.min_count), "min_count must be a whole number of at least 0")
        require(
            self.max_count is None or is_count(self.max_count),
            "max_count must be a whole number of at least 0",
        )
        counted = self.min_count != 1 or self.max_count is not None
        require(not (self.match == "none" and counted), "min_count and max_count do not go with match='none'")
        if self.max_count is not None and self.min_count > self.max_count:
            raise Unsatisfiable(f"min_count={self.min_count} exceeds max_count={self.max_count}")
        require_choice(self.on, VIEWS, "on")

    @cached_property
    def compiled(self) -> tuple[regex.Pattern[str], ...]:
        """One expression for each word; for ``any`` and ``none`` a single one for all of them."""
        flags = regex.VERSION0 | (0 if self.case_sensitive else regex.IGNORECASE)
        edge, end = (r"(?<!\w)", r"(?!\w)") if self.whole_words else ("", "")
        # Longest first: where one word begins another, the longer one is the occurrence.
        words = [regex.escape(word) for word in sorted(self.words, key=len, reverse=True)]
        groups = words if self.match == "all" else ["|".join(words)]
        return tuple(regex.compile(f"{edge}(?:{group}){end}", flags, cache_pattern=False) for group in groups)

    def counts(self, text: str, end: int) -> list[int]:
        """Count the occurrences that end at or before ``end``."""
        return [sum(match.end() <= end for match in pattern.finditer(text)) for pattern in self.compiled]

    def holds(self, text: str) -> bool:
        """Count in one string."""
        counts = self.counts(text, len(text))
        if self.match == "none":
            return not any(counts)
        most = float("inf") if self.max_count is None else self.max_count
        return all(self.min_count <= count <= most for count in counts)

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Occurrences never go away, once the character after a whole word is known."""
        if self.prefixing:
            return Verdict.UNDECIDED
        counts = self.counts(prefix, len(prefix) - (1 if self.whole_words else 0))
        if self.match == "none":
            return Verdict.VIOLATED if any(counts) else Verdict.UNDECIDED
        if self.max_count is not None:
            return Verdict.VIOLATED if max(counts) > self.max_count else Verdict.UNDECIDED
        return Verdict.SATISFIED if min(counts) >= self.min_count else Verdict.UNDECIDED

    @cached_property
    def prefixing(self) -> bool:
        """Whether counts may fall as the text goes on: a longer word swallowing occurrences of shorter ones.

        Presence is never in doubt, so this matters only where occurrences are counted.
        """
        words = list(self.words)
        if not self.case_sensitive:  # to the regex module, I matches i, which matches İ, and ı, which does not match i
            words = [word.replace("İ", "i").replace("ı", "i").casefold() for word in words]
        counted = self.match == "any" and (self.min_count > 1 or self.max_count is not None)
        return counted and any(a != b and a in b for a in words for b in words)

    def excludes(self, other: Constraint) -> str | None:
        """Why another constraint contradicts this one, where that is plain to see."""
        if not isinstance(other, Keyword) or self.on != other.on or other.match != "none":
            return None
        if (self.case_sensitive, self.whole_words) != (
            other.case_sensitive,
            other.whole_words,
        ) or self.min_count < 1:
            return None
        # Equal only where the two are found in the very same texts: not so for I and i (ı matches the first only), and
        # not for ß and ss.
        fold = str if self.case_sensitive else lower_ascii
        needed, banned = {fold(word) for word in self.words}, {fold(word) for word in other.words}
        clash = needed & banned if self.match == "all" else needed if needed <= banned else set()
        return f"{', '.join(sorted(clash))} is both required and banned" if clash and self.match != "none" else None


def lower_ascii(word: str) -> str:
    """Turn A to Z, but for I, into small letters."""
    return "".join(char.lower() if char.isascii() and char != "I" else char for char in word)


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
            require(limit is None or is_count(limit), "min and max must be whole numbers of at least 0")
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
