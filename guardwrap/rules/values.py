"""The ``Values`` constraint: numbers, amounts of money, dates, durations or quantities lie in a range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, get_args

import regex

from guardwrap.constraints.checking import Resumed
from guardwrap.constraints.field_checks import is_between, require, require_choice, require_counts, require_order, shown
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.verdicts import Verdict
from guardwrap.constraints.views import View, read_view
from guardwrap.errors import is_count, is_number
from guardwrap.rules.measures import CURRENCIES, UNITS, Reading, durations, money, quantities
from guardwrap.rules.numbers import LOCALES, SEEN_BEFORE, Numeral, numerals, where_to_resume
from guardwrap.support.time_limits import check_deadline, matches

_LONGEST = 60
"""No date has more characters."""

_DAY = r"(?P<d>\p{Nd}{1,2})"
_YEAR = r"(?P<y>\p{Nd}{4})(?!\p{Nd})"
_ORDINAL = r"(?:st|nd|rd|th|er|re|º|ª|°|\.)?"
_OF = r"(?:de\ |del\ |of\ |di\ |d['’])?"


@dataclass(frozen=True)
class DateStyle:
    """How a locale writes dates."""

    pattern: Any  # expression of one date, with the groups y, m, d, and month for a word
    # numbers of months by their words, as ``_folded`` spells them; empty if the locale writes months as numbers
    months: Mapping[str, int]
    buddhist: bool  # whether years from 2400 are of the Buddhist era


@cache
def date_style(locale: str) -> DateStyle:
    """Return how a locale writes dates, by Unicode's CLDR in Babel."""
    from babel import Locale

    data = Locale.parse(locale, sep="-")
    spellings: dict[str, int] = {}
    for context in ("format", "stand-alone"):
        for width in ("wide", "abbreviated"):
            for number, word in data.months[context][width].items():
                if not word[:1].isdecimal():
                    spellings.setdefault(word.lower().removesuffix("."), number)
    if locale.startswith("en"):  # CLDR has one of them in each country
        spellings |= {"sep": 9, "sept": 9}
    order = list(dict.fromkeys(regex.sub(r"[^yMd]", "", data.date_formats["short"].pattern)))
    months = {_folded(word): number for word, number in spellings.items()}
    return DateStyle(_pattern(tuple(spellings), order), months, locale == "th")


def _folded(word: str) -> str:
    """Return the one spelling of all that ``regex.IGNORECASE`` takes for a word: KASIM is kasım, and EKİM is ekim."""
    return word.casefold().replace("i\u0307", "i").replace("ı", "i")


def _pattern(words: tuple[str, ...], order: list[str]) -> Any:
    """Return the expression of one date."""
    month = "(?P<month>" + "|".join(map(regex.escape, sorted(words, key=len, reverse=True))) + r")(?!\p{L})\.?"
    number = r"(?P<m>\p{Nd}{1,2})"
    first, second = (number, _DAY) if order[0] == "M" else (_DAY, number)
    numeric = rf"{first}(?P<by>[./\-])\ ?{second}(?P=by)\ ?(?:{_YEAR}|(?P<short>\p{{Nd}}{{2}})(?!\p{{Nd}}))"
    if order[0] == "y":  # the locale does not write the day or the month first
        numeric = r"(?P<short>\p{Nd}{1,2})(?P<by>[./\-])\p{Nd}{1,2}(?P=by)\p{Nd}{4}(?!\p{Nd})"
    alternatives = [
        rf"(?P<y>\p{{Nd}}{{4}})(?P<by>[./\-])\ ?{number}(?P=by)\ ?{_DAY}(?!\p{{Nd}})",
        rf"(?P<y>\p{{Nd}}{{4}})\ ?[年년]\ ?{number}\ ?[月월]\ ?{_DAY}\ ?[日일号號]",
        numeric,
    ]
    if words:
        alternatives += [
            rf"{_DAY}{_ORDINAL}[\ \u00a0]?{_OF}{month},?[\ \u00a0]?{_OF}{_YEAR}",
            rf"(?<!\p{{L}}){month}\ {_DAY}(?:st|nd|rd|th)?,?\ {_YEAR}",
        ]
    return regex.compile(rf"(?<!\p{{Nd}})(?:{'|'.join(alternatives)})", regex.IGNORECASE)


def dates(text: str, style: DateStyle, *, whole: bool) -> Iterator[Reading]:
    """Yield the dates of a text. A date that does not exist, or has a year of two digits, has no value.

    ``whole``: whether the text ends here. If it may continue, only the dates are yielded that no continuation
    changes.
    """
    done, window = 0, len(text) - _LONGEST
    for match in matches(style.pattern, text):
        check_deadline()
        if not whole and match.end() > window and _may_begin(text, max(done, window), match.start() + 1, style):
            return
        done = match.end()
        yield Reading(_date(match, style))


def _may_begin(text: str, first: int, last: int, style: DateStyle) -> bool:
    """Whether more text can complete or change a date that begins between two places."""
    for place in range(first, last):
        match = style.pattern.match(text, place, partial=True)
        if match is not None and (match.partial or match.end() == len(text)):
            return True
    return False


