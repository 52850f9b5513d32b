"""The ``NumbersFrom`` constraint: every number in the text occurs in a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

import regex

from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import ComparedConstraint
from guardwrap.constraints.quantities.numerals import LOCALES, Numeral, numerals
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.documents.limits import count_items

Ignored = Literal["list_markers", "years"]

_LINE_BEFORE = regex.compile(r"(?m)^[ \t>]*\Z")


@dataclass(frozen=True, eq=False, repr=False)
class NumbersFrom(ComparedConstraint):
    """Every number in the text occurs in a source, or in the prompt. Its value counts: 1,000 is 1000.

    Parameters
    ----------
    source
        A text or several; None for the prompt. The prompt of a chat is the whole conversation as text.
    ignore
        Numbers that need not occur: ``"list_markers"``, such as "1." at the beginning of a line, and ``"years"``, whole
        numbers of four digits from 1900 to 2099.
    locale
        How texts write numbers, as a tag such as ``"de"``.
    source_locale
        How the source writes numbers; None for ``locale``.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid.

    Notes
    -----
    Signs do not count, as "fell by 5 %" may say "-5 %". Numbers in words ("twelve") are not read. A number that the
    locale does not write like this, such as "1.5" in German, occurs only if the source has the same digits. A prefix is
    VIOLATED as soon as it has a number that no continuation changes and that does not occur.

    Examples
    --------
    >>> NumbersFrom("Sales rose from 1,000 to 1250.").accepts("1000 became 1,250.")
    True
    >>> NumbersFrom("Sales rose from 1,000 to 1250.").accepts("They rose by 25%.")
    False
    """

    source: str | Sequence[str] | None = None
    ignore: Sequence[Ignored] = field(default=(), kw_only=True)
    locale: str = field(default="en", kw_only=True)
    source_locale: str | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["numbers_from"] = field(default="numbers_from", kw_only=True)

    def __post_init__(self) -> None:
        sources = self.source
        if sources is not None and not isinstance(sources, str):
            valid = isinstance(sources, Sequence) and sources and all(isinstance(each, str) for each in sources)
            require(bool(valid), f"source must be a text, a list of texts, or None, not {shown(sources)}")
            object.__setattr__(self, "source", tuple(sources))
        require(
            isinstance(self.ignore, list | tuple), f"ignore must be a list such as ['years'], not {shown(self.ignore)}"
        )
        for each in self.ignore:
            require_choice(each, get_args(Ignored), "ignore")
        object.__setattr__(self, "ignore", tuple(dict.fromkeys(self.ignore)))
        require_choice(self.locale, tuple(LOCALES), "locale")
        if self.source_locale is not None:
            require_choice(self.source_locale, tuple(LOCALES), "source_locale")
        object.__setattr__(self, "on", read_view(self.on))
        if self.source is not None:
            count_items(sum(map(len, self.documents)), "the source has")
            self._known  # noqa: B018  # so that the time for reading it is not charged to a text

    @cached_property
    def _known(self) -> frozenset[Fraction | str]:
        """The values in the source, and the digits of its numbers without a value."""
        return frozenset(
            number.digits if number.value is None else abs(number.value)
            for source in self.documents
            for number in numerals(source, self.source_locale or self.locale)
        )

    def _strangers(self, text: str, *, whole: bool) -> Iterator[Numeral]:
        """Yield the numbers that do not occur in the source."""
        for number in numerals(text, self.locale, whole=whole):
            occurs = (number.digits if number.value is None else abs(number.value)) in self._known
            if not occurs and not self._is_ignored(number, text):
                yield number

    def _is_ignored(self, number: Numeral, text: str) -> bool:
        has_four = len(number.digits) == 4 and number.value is not None
        if "years" in self.ignore and has_four and 1900 <= (number.value or 0) < 2100:
            return True
        if "list_markers" not in self.ignore or len(number.digits) > 3:
            return False
        line = text.rfind("\n", 0, number.start) + 1
        is_first = _LINE_BEFORE.match(text[line : number.start]) is not None
        return is_first and text[number.end : number.end + 1] in (".", ")", "、", "．", "）")

    def holds(self, text: str) -> bool:
        """Compare the numbers of one string."""
        return next(self._strangers(text, whole=True), None) is None

    def fault(self, text: str) -> str:
        """Return the first number that does not occur in the source."""
        stranger = next(self._strangers(text, whole=True), None)
        return "" if stranger is None else f"has the number {stranger.digits[:40]}, which does not occur in the source"

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Return VIOLATED if a number that no continuation changes does not occur in the source."""
        strange = next(self._strangers(prefix, whole=False), None) is not None
        return Verdict.VIOLATED if strange else Verdict.UNDECIDED
