"""Dates in a text: ISO 8601, in digits in a locale's order, and with the month in a locale's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any

import regex

from guardwrap.documents.time_limits import check_deadline, matches
from guardwrap.rules.measures import Reading

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
