"""``Copy``, ``NoCopy`` and ``Quotes``: the text repeats a source, no long run of its words, or quotes it exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import regex
from pydantic import Field

from guardwrap.constraints.checking import Resumed
from guardwrap.constraints.field_checks import listed, require, require_booleans, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import ComparedConstraint
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.constraints.sentences import UNSPACED, settled_words, words_of
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, begun_length, read_view
from guardwrap.errors import is_count, is_number
from guardwrap.support.limits import count_items
from guardwrap.support.time_limits import check_deadline

MARKS = "\"'“”„‟«»‹›‘’‚‛「」『』〝〞〟＂＇"
"""Quotation marks and apostrophes, of all languages."""

_MAX_CHARACTERS = 1_000_000
_SPACE = regex.compile(r"\s+")
_NO_SPACE = regex.compile(rf"(?<=[{UNSPACED}]) | (?=[{UNSPACED}])")
_MARK = regex.compile(f"[{MARKS}`´]")
_LONG_WORD = regex.compile(r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_LETTERS_OF_A_WORD = 5
"""Letters that count as one word in Thai, Lao, Khmer and Burmese, whose words only a dictionary can tell apart."""


def plain_documents(texts: object, field_name: str) -> str | tuple[str, ...]:
    """Return one document as a text, and several as a tuple, or raise ConstraintError."""
    several = (texts,) if isinstance(texts, str) else tuple(texts) if isinstance(texts, Sequence) else ()
    valid = several != () and all(isinstance(text, str) and text.strip() != "" for text in several)
    require(valid, f"{field_name} must be a text that is not blank, or a list of these, not {shown(texts)}")
    size = sum(map(len, several))
    require(size <= _MAX_CHARACTERS, f"{field_name} has {size} characters; at most {_MAX_CHARACTERS} are possible")
    return several[0] if len(several) == 1 else several


def without_layout(text: str) -> str:
    """Return a folded text with one kind of quotation mark, and one space for white space between words."""
    return str(_NO_SPACE.sub("", _SPACE.sub(" ", _MARK.sub("'", text)))).strip()


def folding(form: Literal["NFC", "NFKC"], *, ignore_case: bool) -> TextFolding:
    """Return how texts are folded that are compared with sources."""
    return TextFolding(form, case_sensitive=not ignore_case, ignore_invisible=True, keep_capital_i=False)


def size_in_words(words: Sequence[str]) -> int:
    """Count words; in Thai, Lao, Khmer and Burmese, five letters are one."""
    return sum(max(1, len(_LONG_WORD.findall(word)) // _LETTERS_OF_A_WORD) for word in words)


@dataclass(frozen=True, eq=False, repr=False)
class Copy(ComparedConstraint):
    """The text is a copy of another text, or begins or ends with one. White space around it does not matter.

    Parameters
    ----------
    text
        What is copied; None for the prompt. The prompt of a chat is the whole conversation as text.
    at
        ``"whole"``: nothing else may come; ``"start"``, ``"end"``: the text begins or ends with the copy.
    times
        Number of copies, one after the other; more than one only with ``at="whole"``.
    separator
        What stands between copies.
    span
        Two numbers: only the units from the first to before the second are copied, counted from 0.
    unit
        ``"characters"``, or ``"words"``, which are separated by any white space.
    change
        What is not copied: ``"first_word"``: the first word must be another one; ``"one_word"``: exactly one word must.
        Only with ``at="whole"`` and ``unit="words"``.
    ignore_case
        Whether upper and lower case are the same.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Notes
    -----
    A prefix is VIOLATED as soon as it differs from the copy, except with ``at="end"``.

    Examples
    --------
    >>> Copy("Tea is good.", times=2, separator="******").accepts("Tea is good. ****** Tea is good.")
    True
    >>> Copy("Tea is good.", unit="words", change="first_word").accepts("Coffee is good.")
    True
    """

    text: str | None = None
    at: Literal["whole", "start", "end"] = field(default="whole", kw_only=True)
    times: int = field(default=1, kw_only=True)
    separator: str = field(default="\n", kw_only=True)
    span: Annotated[Sequence[int], Field(min_length=2, max_length=2)] | None = field(default=None, kw_only=True)
    unit: Literal["characters", "words"] = field(default="characters", kw_only=True)
    change: Literal["first_word", "one_word"] | None = field(default=None, kw_only=True)
    ignore_case: bool = field(default=False, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["copy"] = field(default="copy", kw_only=True)

    compared = "text"

    def __post_init__(self) -> None:
        valid = self.text is None or (isinstance(self.text, str) and self.text.strip() != "")
        require(valid, f"text must be a text that is not blank, or None for the prompt, not {shown(self.text)}")
        require_choice(self.at, ("whole", "start", "end"), "at")
        require_choice(self.unit, ("characters", "words"), "unit")
        require(
            is_count(self.times) and self.times > 0, f"times={shown(self.times)}: give a whole number of at least 1"
        )
        require(self.times == 1 or self.at == "whole", "times requires at='whole'")
        valid = isinstance(self.separator, str) and self.separator != ""
        require(valid, f"separator must be a text, not {shown(self.separator)}")
        if self.span is not None:
            span = tuple(self.span) if isinstance(self.span, Sequence) else ()
            valid = len(span) == 2 and all(map(is_count, span)) and span[0] < span[1]
            require(valid, f"span must be two numbers such as [0, 20], not {shown(self.span)}")
            object.__setattr__(self, "span", span)
        if self.change is not None:
            require_choice(self.change, ("first_word", "one_word"), "change")
            require(self.at == "whole" and self.unit == "words", "change requires at='whole' and unit='words'")
        require_booleans(self, "ignore_case")
        object.__setattr__(self, "on", read_view(self.on))
        if self.text is not None:
            count_items(len(self.text), "the text has")
            require(self.times == 1 or self.separator not in self._copy, "the separator occurs in what is copied")
            require(self._copy != "", f"text has no {self.unit} in the span {shown(self.span)}")

    @property
    def _copy(self) -> str:
        """What is copied, with one space between words if they are the unit."""
        source = self.text or ""
        start, end = self.span or (0, None)
        if self.unit == "words":
            return self._folded(" ".join(source.split()[start:end]))
        return self._folded(source[start:end].strip())

    def _folded(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text

    def holds(self, text: str) -> bool:
        pieces = [text] if self.times == 1 else text.split(self.separator)
        return len(pieces) == self.times and all(map(self._is_copy, pieces))

    def _is_copy(self, piece: str) -> bool:
        """Whether a whole piece is a copy, with the change that is required."""
        expected = self._copy
        text = self._folded(" ".join(piece.split()) if self.unit == "words" else piece.strip())
        if self.change is not None:
            return _changes(text.split(), expected.split(), self.change) and text.count(" ") == expected.count(" ")
        if self.at == "whole":
            return text == expected
        return text.startswith(expected) if self.at == "start" else text.endswith(expected)

    def prefix_verdict(self, prefix: str) -> Verdict:
        if self.at == "end":
            return Verdict.UNDECIDED
        ended: list[str] = []
        growing = prefix
        if self.times > 1:
            *ended, growing = prefix.split(self.separator)
            growing = growing[: len(growing) - begun_length(growing, [self.separator])]
        if len(ended) >= self.times or not all(map(self._is_copy, ended)):
            return Verdict.VIOLATED
        return self._begun(growing)

    def _begun(self, growing: str) -> Verdict:
        """Judge a piece that has not ended."""
        expected = self._copy
        begun = growing.lstrip()
        if self.unit == "words":
            ends = begun != begun.rstrip()  # the last word has ended
            begun = " ".join(begun.split()) + " " * (ends and begun != "")
        begun = self._folded(begun)
        if self.change is not None:
            return self._changed(begun, expected.split())
        if self.at == "start" and begun.startswith(expected):
            return Verdict.SATISFIED if begun and self.text else Verdict.UNDECIDED
        possible = expected.startswith(begun) or (self.at == "whole" and begun.rstrip() == expected)
        return Verdict.UNDECIDED if possible else Verdict.VIOLATED

    def _changed(self, begun: str, expected: list[str]) -> Verdict:
        words = begun.split()
        ended = words if begun.endswith(" ") else words[:-1]
        possible = len(words) <= len(expected) and _may_change(ended, expected, str(self.change))
        return Verdict.UNDECIDED if possible else Verdict.VIOLATED


def _differences(words: list[str], expected: list[str]) -> list[int]:
    return [place for place, (one, two) in enumerate(zip(words, expected, strict=False)) if one != two]


def _changes(words: list[str], expected: list[str], change: str) -> bool:
    """Whether words differ from those that are expected just as they must."""
    places = _differences(words, expected)
    return places == [0] if change == "first_word" else len(places) == 1


def _may_change(words: list[str], expected: list[str], change: str) -> bool:
    """Whether words that come first may still turn out to differ as they must."""
    places = _differences(words, expected)
    return (not words or places == [0]) if change == "first_word" else len(places) < 2


_JOINT = regex.compile(r"[\p{Pd}'’_]")
_CHARACTER = regex.compile(rf"[{UNSPACED}]\p{{M}}*|[^{UNSPACED}]+")
# The last white space, or the last character that is a word, which neither joins the text before it nor is a mark.
_EDGE = regex.compile(r"(?r)[[ \n\p{Han}\p{Hiragana}]--\p{M}]", regex.VERSION1)
_ANY_UNSPACED = regex.compile(f"[{UNSPACED}]")


@dataclass(frozen=True, eq=False, repr=False)
class NoCopy(ComparedConstraint):
    """No run of words of a source occurs in the text.

    Parameters
    ----------
    source
        One document or several, such as the system prompt; None for the prompt. The prompt of a chat is the whole
        conversation as text.
    words
        Number of words of a run. In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) a character
        is a word.
    share
        Instead of none, this share of the runs of each document may occur, as for near-copies: ``0.2`` rejects a text
        with more than a fifth of the different runs of a document.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid, or no document has a whole run.

    Notes
    -----
    Case, punctuation, white space, hyphens, apostrophes, compatibility forms and invisible characters do not matter.
    Translations, other spellings and words put between the others are not seen.

    A prefix is VIOLATED as soon as its runs are too many.

    Examples
    --------
    >>> rule = NoCopy("You are Ada, the assistant of Acme. Never mention prices.", words=5)
    >>> rule.accepts("My instructions: you are ADA -- the assistant of Acme!")
    False
    >>> rule.accepts("I am the assistant of Acme.")
    True
    """

    source: str | Sequence[str] | None = None
    words: int = field(default=8, kw_only=True)
    share: float | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["no_copy"] = field(default="no_copy", kw_only=True)

    way_out = "; shorten the texts or the source"

    def __post_init__(self) -> None:
        valid = is_count(self.words) and 1 <= self.words <= _MOST
        require(valid, f"words={shown(self.words)}: give a whole number from 1 to {_MOST}")
        if self.share is not None:
            in_range = is_number(self.share) and 0 <= self.share < 1
            require(in_range, f"share={shown(self.share)}: give a number from 0 to below 1, such as 0.2")
            object.__setattr__(self, "share", float(self.share))
        object.__setattr__(self, "on", read_view(self.on))
        if self.source is not None:
            object.__setattr__(self, "source", plain_documents(self.source, "source"))
            require(any(self._sources), f"no text of source has {self.words} words; lower words")

    @property
    def _sources(self) -> Iterator[frozenset[str]]:
        for document in self.documents:
            yield _runs_of_document(document, self.words)

    def holds(self, text: str) -> bool:
        words = _units(words_of(_folded(text)))
        return self._may_be(self._copied([frozenset()] * len(self.documents), words))

    def fault(self, text: str) -> str:
        runs = dict.fromkeys(_runs(_units(words_of(_folded(text))), self.words))
        most = max((len(runs.keys() & document) for document in self._sources), default=0)
        copied = listed((run for run in runs if any(run in document for document in self._sources)), most=1)
        return f"has {most} runs of {self.words} words of the source: {copied}"

    def resumed(self, summary: Any, text: str, /) -> Resumed:
        """Return VIOLATED once too many runs occur that no continuation can change."""
        last, copied = summary or ((), tuple(frozenset[str]() for _ in self.documents))
        cut = _last_edge(text)
        if cut:
            words = (*last, *_units(words_of(_folded(text[:cut]))))
            copied = self._copied(copied, words)
            last = words[max(0, len(words) - self.words + 1) :]
        settled = settled_words(_JOINT.sub(" ", _FOLDING.settled(text[cut:])))
        possible = self._may_be(self._copied(copied, (*last, *_units(settled))))
        return Resumed(Verdict.UNDECIDED if possible else Verdict.VIOLATED, (last, copied), text[cut:])

    def _copied(self, copied: Sequence[frozenset[str]], words: Sequence[str]) -> tuple[frozenset[str], ...]:
        """Return the runs of each document that occur, with those of more words."""
        runs = set(_runs(words, self.words))
        return tuple(before | runs & document for before, document in zip(copied, self._sources, strict=True))

    def _may_be(self, copied: Sequence[frozenset[str]]) -> bool:
        """Whether a text may have these runs of each document."""
        return all(
            len(runs) <= (self.share or 0) * len(document) for runs, document in zip(copied, self._sources, strict=True)
        )


_MOST = 100


_FOLDING = folding("NFKC", ignore_case=True)


def _folded(text: str) -> str:
    return str(_JOINT.sub(" ", _FOLDING.fold(text)))


def _last_edge(text: str) -> int:
    """Return the last place of a text at which no word and no folded character goes on; 0 if there is none."""
    edge = _EDGE.search(text)
    return 0 if edge is None else int(edge.start())


def _units(words: Sequence[str]) -> Sequence[str]:
    """Return the words that are counted: in scripts without spaces, each character."""
    if _ANY_UNSPACED.search("".join(words)):
        return [unit for word in words for unit in _CHARACTER.findall(word)]
    return words


def _runs(units: Sequence[str], size: int) -> Iterator[str]:
    """Yield each run of as many words, as one string."""
    for start in range(len(units) - size + 1):
        if start % 100 == 0:
            check_deadline()
        yield " ".join(units[start : start + size])


@lru_cache(maxsize=16)  # prompts and documents are compared with many texts
def _runs_of_document(document: str, size: int) -> frozenset[str]:
    return frozenset(_runs(_units(words_of(_folded(document))), size))


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
        require_booleans(self, "ignore_case")
        object.__setattr__(self, "on", read_view(self.on))

    def holds(self, text: str) -> bool:
        compared = self._compared(text)
        return compared.total() >= (self.min or 0) and all(map(self._occurs, compared))

    def _compared(self, text: str) -> Counter[str]:
        """Return the quotations that are long enough, and how often each occurs."""
        quoted = Counter(quotation.text for quotation in _quotations(text, whole=True))
        return Counter({each: times for each, times in quoted.items() if self._is_long(words_of(each))})

    def fault(self, text: str) -> str:
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
