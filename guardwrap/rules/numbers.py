"""Numbers in a text, by the rules of a locale: their values, which of a prefix's are final, and ``NumbersFrom``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple, get_args

import regex

from guardwrap.constraints.field_checks import require, require_choice, shown
from guardwrap.constraints.kinds.text_constraint import ComparedConstraint
from guardwrap.constraints.sentences import UNSPACED
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.support.limits import count_items
from guardwrap.support.time_limits import check_deadline, matches

MAX_DIGITS = 1_000
"""A number with more digits is not read."""

_SPACES = " \u00a0\u202f\u2009"


class WordTable:
    """WordTable with a value each, of which the longest is found that begins at a place of a text."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.longest = max(map(len, values), default=0)
        self.beginnings = frozenset(word[:size] for word in values for size in range(len(word) + 1))
        self.first_letters = frozenset(word[0] for word in values)
        # A capital sigma on its own becomes σ, also where a word ends in ς.
        self.last_letters = frozenset(form for word in values for form in (word[-1], word[-1].upper().lower()[-1]))

    def at(self, text: str, place: int, *, whole: bool = True) -> tuple[int, Any] | None:
        """Return the end and the value of the longest word that begins at a place; None without one."""
        if not whole and len(text) - place <= self.longest and text[place:].lower() in self.beginnings:
            raise Unsettled
        if text[place : place + 1].lower()[:1] not in self.first_letters:
            return None
        for size in range(min(self.longest, len(text) - place), 0, -1):
            word = text[place : place + size].lower()
            if word not in self.values:
                continue
            end = place + size
            following = text[end : end + 1]
            if not (is_edge(word[-1]) and (is_edge(following) or following in tuple("'’"))):  # "les 5 m'ont dit"
                return end, self.values[word]
        return None

    def before(self, text: str, place: int) -> tuple[int, Any] | None:
        """Return the beginning and the value of the longest word that ends at a place; None without one."""
        if place == 0 or text[place - 1].lower()[-1] not in self.last_letters:
            return None
        for size in range(min(self.longest, place), 0, -1):
            word = text[place - size : place].lower()
            begins = place - size
            if word in self.values and not (begins and is_edge(word[0]) and is_edge(text[begins - 1])):
                return begins, self.values[word]
        return None


@dataclass(frozen=True, eq=False)
class Style:
    """How a locale writes numbers."""

    decimal: str  # the decimal separator
    groups: str  # separators of groups of digits
    scales: WordTable  # WordTable that multiply the number before them, in lower case
    indian: bool = False  # whether groups of two digits may come before the last group, as in ``1,00,000``


def _powers(*texts: str) -> WordTable:
    """Read pairs of a word and a power of ten."""
    pairs = " ".join(texts).split()
    return WordTable(
        {word.replace("_", " "): 10 ** int(power) for word, power in zip(pairs[::2], pairs[1::2], strict=True)}
    )


_ENGLISH = "thousand 3 million 6 millions 6 mn 6 billion 9 billions 9 bn 9 trillion 12 trillions 12"
_INDIAN = "lakh 5 lakhs 5 crore 7 crores 7"
_GERMAN = (
    "tausend 3 tsd. 3 million 6 millionen 6 mio. 6 mio 6 milliarde 9 milliarden 9 mrd. 9 mrd 9 billion 12 billionen 12"
)
_SPANISH = "mil 3 millón 6 millones 6 mil_millones 9 billón 12 billones 12"
_PORTUGUESE = "mil 3 milhão 6 milhões 6 bilhão 9 bilhões 9 trilhão 12 trilhões 12"
_NARROW = "\u00a0\u202f\u2009"

