"""The ``Keyword`` constraint: words and phrases that the text must, or must not, contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import regex

from guardwrap.constraints.base import Constraint, require, shown
from guardwrap.constraints.kinds.text import TextConstraint, require_choice
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.limits import ITEMS_OF_ANY, MAX_FIXED, MAX_WORD_PAIRS, count_items
from guardwrap.documents.time_limits import matches
from guardwrap.errors import Unsatisfiable, is_count

__all__ = ["Keyword"]


_QUICK = 100_000
"""Characters of all words times characters of the text. A search of this size takes about a millisecond at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Keyword(TextConstraint):
    """Words or phrases that the text must, or must not, contain.

    Parameters
    ----------
    words
        One word or phrase, or several.
    match
        ``"any"``: the words occur at least ``min_count`` and at most ``max_count`` times in total; ``"all"``: each
        word does; ``"none"``: no word occurs.
    case_sensitive
        Whether upper and lower case are different.
    whole_words
        Whether a word counts only if it is not part of a longer one.
    min_count, max_count
        Inclusive limits on the number of non-overlapping occurrences; not with ``"none"``. Without either, at least
        one occurrence is required. With ``max_count`` alone, none is required.
    on
        The view of the text that is judged.
    name
        Label in reports.

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

    words: str | Sequence[str]
    match: Literal["any", "all", "none"] = field(default="any", kw_only=True)
    case_sensitive: bool = field(default=False, kw_only=True)
    whole_words: bool = field(default=True, kw_only=True)
    min_count: int | None = field(default=None, kw_only=True)
    max_count: int | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["keyword"] = field(default="keyword", kw_only=True)

    def __post_init__(self) -> None:
        # A set is rejected: its order, and so the digest, would differ from one process to the next.
        require(isinstance(self.words, Sequence), f"words must be a text or a list of texts, not {shown(self.words)}")
        words = (self.words,) if isinstance(self.words, str) else tuple(self.words)
        require(
            bool(words) and all(isinstance(w, str) and w.strip() for w in words),
            f"words must be texts with at least one character each, not {shown(self.words)}",
        )
        object.__setattr__(self, "words", words)
        require_choice(self.match, ("any", "all", "none"), "match")
        for name in ("min_count", "max_count"):
            limit = getattr(self, name)
            require(limit is None or is_count(limit), f"{name}={shown(limit)}: give a whole number of at least 0")
        if self.min_count == 1 and self.max_count is None:  # the default; one canonical form means one digest
            object.__setattr__(self, "min_count", None)
        counted = self.min_count is not None or self.max_count is not None
        require(not (self.match == "none" and counted), "min_count and max_count cannot be used with match='none'")
        if self.max_count is not None and self.least > self.max_count:
            raise Unsatisfiable(f"min_count={self.min_count} exceeds max_count={self.max_count}")
        object.__setattr__(self, "on", read_view(self.on))
        size = ITEMS_OF_ANY * len(words) if self.match == "all" else 0  # each word becomes an expression
        count_items(sum(map(len, words)) + size, "words have")
        self.compiled  # noqa: B018  # compile now, so that the first text does not wait for it

    @property
    def least(self) -> int:
        """The number of occurrences that are required."""
        return (1 if self.max_count is None else 0) if self.min_count is None else self.min_count

    @cached_property
    def compiled(self) -> tuple[regex.Pattern[str], ...]:
        """For ``"all"`` one expression per word; for ``"any"`` and ``"none"`` one expression for all words."""
        flags = regex.VERSION0 | (0 if self.case_sensitive else regex.IGNORECASE)
        edge, end = (r"(?<!\w)", r"(?!\w)") if self.whole_words else ("", "")
        # Longest first, so that where one word begins another, the longer one is counted.
        words = [_escaped(word) for word in sorted(self.words, key=len, reverse=True)]
        groups = words if self.match == "all" else ["|".join(words)]
        return tuple(regex.compile(f"{edge}(?:{group}){end}", flags, cache_pattern=False) for group in groups)

    def counts(self, text: str, end: int) -> list[int]:
        """Count the occurrences that end at or before ``end``."""
        # A few words in a short text are found in less time than it takes to check the time limit.
        find = matches if self._characters * len(text) > _QUICK else regex.Pattern.finditer
        return [sum(match.end() <= end for match in find(pattern, text)) for pattern in self.compiled]

    @cached_property
    def _characters(self) -> int:
        return sum(map(len, self.words))

    def holds(self, text: str) -> bool:
        """Count the occurrences in one string."""
        counts = self.counts(text, len(text))
        if self.match == "none":
            return not any(counts)
        most = float("inf") if self.max_count is None else self.max_count
        return all(self.least <= count <= most for count in counts)

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge by the occurrences that are certain: a whole word counts once the character after it is known."""
        if self.prefixing:
            return Verdict.UNDECIDED
        counts = self.counts(prefix, len(prefix) - (1 if self.whole_words else 0))
        if self.match == "none":
            return Verdict.VIOLATED if any(counts) else Verdict.UNDECIDED
        if self.max_count is not None:
            return Verdict.VIOLATED if max(counts) > self.max_count else Verdict.UNDECIDED
        return Verdict.SATISFIED if min(counts) >= self.least else Verdict.UNDECIDED

    @cached_property
    def prefixing(self) -> bool:
        """Whether counts may fall when text is added, because a longer word replaces occurrences of shorter ones.

        This matters only where occurrences are counted: that some word occurs stays true.
        """
        counted = self.match == "any" and (self.least > 1 or self.max_count is not None)
        words = list(self.words)
        if counted and len(words) * sum(map(len, words)) > MAX_WORD_PAIRS:
            return True
        if not self.case_sensitive:  # in the regex module, I matches i and ı, and i matches İ, but ı does not match i
            words = [word.replace("İ", "i").replace("ı", "i").casefold() for word in words]
        return counted and any(a != b and a in b for a in words for b in words)

    @cached_property
    def folded(self) -> frozenset[str]:
        """The words in a form that is equal for two words only if they occur in exactly the same texts.

        This keeps apart I and i (ı matches only the first), and ß and ss.
        """
        return frozenset(self.words if self.case_sensitive else map(lower_ascii, self.words))

    def excludes(self, other: Constraint) -> str | None:
        """Return why another constraint contradicts this one; None if that is not plain."""
        if not isinstance(other, Keyword) or self.on != other.on or other.match != "none":
            return None
        if (self.case_sensitive, self.whole_words) != (
            other.case_sensitive,
            other.whole_words,
        ) or self.least < 1:
            return None
        needed, banned = self.folded, other.folded
        clash = needed & banned if self.match == "all" else needed if needed <= banned else frozenset()
        return f"{', '.join(sorted(clash))} is both required and banned" if clash and self.match != "none" else None


def _escaped(word: str) -> str:
    """Return an expression for a word. Long words are split, with an always-true assertion between the pieces.

    ``compile_pattern`` rejects longer runs of fixed characters, because ``regex`` takes cubic time for them.
    """
    step = MAX_FIXED // 2
    return "(?!(?!))".join(regex.escape(word[i : i + step]) for i in range(0, len(word), step))


def lower_ascii(word: str) -> str:
    """Convert A to Z, except I, to lower case."""
    return "".join(char.lower() if char.isascii() and char != "I" else char for char in word)
