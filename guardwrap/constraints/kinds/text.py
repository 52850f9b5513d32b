"""Plain constraints on a text: expressions, lengths, letter case, one of several texts, and how it ended."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import regex

from guardwrap.constraints import regex_analysis
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import Resumed
from guardwrap.constraints.escapes import decodings
from guardwrap.constraints.field_checks import (
    about,
    excerpt,
    is_between,
    limits_in_words,
    require,
    require_booleans,
    require_choice,
    require_counts,
    shortened,
    shown,
    verdict_on_count,
)
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.kinds.text_folding import AS_READ
from guardwrap.constraints.sentences import SentenceCount, count_spaced_words, sentences
from guardwrap.constraints.verdicts import TextPattern, Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import CheckFailed, is_number
from guardwrap.outcomes import Draw
from guardwrap.support.formatting import counted
from guardwrap.support.limits import count_items
from guardwrap.support.threads import cached_property
from guardwrap.support.time_limits import (
    CHECK_SECONDS,
    matches,
    within,
)

Flag = Literal["ignorecase", "multiline", "dotall", "verbose", "ascii", "folded"]
Unit = Literal["characters", "words", "sentences", "lines", "tokens"]


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

    def progress(self) -> Sequence[TextPattern] | None:
        whole = self.match == "fullmatch"
        known = self.checksum is None
        return [TextPattern(self.pattern, self.engine_flags, whole, version1=False)] if known else None

    def found_in(self, text: str) -> str:
        if self.match == "fullmatch":
            return ""
        first = next((match.group() for match in self._candidates(text)), "")
        return f"has {shortened(first or excerpt(text, self.holds))}"

    def spelled_with(self, partial: bytes, /) -> str | None:
        """Return one character of each group that a full match without zero-width assertions treats alike."""
        applies = self._fails_early and self.on == "completion"
        return regex_analysis.character_kinds(self.pattern, self.engine_flags, partial) if applies else None

    @property
    def _fails_early(self) -> bool:
        """Whether a failed partial match proves that no text that begins like this matches."""
        return self.match == "fullmatch" and self.extent.only_consumes and not self._folded

    def _candidates(self, text: str) -> Iterator[regex.Match[str]]:
        """Yield the matches of a search, overlapping ones too."""
        candidates = matches(self.compiled, text, most=self.timeout, overlapped=True)
        return (match for match in candidates if self.checksum is None or luhn(match.group()))

    def holds(self, text: str) -> bool:
        """Match one string, or one of its readings."""
        return self._matches(text) or (self._folded and any(map(self._matches, _readings(text))))

    def _matches(self, text: str) -> bool:
        if self.checksum:
            return next(self._candidates(text), None) is not None
        return within(getattr(self.compiled, self.match), text, most=self.timeout) is not None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return SATISFIED for a match that cannot be undone, VIOLATED for a prefix that cannot become a full match."""
        if self.match == "fullmatch":
            alive = not self._fails_early or within(self.compiled.fullmatch, prefix, most=self.timeout, partial=True)
            return Verdict.UNDECIDED if alive else Verdict.VIOLATED
        # One more digit can make a match longer and its checksum wrong, so then its end must be settled too.
        undone_by = self.extent.reach if self.checksum else self.extent.lookahead
        if undone_by is None:
            return Verdict.UNDECIDED
        places = (match.start() if self.checksum else match.end() for match in self._candidates(prefix))
        return Verdict.SATISFIED if any(place <= len(prefix) - undone_by for place in places) else Verdict.UNDECIDED


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
        require(self.min is not None or self.max is not None, "Length needs min, max or both")
        require_counts(self)
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
        return self.within(self.measure(text))

    def fault(self, text: str) -> str:
        if self.unit == "tokens":
            return ""
        return f"has {counted(self.measure(text), self.unit[:-1])}, not {limits_in_words(self.min, self.max)}"

    def found_in(self, text: str) -> str:
        return "" if self.unit == "tokens" else f"has {counted(self.measure(text), self.unit[:-1])}"

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        if self.unit != "tokens":
            return super().check(draws)
        if any(draw.text and not draw.token_ids for draw in draws):
            raise CheckFailed(self.title, "counts tokens, but a plain text has none; use another unit")
        return [self.within(len(draw.token_ids)) for draw in draws]

    def resumed(self, summary: Any, text: str, /) -> Resumed:
        """Return VIOLATED for a prefix that is too long, SATISFIED for one that is long enough if there is no max."""
        if self.unit == "tokens":
            return Resumed(Verdict.UNDECIDED, None, "")
        if self.unit == "sentences":
            summary, rest = (summary or SentenceCount()).grown(text)
            number = summary.number
        else:
            rest = self._last_unit(text)
            summary = (summary or 0) + self.measure(text.removesuffix(rest))
            number = summary + self.measure(rest)
        return Resumed(verdict_on_count(number, self.min, self.max), summary, rest)

    def _last_unit(self, text: str) -> str:
        """Return the end of a text that has to be measured together with what follows."""
        if self.unit == "lines":
            return (text.splitlines(keepends=True) or [""])[-1]  # a line feed may follow a carriage return
        return "" if self.unit == "characters" or text[-1:].isspace() else (text.rsplit(maxsplit=1) or [""])[-1]

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
        return [draw.finished for draw in draws]