def _date(match: Any, style: DateStyle) -> date | None:
    if match["short"] is not None:
        return None
    word, year = match.groupdict().get("month"), int(match["y"])
    month = int(match["m"]) if word is None else style.months.get(_folded(word))
    if month is None:
        return None
    if style.buddhist and year >= 2400:
        year -= 543
    try:
        return date(year, month, int(match["d"]))
    except ValueError:
        return None


ValueKind = Literal["number", "money", "date", "duration", "quantity"]
Which = Literal["all", "any", "first", "last"]


@dataclass(frozen=True, eq=False, repr=False)
class Values(TextConstraint):
    """Values in the text lie in a range: numbers, amounts of money, dates, durations or quantities with a unit.

    Parameters
    ----------
    of
        - ``"number"``: numbers in digits of any script, with signs, exponents, and words such as "million" and 万.
        - ``"money"``: numbers with a currency's symbol, code or name, such as ``$5``, ``5 EUR`` and ``5 złotych``.
        - ``"date"``: dates with a year of four digits: ISO 8601, in digits in the locale's order, and with the month
          in the locale's words.
        - ``"duration"``: numbers with units of time, such as "1 hour 30 minutes".
        - ``"quantity"``: numbers with a unit of the same dimension as ``unit``.

        All except ``"number"`` require the extra ``guardwrap[values]``.
    min, max
        Limits, inclusive; None means no limit. Of dates: ISO dates such as ``"2025-01-31"``.
    which
        Which values must lie in the range: all, at least one, the first or the last one. Except for ``"all"``, a text
        without values is rejected.
    min_count, max_count
        Limits on the number of values; None means no limit.
    decimals
        Number of digits after the decimal separator, such as 0 for whole numbers; None for any. Not for dates.
    locale
        How the text writes values, as a tag such as ``"de"``: "1.234" is 1234 in German and 1.234 in English, and
        "3/4/2025" is March 4 for ``"en"`` and April 3 for ``"en-GB"``. A value that the locale does not write like
        this, such as "1.5" in German, lies in no range.
    currency
        Code (ISO 4217) that amounts must be in, such as ``"EUR"``; None for any.
    unit
        Unit of ``min`` and ``max``, such as ``"km"``, for quantities and for durations, where it is ``"s"`` by default.
        Values in other units of the dimension are converted. A month counts as 30 days, and a year as 365.
    on
        The view of the text that is judged.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is invalid, or Babel is not installed and necessary.
    Unsatisfiable
        If a minimum exceeds its maximum.

    Notes
    -----
    A value counts in a prefix when no continuation can change it: "12" may become "120", "12.5" or "12 million". Then
    a value out of range ends the attempt, unless ``which`` is ``"any"`` or ``"last"``.

    Numbers in words ("twelve", 三百), Roman numerals, fractions such as ½, "10⁶", and durations in ISO 8601 (``PT1H``)
    are not read. Dates without a year are not dates. Amounts such as ``$5M`` and durations such as ``1h30`` lie in no
    range.

    Examples
    --------
    >>> Values(max=100).accepts("Between 5 and 12.5 %")
    True
    >>> Values(max=100, locale="de").accepts("1.234 Euro")
    False
    """

    of: ValueKind = "number"
    min: int | float | str | None = field(default=None, kw_only=True)
    max: int | float | str | None = field(default=None, kw_only=True)
    which: Which = field(default="all", kw_only=True)
    min_count: int | None = field(default=None, kw_only=True)
    max_count: int | None = field(default=None, kw_only=True)
    decimals: int | None = field(default=None, kw_only=True)
    locale: str = field(default="en", kw_only=True)
    currency: str | None = field(default=None, kw_only=True)
    unit: str | None = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["values"] = field(default="values", kw_only=True)

    def __post_init__(self) -> None:
        require_choice(self.of, get_args(ValueKind), "of")
        require_choice(self.which, get_args(Which), "which")
        require_choice(self.locale, tuple(LOCALES), "locale")
        if self.of != "number":
            require(find_spec("babel") is not None, f"of={self.of!r} requires Babel: pip install 'guardwrap[values]'")
        require_counts(self, "min_count", "max_count")
        valid = self.decimals is None or is_count(self.decimals)
        require(valid, f"decimals={shown(self.decimals)}: give a whole number of at least 0")
        limits = [self.min, self.max, self.min_count, self.max_count, self.decimals, self.currency]
        require(any(each is not None for each in limits), "Values needs a limit such as min, max or min_count")
        require(self.decimals is None or self.of != "date", "decimals cannot be used with of='date'")
        self._check_units()
        for limit in (self.min, self.max):
            if limit is None:
                continue
            if self.of == "date":
                valid = isinstance(limit, str) and _iso_date(limit) is not None
                require(valid, f"limit {shown(limit)}: give an ISO date such as '2025-01-31'")
            else:
                require(is_number(limit), f"limit {shown(limit)}: give a number")
        require_order(self, *self._limits, f"min={self.min} exceeds max={self.max}")
        object.__setattr__(self, "on", read_view(self.on))

    def _check_units(self) -> None:
        """Raise ConstraintError unless currency and unit fit what is read."""
        if self.currency is not None:
            require(self.of == "money", "currency applies to of='money' only")
            require_choice(self.currency, tuple(CURRENCIES), "currency")
        if self.unit is not None:
            require(self.of in ("duration", "quantity"), "unit applies to of='duration' and of='quantity' only")
            of_time = self.of == "duration"
            units = tuple(name for name, unit in UNITS.items() if (unit.dimension == "time") == of_time)
            require_choice(self.unit, units, "unit")
        require(self.unit is not None or self.of != "quantity", "of='quantity' requires a unit such as unit='km'")

    @cached_property
    def _limits(self) -> tuple[Any, Any]:
        return _limit(self.min), _limit(self.max)

    @cached_property
    def _read(self) -> Callable[..., Iterator[Reading | Numeral]]:
        """The function that reads the values of a text."""
        if self.of == "date":
            style = date_style(self.locale)
            return lambda text, whole: dates(text, style, whole=whole)
        if self.of == "money":
            return lambda text, whole: money(text, self.locale, self.currency, whole=whole)
        if self.of == "duration":
            return lambda text, whole: durations(text, self.locale, self.unit or "s", whole=whole)
        if self.of == "quantity":
            return lambda text, whole: quantities(text, self.locale, str(self.unit), whole=whole)
        return lambda text, whole: numerals(text, self.locale, whole=whole)

    def _is_right(self, reading: Reading | Numeral) -> bool:
        if reading.value is None or (self.decimals is not None and reading.decimals != self.decimals):
            return False
        return is_between(reading.value, *self._limits)  # type: ignore[arg-type]  # dates compare as well

    def holds(self, text: str) -> bool:
        right = [self._is_right(reading) for reading in self._read(text, True)]
        if not is_between(len(right), self.min_count, self.max_count):
            return False
        if self.which == "all":
            return all(right)
        if self.which == "any":
            return any(right)
        return bool(right) and right[0 if self.which == "first" else -1]

    def fault(self, text: str) -> str:
        readings = list(self._read(text, True))
        wrong = [reading.value for reading in readings if not self._is_right(reading)]
        if not is_between(len(readings), self.min_count, self.max_count) or not wrong:
            return f"has {len(readings)} values"
        value = self._in_words(wrong[-1] if self.which == "last" else wrong[0])
        return f"{len(wrong)} of its {len(readings)} values are not as required, such as {value}"

    def found_in(self, text: str) -> str:
        right = next((reading.value for reading in self._read(text, True) if self._is_right(reading)), None)
        return "" if right is None else f"has {self._in_words(right)}"

    def _in_words(self, value: Fraction | date | None) -> str:
        if value is None:
            return "one that cannot be read, or is in another unit"
        return value.isoformat() if isinstance(value, date) else f"{float(value):.12g}"

    def prefix_verdict(self, prefix: str) -> Verdict:
        return self._verdict(_Tally().with_more(map(self._is_right, self._read(prefix, False))))

    def resumed(self, summary: Any, text: str, /) -> Resumed | None:
        if self.of != "number":
            return None
        start, tally = summary or (0, _Tally())
        found = list(numerals(text, self.locale, whole=False, start=start))
        tally = tally.with_more(map(self._is_right, found))
        start = where_to_resume(text, found[-1].end if found else start)
        cut = max(0, start - SEEN_BEFORE)
        return Resumed(self._verdict(tally), (start - cut, tally), text[cut:])

    def _verdict(self, tally: _Tally) -> Verdict:
        """Judge a prefix by the values that no continuation changes."""
        if self.max_count is not None and tally.number > self.max_count:
            return Verdict.VIOLATED
        if (self.which == "all" and tally.right < tally.number) or (self.which == "first" and tally.first is False):
            return Verdict.VIOLATED
        decided = tally.right > 0 if self.which == "any" else self.which == "first" and tally.first is True
        enough = self.max_count is None and tally.number >= (self.min_count or 0)
        return Verdict.SATISFIED if decided and enough else Verdict.UNDECIDED


class _Tally(NamedTuple):
    """How many values there are, and how many of them are right."""

    number: int = 0
    right: int = 0
    first: bool | None = None  # whether the first one is right

    def with_more(self, right: Iterable[bool]) -> _Tally:
        more = list(right)
        first = more[0] if self.first is None and more else self.first
        return _Tally(self.number + len(more), self.right + sum(more), first)


def _iso_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if len(text) == 10 else None
    except ValueError:
        return None


def _limit(limit: int | float | str | None) -> Fraction | date | None:
    """Return a limit as an exact number, as its decimal digits say, or as a date."""
    if isinstance(limit, str):
        return _iso_date(limit)
    return None if limit is None else Fraction(str(limit))
