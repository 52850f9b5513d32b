"""Regular expressions, lengths and how a text ended; ``TextConstraint``, the base of constraints on one string."""

from __future__ import annotations

import copy
import unicodedata
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import regex

from guardwrap.constraints import regex_analysis
from guardwrap.constraints.base import Constraint, about, require, shown
from guardwrap.constraints.escapes import decodings
from guardwrap.constraints.excerpts import excerpt, shortened
from guardwrap.constraints.kinds.count_limits import is_between, limits_in_words, verdict_on_count
from guardwrap.constraints.kinds.text_folding import AS_READ
from guardwrap.constraints.message_monitor import Context, MessageMonitor, Undecided
from guardwrap.constraints.sentence_ends import sentences
from guardwrap.constraints.text_parts import Part, PartMonitor, in_json
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import View, message_part, read_view, settled_parts, view
from guardwrap.constraints.words import count_spaced_words
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
from guardwrap.environment.threads import cached_property
from guardwrap.errors import CheckFailed, Unsatisfiable, is_count, is_number, nearest
from guardwrap.formatting import counted
from guardwrap.outcomes import Draw

Flag = Literal["ignorecase", "multiline", "dotall", "verbose", "ascii", "folded"]
Unit = Literal["characters", "words", "sentences", "lines", "tokens"]


def require_choice(value: object, choices: tuple[str, ...], field_name: str) -> None:
    """Raise ConstraintError, which suggests the nearest choice, unless a value is one of the choices."""
    require(
        value in choices,
        f"{field_name}={value!r} is not one of {', '.join(choices)}{nearest(value, choices)}",
    )


class Fault(NamedTuple):
    """What is wrong with a text, in words that may quote it; the fields of a ``Rejection``."""

    reason: str = ""
    path: str | None = None  # the path of the wrong value in JSON; None for the whole text

    def __str__(self) -> str:
        return self.reason if self.path is None else f"{self.path}: {self.reason}"