LOCALES: dict[str, Style] = {
    "ar": Style(".", ",", _powers("ألف 3 آلاف 3 مليون 6 ملايين 6 مليار 9 مليارات 9")),
    "de": Style(",", "." + _NARROW, _powers(_GERMAN)),
    "de-CH": Style(".", "'’" + _NARROW, _powers(_GERMAN)),
    "en": Style(".", ",", _powers(_ENGLISH)),
    "en-GB": Style(".", ",", _powers(_ENGLISH)),
    "en-IN": Style(".", ",", _powers(_ENGLISH, _INDIAN), indian=True),
    "es": Style(",", "." + _NARROW, _powers(_SPANISH)),
    "es-MX": Style(".", ",", _powers(_SPANISH)),
    "fr": Style(",", _SPACES, _powers("mille 3 million 6 millions 6 milliard 9 milliards 9 billion 12 billions 12")),
    "hi": Style(".", ",", _powers("हज़ार 3 हजार 3 लाख 5 करोड़ 7 अरब 9"), indian=True),
    "it": Style(",", "." + _NARROW, _powers("mila 3 milione 6 milioni 6 miliardo 9 miliardi 9")),
    "ja": Style(".", ",", _powers("百 2 千 3 万 4 億 8 兆 12")),
    "ko": Style(".", ",", _powers("백 2 천 3 만 4 억 8 조 12")),
    "nl": Style(",", "." + _NARROW, _powers("duizend 3 miljoen 6 mln 6 miljard 9 mld 9 biljoen 12")),
    "pl": Style(
        ",",
        _SPACES,
        _powers(
            "tys. 3 tysiąc 3 tysiące 3 tysięcy 3 mln 6 milion 6 miliony 6 milionów 6 "
            "mld 9 miliard 9 miliardy 9 miliardów 9"
        ),
    ),
    "pt": Style(",", "." + _NARROW, _powers(_PORTUGUESE)),
    "ru": Style(
        ",",
        _SPACES,
        _powers(
            "тыс. 3 тысяча 3 тысячи 3 тысяч 3 млн 6 миллион 6 миллиона 6 миллионов 6 "
            "млрд 9 миллиард 9 миллиарда 9 миллиардов 9"
        ),
    ),
    "th": Style(".", ",", _powers("ร้อย 2 พัน 3 หมื่น 4 แสน 5 ล้าน 6")),
    "tr": Style(",", ".", _powers("bin 3 milyon 6 milyar 9 trilyon 12")),
    "zh": Style(".", ",", _powers("百 2 千 3 万 4 亿 8 萬 4 億 8")),
}  # fmt: skip
"""Locales by BCP 47 tag. A country's tag is listed where it differs from its language."""


class Numeral(NamedTuple):
    """A number in a text."""

    start: int  # its place in the text, with its sign and a word such as "million"
    end: int
    value: Fraction | None  # its value; None if the locale does not write numbers like this, or it has too many digits
    decimals: int  # number of digits after the decimal separator
    digits: str  # its digits with their separators


class Unsettled(Exception):
    """What comes next in the text may change what is read."""


_FOREIGN_DECIMAL, _FOREIGN_GROUP = "٫", "٬"  # with Arabic digits, in every locale
_MINUS = "-−－"

_DIGIT = regex.compile(r"\p{Nd}")
SEEN_BEFORE = 3
"""How many characters before a number say whether it has a sign, or belongs to a name."""

_EDGE = regex.compile(rf"[[\p{{L}}\p{{M}}]--[{UNSPACED}\p{{Hangul}}]]", regex.VERSION1)


def is_edge(char: str) -> bool:
    """Whether a character continues a word; the words of scripts without spaces may follow each other."""
    return _EDGE.match(char) is not None


_NAME_LETTER = regex.compile(r"[\p{Latin}\p{Greek}\p{Cyrillic}_]")
"""Digits after one of these belong to a name, such as H2O."""


@cache
def _run(style: Style) -> Any:
    """Expression of digits with what may separate them in a number, and an exponent."""
    narrow = "".join(char for char in ".,'’٫٬．" if char in style.groups or char in ".,٫٬．")
    spaces = "".join(char for char in style.groups if char in _SPACES)
    by_space = rf"|[{spaces}](?=\p{{Nd}}{{3}}(?!\p{{Nd}}))" if spaces else ""
    separator = rf"(?:[{narrow}]|(?<=[０-９])，(?=[０-９]){by_space})"
    return regex.compile(rf"\p{{Nd}}++(?:{separator}\p{{Nd}}++)*+(?:[eE][+\-−]?\p{{Nd}}++(?!\p{{L}}))?+")


