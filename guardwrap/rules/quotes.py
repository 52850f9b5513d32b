"""The ``Quotes`` constraint: what the text quotes occurs in a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import regex

from guardwrap.constraints.field_checks import listed, require, shown
from guardwrap.constraints.kinds.text_constraint import ComparedConstraint
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.constraints.sentences import UNSPACED, settled_words, words_of
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import is_count
from guardwrap.rules.copies import (
    folding,
    plain_documents,
    size_in_words,
    without_layout,
)
from guardwrap.support.time_limits import check_deadline

_CLOSING = {
    '"': '"', "＂": "＂", "“": "”", "„": "“”", "‟": "”", "”": "”", "«": "»", "»": "«»", "‹": "›", "›": "‹›",
    "‘": "’", "‚": "‘’", "「": "」", "『": "』", "〝": "〞〟",
}  # fmt: skip
"""Marks that end a quotation, by the mark that begins it: “en”, „de“, „pl”, «fr», »da«, ”sv”, 「ja」."""

_OPENER = regex.compile('[“„‟”«»‹›「『〝＂‚]|(?<![0-9])"|(?<!\\p{L})‘')
_PARAGRAPH = r"\n[^\S\n]*\n"
_ENDS = {
    opening: regex.compile(rf"{_PARAGRAPH}|[{closing}](?!(?<=\p{{L}}’)\p{{L}})")
    for opening, closing in _CLOSING.items()
}
_GAP = regex.compile(r"\[\s*(?:…|\.\s?\.\s?\.)\s*\]")
_BEGUN_GAP = regex.compile(r"\[[\s.…]*$")
_LETTER = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}_]--[{UNSPACED}\p{{Hangul}}]]", regex.VERSION1)
_STOPS = ".,;，。、．"


class _Quotation(NamedTuple):
    """A quotation without its marks, and whether it has ended."""

    text: str
    ended: bool


@dataclass(frozen=True, eq=False, repr=False)
class Quotes(ComparedConstraint):
    """Every quotation in the text occurs in the source, word for word.

    Parameters
    ----------
    source
        One document or several; None for the prompt. The prompt of a chat is the whole conversation as text.
    shortest
        Quotations of fewer words are not compared. In Chinese and Japanese, a character is a word; in Thai, Lao, Khmer
        and Burmese, five letters are.
    min
        The least number of quotations that are compared.
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

    Notes
    -----
    A quotation stands between the quotation marks of any language, except the apostrophe ``'``. It ends at its closing
    mark, at a blank line, or with the text. White space, invisible characters, the kind of the marks inside, and a full
    stop or comma at its end do not matter. ``[…]`` or ``[...]`` replaces any text of the same document.

    A prefix is VIOLATED as soon as a quotation has ended and is not in the source, or has begun, is long enough, and no
    continuation of it is in the source.

    Examples
    --------
    >>> rule = Quotes("The shop opens at nine, and closes at six.")
    >>> rule.accepts("It says: “The shop opens […] and closes at six.”")
    True
    >>> rule.accepts("It says: “The shop opens at ten.”")
    False
    """

    source: str | Sequence[str] | None = None
    shortest: int = field(default=3, kw_only=True)
    min: int | None = field(default=None, kw_only=True)
    ignore_case: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["quotes"] = field(default="quotes", kw_only=True)

    way_out = "; shorten the texts or the source"

    def __post_init__(self) -> None:
        if self.source is not None:
            object.__setattr__(self, "source", plain_documents(self.source, "source"))
        require(
            is_count(self.shortest) and self.shortest > 0,
            f"shortest={shown(self.shortest)}: give a whole number of at least 1",
        )
        require(self.min is None or is_count(self.min), f"min={shown(self.min)}: give a whole number of at least 0")
        require(isinstance(self.ignore_case, bool), "ignore_case must be true or false")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        """Compare the quotations of one string."""
        compared = self._compared(text)
        return compared.total() >= (self.min or 0) and all(map(self._occurs, compared))

    def _compared(self, text: str) -> Counter[str]:
        """Return the quotations that are long enough, and how often each occurs."""
        quoted = Counter(quotation.text for quotation in _quotations(text, whole=True))
        return Counter({each: times for each, times in quoted.items() if self._is_long(words_of(each))})

    def fault(self, text: str) -> str:
        """Return how many quotations are not in the source, or that there are too few."""
        compared = self._compared(text)
        wrong = sum(times for each, times in compared.items() if not self._occurs(each))
        if wrong:
            first = listed(each for each in compared if not self._occurs(each))
            return f"has {wrong} of {compared.total()} quotations that are not in the source: {first}"
        return f"has {compared.total()} quotations of at least {self.shortest} words, not at least {self.min}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Compare the quotations that have ended, and the beginning of one that has not."""
        for quotation in _quotations(prefix, whole=False):
            if quotation.ended:
                possible = not self._is_long(words_of(quotation.text)) or self._occurs(quotation.text)
            else:
                possible = not self._is_long(settled_words(quotation.text)) or self._may_occur(quotation.text)
            if not possible:
                return Verdict.VIOLATED
        return Verdict.UNDECIDED

    def _is_long(self, words: Sequence[str]) -> bool:
        return size_in_words(words) >= self.shortest

    def _occurs(self, quotation: str) -> bool:
        pieces = self._pieces(quotation)
        ends = {pieces[-1], pieces[-1].rstrip(_STOPS)}  # American typography puts a comma of the sentence inside
        return any(_in_order([*pieces[:-1], end], document, begun=False) for document in self._sources for end in ends)

    def _may_occur(self, begun: str) -> bool:
        """Whether a quotation that begins like this can be in the source."""
        if self._occurs(begun) or self._occurs(_BEGUN_GAP.sub("", begun)):
            return True
        *pieces, last = _GAP.split(begun)
        last = without_layout(self._folding.settled(last))
        pieces = list(map(self._folded, pieces))
        return any(_in_order([*pieces, last], document, begun=True) for document in self._sources)

    def _pieces(self, quotation: str) -> list[str]:
        """Return the pieces between gaps, folded; at least one."""
        return list(map(self._folded, _GAP.split(quotation)))

    @cached_property
    def _folding(self) -> TextFolding:
        return folding("NFC", ignore_case=self.ignore_case)

    def _folded(self, text: str) -> str:
        return without_layout(self._folding.fold(text))

    @property
    def _sources(self) -> Iterator[str]:
        return (_folded_document(document, self.ignore_case) for document in self.documents)


