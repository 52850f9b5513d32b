"""Constraints on how a text is written: in capitals or not, or as exactly one of several texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import regex

from guardwrap.constraints.base import require, shown
from guardwrap.constraints.excerpts import shortened
from guardwrap.constraints.kinds.text import TextConstraint, require_choice
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.limits import count_items
from guardwrap.documents.time_limits import within

_WRONG = {
    "upper": regex.compile(r"[\p{Ll}\p{Lt}]"),
    "lower": regex.compile(r"[\p{Lu}\p{Lt}]"),
    "title": regex.compile(r"(?<![\p{L}\p{M}\p{Nd}_]|[\p{L}\p{M}\p{Nd}_]['’])\p{Ll}"),
}
"""Expressions of a letter in the wrong case, which look at nothing behind it."""
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

    Raises
    ------
    ConstraintError
        If a parameter is invalid.

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
        """Look for a letter of the wrong case in one string."""
        return within(_CASED.search, text) is not None and not self._is_wrong(text)

    def fault(self, text: str) -> str:
        """Return the first word with a letter of the wrong case."""
        wrong = within(_WRONG[self.letters].search, text)
        if wrong is None:
            return "has no letter in upper or lower case"
        word = next(match for match in _WORD.finditer(text) if match.end() >= wrong.end())
        return f"has {shortened(word.group())}"

    def _is_wrong(self, text: str) -> bool:
        return within(_WRONG[self.letters].search, text) is not None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return VIOLATED once a letter of the wrong case has been written."""
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

    Raises
    ------
    ConstraintError
        If a parameter is invalid.

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
        require(isinstance(self.ignore_case, bool), "ignore_case must be true or false")
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "on", read_view(self.on))
        count_items(sum(map(len, self.texts)), "texts have")

    def holds(self, text: str) -> bool:
        """Compare one string."""
        return self._folded(text.strip()) in self._options

    def found_in(self, text: str) -> str:
        """Return the text that it is."""
        return f"is {shortened(text)}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return VIOLATED if none of the texts begins like this."""
        begun = self._folded(prefix.lstrip())
        possible = begun.rstrip() in self._options or any(option.startswith(begun) for option in self._options)
        return Verdict.UNDECIDED if possible else Verdict.VIOLATED

    @cached_property
    def _options(self) -> frozenset[str]:
        return frozenset(map(self._folded, self.texts))

    def _folded(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text