@cache
def _continuation(style: Style) -> Any:
    """Expression of what may follow such digits without ending them."""
    spaces = "".join(char for char in style.groups if char in _SPACES)
    by_space = rf"|[{spaces}]\p{{Nd}}{{0,3}}" if spaces else ""
    return regex.compile(rf"[.,'’٫٬．，]?|[eE](?:[+\-−]?\p{{Nd}}*)?{by_space}")


@cache
def _forms(style: Style) -> Any:
    """Expression of one number."""
    group = f"[{regex.escape(style.groups)}{_FOREIGN_GROUP}]"
    grouped = rf"\p{{Nd}}{{1,3}}(?P<by>{group})\p{{Nd}}{{3}}(?:(?P=by)\p{{Nd}}{{3}})*+"
    indian = r"|\p{Nd}{1,2}(?:,\p{Nd}{2})*,\p{Nd}{3}" if style.indian else ""
    decimal = f"[{regex.escape(style.decimal)}{_FOREIGN_DECIMAL}]"
    return regex.compile(
        rf"(?P<whole>{grouped}{indian}|\p{{Nd}}++)(?:{decimal}(?P<part>\p{{Nd}}++))?+(?:[eE](?P<power>[+\-−]?\p{{Nd}}++))?+"
    )


def _read_run(digits: str, style: Style) -> list[tuple[int, str, Fraction | None, int]]:
    """Return the numbers in a run of digits and separators: place, digits, value, decimals."""
    plain = digits.translate({ord("．"): ".", ord("，"): ","})
    if len(digits) > MAX_DIGITS:
        return [(0, digits, None, 0)]
    match = _forms(style).fullmatch(plain)
    if match is not None:
        power = int((match["power"] or "0").replace("−", "-"))
        if abs(power) > MAX_DIGITS:
            return [(0, digits, None, 0)]
        part = match["part"] or ""
        whole = "".join(char for char in match["whole"] if char.isdecimal())
        value = Fraction(int(whole + part), 10 ** len(part))
        return [(0, digits, value * Fraction(10) ** power if power else value, len(part))]
    spaced = regex.search(f"[{_SPACES}]", plain)
    if spaced is not None:
        place = spaced.start()
        rest = [(at + place + 1, *each) for at, *each in _read_run(digits[place + 1 :], style)]
        return [*_read_run(digits[:place], style), *rest]
    pieces = list(regex.finditer(r"\p{Nd}+", plain))
    separators = regex.sub(r"\p{Nd}", "", plain)
    is_grouped = separators[:1] in {",", *style.groups} and len(pieces[-1].group()) == 3
    if len(pieces) < 3 or len(set(separators)) > 1 or is_grouped:  # a number of another locale
        return [(0, digits, None, 0)]
    return [(piece.start(), piece.group(), Fraction(int(piece.group())), 0) for piece in pieces]


def after_space(text: str, place: int, *, whole: bool) -> int:
    """Return the place after one space, if there is one at a place of a text."""
    if place == len(text) and not whole:
        raise Unsettled
    return place + (text[place : place + 1] in tuple(_SPACES))


def _scaled(text: str, end: int, value: Fraction, style: Style, *, whole: bool) -> tuple[int, Fraction]:
    """Return the end and the value of a number with the words after it that multiply it, as in ``3万5千``."""
    total, last = Fraction(0), None
    while True:
        word = style.scales.at(text, after_space(text, end, whole=whole), whole=whole)
        if word is None or (last is not None and word[1] >= last):
            return end, total + value if total else value
        end, last = word
        total, value = total + value * last, Fraction(0)
        if not regex.match(rf"[{UNSPACED}\p{{Hangul}}]", text[end - 1]):
            return end, total
        if end == len(text) and not whole:
            raise Unsettled
        following = style.scales.at(text, end, whole=whole)
        if following is not None:  # 万亿
            total, end, last = total * following[1], following[0], following[1]
        digits = _run(style).match(text, end)
        if digits is None:
            return end, total
        _require_settled(text, digits.end(), style, whole=whole)
        readings = _read_run(digits.group(), style)
        if len(readings) != 1 or readings[0][2] is None or readings[0][2] >= last:
            return end, total
        end, value = digits.end(), readings[0][2]