@lru_cache(maxsize=16)  # prompts and documents are compared with many texts
def _folded_document(document: str, ignore_case: bool) -> str:
    return without_layout(folding("NFC", ignore_case=ignore_case).fold(document))


def _quotations(text: str, *, whole: bool) -> Iterator[_Quotation]:
    """Yield the quotations of a text. The last one may lack its end, unless the text is whole."""
    place = 0
    while (opener := _OPENER.search(text, place)) is not None:
        check_deadline()
        ends = _ENDS[opener.group()]
        end = ends.search(text, opener.end())
        # A letter after ’ may still turn it into an apostrophe.
        settled = end is not None and (whole or end.group() != "’" or end.end() < len(text))
        if end is None or not settled:
            yield _Quotation(text[opener.end() : end.start() if end else None], whole)
            return
        yield _Quotation(text[opener.end() : end.start()], ended=True)
        place = end.end()


def _in_order(pieces: Sequence[str], document: str, *, begun: bool) -> bool:
    """Whether pieces occur one after the other, as whole words. If ``begun``, the last one may end within a word."""
    place = 0
    for number, piece in enumerate(pieces, start=1):
        place = _after(piece, document, place, begun=begun and number == len(pieces))
        if place < 0:
            return False
    return True


def _after(piece: str, document: str, place: int, *, begun: bool) -> int:
    """Return the end of the first occurrence of a piece from a place on, as whole words; -1 if there is none."""
    first, last = _LETTER.match(piece[:1]), not begun and _LETTER.match(piece[-1:])
    start = document.find(piece, place)
    while start >= 0:
        check_deadline()
        end = start + len(piece)
        within_word = (first and _LETTER.match(document[max(0, start - 1) : start])) or (
            last and _LETTER.match(document[end : end + 1])
        )
        if not within_word:
            return end
        start = document.find(piece, start + 1)
    return -1