class TextConstraint(Constraint):
    """A constraint that judges one string at a time, selected by a view of the draw.

    Every string that the view selects must hold. Subclasses implement ``holds`` and, where it can be sound,
    ``prefix_verdict``. Their time counts towards the limit of ``CHECK_SECONDS`` that all parts of a constraint share
    for one text.
    """

    on: View
    way_out: ClassVar[str] = ""
    """Advice that the error message ends with when a string exceeds the constraint's own time limit."""

    @abstractmethod
    def holds(self, text: str) -> bool:
        """Judge one whole string."""

    def fault(self, text: str) -> str:
        """Return what is wrong with a string that does not hold, in a few words; "" if the title says enough.

        It may quote the string, so show it only to the person who supplied the text. Errors and reports leave it out.
        """
        return ""

    def monitor(self) -> Monitor:
        """Return a monitor; of a part between markers, one that reads only that part."""
        if isinstance(self.on, Part) and self.on.has_markers:
            return PartMonitor(self.on, self._on_completion.monitor(), self.holds)
        return super().monitor()

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return a monitor that reads on from the prompt, or only the part of the message that is judged."""
        part = message_part(self.on)
        if part is not None:
            if context.message is None or in_json(self.on):
                return Undecided()
            regions, before = context.message
            inner = self._on_completion.monitor()
            return MessageMonitor(part=part, regions=regions, holds=self.holds, inner=inner).after(before)
        if not context.whole:
            return Undecided()
        earlier = {"full": context.prompt, "message": context.begun}.get(str(self.on))
        if earlier is None:
            return self.monitor()
        return self._on_completion.monitor().read(earlier)

    @cached_property
    def _on_completion(self) -> Self:
        """The same constraint, for whole texts."""
        whole = copy.copy(self)
        object.__setattr__(whole, "on", "completion")
        whole.__dict__.pop("digest", None)
        return whole

    def fault_at(self, text: str) -> Fault:
        """Return what is wrong with a string, and where, if it is JSON."""
        return Fault(self.fault(text))

    def fault_of(self, draw: Draw) -> Fault:
        """Return what is wrong with a rejected draw: the fault of the first string of its view that does not hold."""
        try:
            with charged(draw):
                texts = view(draw, self.on)
                if texts is None:
                    return Fault(f"has no part {self.on}")
                return next((self.fault_at(text) for text in texts if not self.holds(text)), Fault())
        except TimeLimit:
            return Fault()

    def found_in(self, text: str) -> str:
        """Return what in a string makes it hold, in a few words, for negations; "" if the title says enough.

        It may quote the string, as ``fault`` may.
        """
        return ""

    def match_of(self, draw: Draw) -> str:
        """Return what makes a draw hold that a negation rejects: what is in the first string of its view."""
        try:
            with charged(draw):
                texts = view(draw, self.on)
                if not texts:
                    return f"has no part {self.on}"
                return next(filter(None, map(self.found_in, texts)), "")
        except TimeLimit:
            return ""

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge a prefix of the string that ``holds`` receives when the text is complete."""
        return Verdict.UNDECIDED

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge the strings of each draw's view."""
        return [self._holds(draw) for draw in draws]

    def _holds(self, draw: Draw) -> bool:
        try:
            with charged(draw):
                texts = view(draw, self.on)
                return texts is not None and all(self.holds(text) for text in texts)
        except StepOver:
            raise
        except TimeLimit as limit:
            text = f"one text of {len(draw.text)} characters"
            reason = f"took more than {limit.seconds:g} s on {text}{self.way_out}"
            if limit.shared:
                reason = (
                    f"was running when the {limit.seconds:g} s that all parts together may spend on {text} ran out; "
                    "simplify it, or shorten the texts"
                )
            raise CheckFailed(self.title, reason) from None

    def verdict(self, prefix: str, /) -> Verdict:
        """Judge the strings of the view that can no longer change; VIOLATED as soon as one of them fails."""
        try:
            with time_limit(VERDICT_SECONDS):
                if self.on == "completion":
                    return self.prefix_verdict(prefix)
                if isinstance(self.on, Part) and self.on.has_markers:
                    return self.monitor().read(prefix).verdict
                return self._settled_verdict(prefix)
        except TimeLimit:
            return Verdict.UNDECIDED

    def _settled_verdict(self, prefix: str) -> Verdict:
        parts = settled_parts(prefix, self.on)
        try:
            if not all(self.holds(text) for text in parts):
                return Verdict.VIOLATED
        except CheckFailed:  # the check of the whole text raises it again
            return Verdict.UNDECIDED
        one = self.on.each is None if isinstance(self.on, Part) else self.on.startswith("first_")
        return Verdict.SATISFIED if parts and one and not in_json(self.on) else Verdict.UNDECIDED