def _require_settled(text: str, end: int, style: Style, *, whole: bool) -> None:
    """Raise Unsettled if more text may continue the digits that end at a place."""
    if not whole and _continuation(style).fullmatch(text, end) is not None:
        raise Unsettled


def _begins(before: str) -> bool:
    """Whether a number that follows this character, or none, begins there."""
    return before == "" or before.isspace() or before in "([{\"'“„‘«=:<>≤≥$€£¥₹~≈"


def _has_point(text: str, start: int, style: Style) -> bool:
    """Whether digits follow a decimal point without a digit before it, as in ``.5``."""
    before = text[max(0, start - 2) : start]
    return style.decimal == before[-1:] == "." and (_begins(before[:-1]) or before[:-1] in _MINUS + "–*")


def sign_before(text: str, start: int) -> int:
    """Return where a number begins whose digits begin at ``start``: at its minus sign, if it has one."""
    if start == 0 or text[start - 1] not in _MINUS + "–":
        return start
    before = text[start - 2 : start - 1] if start > 1 else ""
    return start - 1 if _begins(before) else start


def numerals(text: str, locale: str, *, whole: bool = True, start: int = 0) -> Iterator[Numeral]:
    """Yield the numbers of a text, in their order; from a place on, if another one ends there, or digits begin.

    Digits of any script count. Those after a Latin, Greek or Cyrillic letter belong to a name, as in "H2O". Digits with
    one separator that the locale does not use like this, such as "1.5" in German, are a number without a value. With
    the same separator several times, as in "24.12.2024", each group of digits is a number.

    ``whole``: whether the text ends here. If it may continue, only the numbers are yielded that no continuation
    changes.
    """
    style = LOCALES[locale]
    done = start
    for run in matches(_run(style), text, pos=start):
        check_deadline()
        start, end = run.span()
        if start < done:
            continue
        try:
            _require_settled(text, end, style, whole=whole)
            if start and _NAME_LETTER.match(text[start - 1]):
                continue
            readings = _read_run(run.group(), style)
            *others, (place, digits, value, decimals) = readings
            done = end
            if value is not None and digits == run.group() and digits.isdecimal() and _has_point(text, start, style):
                start, value, decimals = start - 1, value / 10 ** len(digits), len(digits)
            if value is not None:
                done, value = _scaled(text, end, value, style, whole=whole)
        except Unsettled:
            return
        for at, each, number, count in others:
            yield _signed(text, start + at, start + at + len(each), number, count, each)
        yield _signed(text, start + place, done, value, decimals, digits)


def where_to_resume(text: str, start: int) -> int:
    """Return where in a text that may grow to read on, after the last number that has been read."""
    digit = _DIGIT.search(text, start)
    return len(text) if digit is None else int(digit.start())


def _signed(text: str, start: int, end: int, value: Fraction | None, decimals: int, digits: str) -> Numeral:
    begin = sign_before(text, start)
    return Numeral(begin, end, -value if value is not None and begin < start else value, decimals, digits)


def literal_at(text: str, place: int, locale: str) -> Numeral | None:
    """Read the digits that begin at a place of a text, without sign and words; None without digits."""
    style = LOCALES[locale]
    run = _run(style).match(text, place)
    if run is None:
        return None
    readings = _read_run(run.group(), style)
    if len(readings) == 1:
        return Numeral(place, run.end(), readings[0][2], readings[0][3], run.group())
    space = regex.search(f"[{_SPACES}]", run.group())
    if space is not None:  # in French, "2020 300" is two numbers
        return literal_at(text[: place + space.start()], place, locale)
    return Numeral(place, run.end(), None, 0, run.group())


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
        return next(self._strangers(text, whole=True), None) is None

    def fault(self, text: str) -> str:
        stranger = next(self._strangers(text, whole=True), None)
        return "" if stranger is None else f"has the number {stranger.digits[:40]}, which does not occur in the source"

    def prefix_verdict(self, prefix: str) -> Verdict:
        strange = next(self._strangers(prefix, whole=False), None) is not None
        return Verdict.VIOLATED if strange else Verdict.UNDECIDED