_WRONG = {
    "upper": regex.compile(r"[\p{Ll}\p{Lt}]"),
    "lower": regex.compile(r"[\p{Lu}\p{Lt}]"),
    "title": regex.compile(r"(?<![\p{L}\p{M}\p{Nd}_]|[\p{L}\p{M}\p{Nd}_]['’])\p{Ll}"),
}
"""Expressions of a letter in the wrong case, which look at nothing behind it."""
_LETTER = r"[\p{L}\p{M}\p{Nd}_]"
_WRONG_AHEAD = {
    **{letters: wrong.pattern for letters, wrong in _WRONG.items()},
    "title": rf"(?:(?<![\p{{L}}\p{{M}}\p{{Nd}}_'’])|(?<!{_LETTER})['’])\p{{Ll}}",
}
"""The same, looking around by one character at most."""
_WORD = regex.compile(r"\S+")
_CASED = regex.compile(r"[\p{Lu}\p{Ll}\p{Lt}]")


@dataclass(frozen=True, eq=False, repr=False)
class Case(TextConstraint):
    """The letters of the text are in upper case, in lower case, or in title case.

    Letters without case, as in Chinese or Arabic, may always occur. A text without any letter that has case is
    rejected.

    Parameters
    ----------
    letters
        ``"upper"``: no lower case letter; ``"lower"``: no upper case letter; ``"title"``: no word begins with a lower
        case letter.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Examples
    --------
    >>> Case("upper").accepts("TEA AT 5 O'CLOCK")
    True
    """

    letters: Literal["upper", "lower", "title"]
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["case"] = field(default="case", kw_only=True)

    def __post_init__(self) -> None:
        require_choice(self.letters, ("upper", "lower", "title"), "letters")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        return within(_CASED.search, text) is not None and not self._is_wrong(text)

    def progress(self) -> Sequence[TextPattern]:
        return [TextPattern(_CASED.pattern), TextPattern(_WRONG_AHEAD[self.letters], absent=True)]

    def fault(self, text: str) -> str:
        wrong = within(_WRONG[self.letters].search, text)
        if wrong is None:
            return "has no letter in upper or lower case"
        word = next(match for match in _WORD.finditer(text) if match.end() >= wrong.end())
        return f"has {shortened(word.group())}"

    def _is_wrong(self, text: str) -> bool:
        return within(_WRONG[self.letters].search, text) is not None

    def prefix_verdict(self, prefix: str) -> Verdict:
        return Verdict.VIOLATED if self._is_wrong(prefix) else Verdict.UNDECIDED


@dataclass(frozen=True, eq=False, repr=False)
class OneOf(TextConstraint):
    """The text is exactly one of several texts, without the white space around it.

    Parameters
    ----------
    texts
        The texts.
    ignore_case
        Whether upper and lower case are the same.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Examples
    --------
    >>> OneOf(["yes", "no"]).accepts("yes")
    True
    """

    texts: Sequence[str]
    ignore_case: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["one_of"] = field(default="one_of", kw_only=True)

    def __post_init__(self) -> None:
        # A set is rejected: its order, and so the digest, would differ from one process to the next.
        valid = isinstance(self.texts, Sequence) and not isinstance(self.texts, str) and len(self.texts) > 0
        valid = valid and all(isinstance(text, str) and text.strip() == text != "" for text in self.texts)
        require(valid, f"texts must be a list of texts without white space around them, not {shown(self.texts)}")
        require_booleans(self, "ignore_case")
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "on", read_view(self.on))
        count_items(sum(map(len, self.texts)), "texts have")

    def holds(self, text: str) -> bool:
        return self._folded(text.strip()) in self._options

    def found_in(self, text: str) -> str:
        return f"is {shortened(text)}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        begun = self._folded(prefix.lstrip())
        possible = begun.rstrip() in self._options or any(option.startswith(begun) for option in self._options)
        return Verdict.UNDECIDED if possible else Verdict.VIOLATED

    def progress(self) -> Sequence[TextPattern]:
        return [whole_text(self.texts, ignore_case=self.ignore_case)]

    @cached_property
    def _options(self) -> frozenset[str]:
        return frozenset(map(self._folded, self.texts))

    def _folded(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text


def whole_text(*choices: Sequence[str], ignore_case: bool) -> TextPattern:
    """Return the expression of texts that begin with one of the first choices and end with one of the last."""
    space = r"[\s\x1c-\x1f]*"  # as ``str.strip`` removes it
    ends = r"[\s\S]*".join(f"(?:{'|'.join(map(regex.escape, texts))})" for texts in choices)
    return TextPattern(f"{space}{ends}{space}", ("ignorecase",) if ignore_case else (), whole=True)