@dataclass(frozen=True, eq=False, repr=False)
class Regex(TextConstraint):
    r"""The text matches a regular expression (``regex`` module, version 0 behaviour).

    Parameters
    ----------
    pattern
        The expression.
    match
        ``"search"``: the match may be anywhere; ``"fullmatch"``: it must cover the whole text.
    flags
        Any of ``"ignorecase"``, ``"multiline"``, ``"dotall"``, ``"verbose"``, ``"ascii"``; and ``"folded"``: a match
        also counts in the text without invisible characters and compatible spellings, and with its escapes decoded,
        as ``Keyword`` reads it.
    checksum
        ``"luhn"``: a match counts only if its digits pass the Luhn check (ISO/IEC 7812-1).
    timeout
        Limit in seconds for one match, at most 2 (the limit for all parts of a constraint together on one text). If
        it is exceeded, the check raises CheckFailed.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If the expression or a parameter is invalid.

    Notes
    -----
    A prefix verdict is given where it is sound: SATISFIED for a search whose match no later character can undo,
    VIOLATED for a full match that no text beginning with the prefix can have. A prefix stays UNDECIDED if the
    expression is outside the subset that ``regex_analysis`` understands, or if all parts together take more than
    0.05 s to judge it.

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
        flags: Any = self.flags
        require(isinstance(flags, str | Iterable), f"flags must be a list, not {shown(flags)}")
        flags = (flags,) if isinstance(flags, str) else tuple(flags)
        for flag in flags:
            require_choice(flag, get_args(Flag), "flags")
        object.__setattr__(self, "flags", tuple(sorted(set(flags))))
        require(self.checksum in (None, "luhn"), f"checksum={self.checksum!r} is not luhn")
        require(self.checksum is None or self.match == "search", "checksum requires match='search'")
        in_range = is_number(self.timeout) and 0 < self.timeout <= CHECK_SECONDS
        most = f"{CHECK_SECONDS:g}, the limit for judging one text"
        require(in_range, f"timeout must be seconds above 0, and at most {most}; rewrite an expression that needs more")
        object.__setattr__(self, "timeout", float(self.timeout))
        object.__setattr__(self, "on", read_view(self.on))
        # Compile here, so that an invalid or expensive expression is noticed now and not at the first text.
        with about("pattern"):
            self.compiled, self.extent  # noqa: B018

    @cached_property
    def compiled(self) -> regex.Pattern[str]:
        """The compiled expression."""
        return regex_analysis.compile_pattern(self.pattern, self.engine_flags)

    @property
    def engine_flags(self) -> tuple[Any, ...]:
        """The flags of the expression itself."""
        return tuple(flag for flag in self.flags if flag != "folded")

    @property
    def _folded(self) -> bool:
        return "folded" in self.flags

    @cached_property
    def extent(self) -> regex_analysis.Extent:
        """What is known about matches in a text that is still growing."""
        return regex_analysis.extent(self.pattern, self.engine_flags)

    @property
    def lookahead(self) -> int | None:
        """How many characters after a match can still undo it; None if not known."""
        return self.extent.lookahead

    def found_in(self, text: str) -> str:
        """Return the first match of a search."""
        if self.match == "fullmatch":
            return ""
        candidates = matches(self.compiled, text, most=self.timeout, overlapped=True)
        found = (match.group() for match in candidates if self.checksum is None or luhn(match.group()))
        return f"has {shortened(next(found, '') or excerpt(text, self.holds))}"

    @property
    def reach(self) -> int | None:
        """How many characters from the start of a match decide where it ends; None if not known."""
        return self.extent.reach

    @property
    def consuming(self) -> bool:
        """Whether the expression has no zero-width assertion, so that partial matching is sound."""
        return self.extent.only_consumes

    def spelled_with(self, partial: bytes, /) -> str | None:
        """Return one character of each group that the expression treats alike; None unless ``consuming`` full match."""
        applies = self.match == "fullmatch" and self.consuming and self.on == "completion" and not self._folded
        return regex_analysis.character_kinds(self.pattern, self.engine_flags, partial) if applies else None

    def holds(self, text: str) -> bool:
        """Match one string, or one of its readings."""
        return self._matches(text) or (self._folded and any(map(self._matches, _readings(text))))

    def _matches(self, text: str) -> bool:
        if self.checksum:
            candidates = matches(self.compiled, text, most=self.timeout, overlapped=True)
            return any(luhn(match.group()) for match in candidates)
        return within(getattr(self.compiled, self.match), text, most=self.timeout) is not None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return SATISFIED for a match that cannot be undone, VIOLATED for a prefix that cannot become a full match."""
        if self.match == "fullmatch":
            if self._folded or not self.consuming:
                return Verdict.UNDECIDED
            alive = within(self.compiled.fullmatch, prefix, most=self.timeout, partial=True)
            return Verdict.UNDECIDED if alive else Verdict.VIOLATED
        if self.checksum is None and self.lookahead is not None:
            last = len(prefix) - self.lookahead
            candidates = matches(self.compiled, prefix, most=self.timeout, overlapped=True)
            return Verdict.SATISFIED if any(match.end() <= last for match in candidates) else Verdict.UNDECIDED
        if self.checksum and self.reach is not None:
            # One more digit can make the match longer and its checksum wrong, so the match's end must be settled too.
            last = len(prefix) - self.reach
            candidates = matches(self.compiled, prefix, most=self.timeout, overlapped=True)
            settled = any(match.start() <= last and luhn(match.group()) for match in candidates)
            return Verdict.SATISFIED if settled else Verdict.UNDECIDED
        return Verdict.UNDECIDED


def _readings(text: str) -> Iterator[str]:
    """Yield the decodings of a text, and it and them folded, with composed accents, as expressions are written."""
    for written in (text, *decodings(text)):
        yield written
        if not written.isascii() or not written.isprintable():
            yield unicodedata.normalize("NFC", AS_READ.fold(written))


def luhn(text: str) -> bool:
    """Whether the digits of a text pass the Luhn check (ISO/IEC 7812-1); False without digits."""
    digits = [int(char) for char in text if char.isdecimal()]
    doubled = [d * 2 - 9 * (d > 4) for d in digits[-2::-2]]
    return bool(digits) and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


@dataclass(frozen=True, eq=False, repr=False)
class Length(TextConstraint):
    """The length of the text is between two limits.

    Parameters
    ----------
    min, max
        Limits, inclusive; None means no limit.
    unit
        ``"characters"`` (code points), ``"words"`` (separated by white space; in Chinese and
        Japanese, each Han character, each Hiragana and each run of Katakana), ``"sentences"``, ``"lines"``, or
        ``"tokens"`` (of the attempt, including the end-of-sequence token; only with ``on="completion"``).
    on
        The view of the text that is judged.
    name
        Label in reports.

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
        object.__setattr__(self, "on", read_view(self.on))
        require(self.unit != "tokens" or self.on == "completion", "unit='tokens' requires on='completion'")

    def measure(self, text: str) -> int:
        """Count the units of one string. The count never falls when text is added at the end."""
        if self.unit == "characters":
            return len(text)
        if self.unit == "words":
            return count_spaced_words(text)
        return len(sentences(text) if self.unit == "sentences" else text.splitlines())

    def within(self, count: int) -> bool:
        """Whether a count is between the limits."""
        return is_between(count, self.min, self.max)

    def holds(self, text: str) -> bool:
        """Measure one string."""
        return self.within(self.measure(text))

    def fault(self, text: str) -> str:
        """Return how long the string is, and the limits."""
        if self.unit == "tokens":
            return ""
        return f"has {counted(self.measure(text), self.unit[:-1])}, not {limits_in_words(self.min, self.max)}"

    def found_in(self, text: str) -> str:
        """Return how long the string is."""
        return "" if self.unit == "tokens" else f"has {counted(self.measure(text), self.unit[:-1])}"

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Measure the strings of the view, or count the tokens of the attempt."""
        if self.unit != "tokens":
            return super().check(draws)
        if any(draw.text and not draw.token_ids for draw in draws):
            raise CheckFailed(self.title, "counts tokens, but a plain text has none; use another unit")
        return [self.within(len(draw.token_ids)) for draw in draws]

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return VIOLATED for a prefix that is too long, SATISFIED for one that is long enough if there is no max."""
        if self.unit == "tokens":
            return Verdict.UNDECIDED
        return verdict_on_count(self.measure(prefix), self.min, self.max)

    def excludes(self, other: Constraint) -> str | None:
        """Return why another constraint contradicts this one; None if that is not plain."""
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
        Label in reports.
    """

    name: str | None = field(default=None, kw_only=True)
    kind: Literal["finished"] = field(default="finished", kw_only=True)

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Return whether each attempt ended by itself."""
        return [draw.finished for draw in draws]
