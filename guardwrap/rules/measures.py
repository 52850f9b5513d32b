"""Numbers with what they measure: amounts of money, durations and quantities with a unit, in a locale's words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import regex

from guardwrap.rules.numbers import (
    Numeral,
    Unsettled,
    WordTable,
    after_space,
    is_edge,
    numerals,
    sign_before,
)


class Reading(NamedTuple):
    """A value in a text."""

    # the value, in the unit that is asked for; None if it cannot be read, or not in that unit
    value: Fraction | date | None
    decimals: int = 0  # number of digits after the decimal separator


class Unit(NamedTuple):
    """A unit of measurement."""

    dimension: str  # what it measures
    factor: Fraction  # its size in the dimension's base unit
    cldr: str  # its name in Unicode's CLDR
    symbols: tuple[str, ...]  # symbols that every locale knows, in lower case


UNITS = {
    name: Unit(dimension, Fraction(factor), cldr, tuple(symbols.split()))
    for dimension, name, factor, cldr, symbols in (
        ("length", "km", "1000", "length-kilometer", "km ㎞"),
        ("length", "m", "1", "length-meter", "m"),
        ("length", "cm", "1/100", "length-centimeter", "cm ㎝"),
        ("length", "mm", "1/1000", "length-millimeter", "mm ㎜"),
        ("length", "mi", "1609.344", "length-mile", "mi"),
        ("length", "yd", "0.9144", "length-yard", "yd"),
        ("length", "ft", "0.3048", "length-foot", "ft ′"),
        ("length", "in", "0.0254", "length-inch", "″"),
        ("mass", "t", "1000", "mass-tonne", "t"),
        ("mass", "kg", "1", "mass-kilogram", "kg ㎏"),
        ("mass", "g", "1/1000", "mass-gram", "g"),
        ("mass", "mg", "1/1000000", "mass-milligram", "mg ㎎"),
        ("mass", "lb", "0.45359237", "mass-pound", "lb lbs"),
        ("mass", "oz", "0.028349523125", "mass-ounce", "oz"),
        ("volume", "l", "1", "volume-liter", "l ℓ liters litres"),
        ("volume", "ml", "1/1000", "volume-milliliter", "ml"),
        ("volume", "gal", "3.785411784", "volume-gallon", "gal"),
        ("area", "km2", "1000000", "area-square-kilometer", "km² km2"),
        ("area", "m2", "1", "area-square-meter", "m² m2 ㎡"),
        ("area", "ha", "10000", "area-hectare", "ha"),
        ("speed", "km/h", "5/18", "speed-kilometer-per-hour", "km/h kph"),
        ("speed", "m/s", "1", "speed-meter-per-second", "m/s"),
        ("speed", "mph", "0.44704", "speed-mile-per-hour", "mph"),
        ("temperature", "C", "1", "temperature-celsius", "°c ℃"),
        ("temperature", "F", "5/9", "temperature-fahrenheit", "°f ℉"),
        ("share", "%", "1", "concentr-percent", "% ٪ ％ percent"),
        ("data", "B", "1", "digital-byte", "bytes"),
        ("data", "kB", "1000", "digital-kilobyte", "kb"),
        ("data", "MB", "1000000", "digital-megabyte", "mb"),
        ("data", "GB", "1000000000", "digital-gigabyte", "gb"),
        ("data", "TB", "1000000000000", "digital-terabyte", "tb"),
        ("energy", "kWh", "3600000", "energy-kilowatt-hour", "kwh"),
        ("energy", "kJ", "1000", "energy-kilojoule", "kj"),
        ("energy", "kcal", "4184", "energy-kilocalorie", "kcal"),
        ("power", "W", "1", "power-watt", "w"),
        ("power", "kW", "1000", "power-kilowatt", "kw"),
        ("time", "ms", "1/1000", "duration-millisecond", "ms"),
        ("time", "s", "1", "duration-second", "s sec secs"),
        ("time", "min", "60", "duration-minute", "min mins 分钟 分鐘"),
        ("time", "h", "3600", "duration-hour", "h hrs 個小時 个小时"),
        ("time", "d", "86400", "duration-day", ""),
        ("time", "week", "604800", "duration-week", ""),
        ("time", "month", "2592000", "duration-month", ""),
        ("time", "year", "31536000", "duration-year", ""),
    )
}


_ZERO = {"F": Fraction(160, 9)}
"""What of a temperature's size in the base unit is below the base unit's zero."""


@cache
def _unit_words(dimension: str, locale: str) -> WordTable:
    """Return the words for units of a dimension, and others, which may be longer (km/h), with the unit's name each."""
    from babel.units import format_unit

    words: dict[str, str] = {}
    tag = locale.replace("-", "_")
    for name, unit in sorted(UNITS.items(), key=lambda each: each[1].dimension != dimension):
        for length in ("short", "long"):
            for number in (0, 1, 2, 3, 5, 11, 1.5):
                phrase = format_unit(number, unit.cldr, length=length, format="0.#", locale=tag)
                word = regex.sub(r"^[\d.,٫]+|[\u200e\u200f]|[\d.,٫]+$", "", phrase).strip()
                # A word before the number, or of one letter, or that has no number, is left out.
                if (len(word) > 1 or not is_edge(word)) and phrase[:1].isdecimal() and word.lower() != "in":
                    words.setdefault(word.replace("\u00a0", " ").lower(), name)
        symbols = dict.fromkeys(unit.symbols, name)
        words = words | symbols if unit.dimension == dimension else symbols | words
    return WordTable(words)


CURRENCIES = {
    "AUD": "a$",
    "BRL": "r$ reais",
    "CAD": "c$",
    "CHF": "franken",
    "CNY": "元 人民币 块 块钱",
    "CZK": "kč",
    "DKK": "",
    "EGP": "",
    "EUR": "€ euro euros euros евро 欧元 歐元 ユーロ 유로 يورو यूरो avro ยูโร",
    "GBP": "£ 英镑",
    "HKD": "hk$",
    "HUF": "forint",
    "IDR": "",
    "ILS": "₪",
    "INR": "₹ rs. rupee rupees रुपये रुपया रुपए",
    "JPY": "円 yen 日元 엔",
    "KRW": "₩ 원 韩元 ウォン",
    "MXN": "mx$",
    "NOK": "",
    "NZD": "nz$",
    "PLN": "zł złoty złote złotych zloty",
    "RUB": "₽ руб. руб рубль рубля рублей rubel",
    "SAR": "",
    "SEK": "",
    "SGD": "s$",
    "THB": "฿ baht บาท",
    "TRY": "₺ tl lira",
    "UAH": "₴ грн",
    "USD": "us$ dollar dollars dólar dólares dolar dolary dolarów доллар доллара долларов 美元 ドル 달러 دولار डॉलर "
    "ดอลลาร์ us-dollar",
    "VND": "₫",
    "ZAR": "",
}
_UNKNOWN = "?"


@cache
def _currency_words(locale: str) -> WordTable:
    """Return symbols, codes and names of currencies, with the code each.

    A symbol of several currencies is the one of the locale's, or of none.
    """
    from babel.numbers import get_currency_name, get_currency_symbol

    tag = locale.replace("-", "_")
    words = {"$": _UNKNOWN, "¥": _UNKNOWN, "￥": _UNKNOWN, "kr": _UNKNOWN, "kr.": _UNKNOWN}
    for code, own in CURRENCIES.items():
        names = {get_currency_name(code, count=number, locale=tag).lower() for number in (1, 2, 3, 5, 1.5)}
        symbol = get_currency_symbol(code, tag).lower().replace("\u200f", "").strip()
        shared = {"¥": ("¥", "￥"), "￥": ("¥", "￥")}.get(symbol, (symbol,))
        for word in {code.lower(), *names, *own.split(), *shared}:
            words[word] = code
    if locale == "pt":
        words["real"] = "BRL"  # in English, it is a common word
    return WordTable(words)


def _is_code_in_capitals(text: str, start: int, end: int, code: str) -> bool:
    word = text[start:end]
    return word.upper() != code or word == code


def money(text: str, locale: str, currency: str | None, *, whole: bool) -> Iterator[Reading]:
    """Yield the amounts of money of a text; without a value if they are in another currency."""
    words = _currency_words(locale)
    waiting: list[Numeral] = []
    last_end, last_code = -1, None
    for number in numerals(text, locale, whole=whole):
        start = number.start
        place = start - (text[start - 1 : start] in tuple(" \u00a0\u202f"))
        before = words.before(text, place)
        code: str | None = None
        if before is not None and _is_code_in_capitals(text, before[0], place, before[1]):
            code = before[1]
            if sign_before(text, before[0]) < before[0] and number.value is not None:
                number = number._replace(value=-abs(number.value))
        after = None
        try:
            touches = is_edge(text[number.end : number.end + 1]) and words.at(text, number.end, whole=whole) is None
            if code is None:
                after = words.at(text, after_space(text, number.end, whole=whole), whole=whole)
            if code is None and after is None and _continues_range(text, number.end, whole=whole):
                waiting.append(number)
                continue
        except Unsettled:
            return
        if after is not None:
            first = number.end + (text[number.end : number.end + 1].isspace())
            code = after[1] if _is_code_in_capitals(text, first, after[0], after[1]) else None
        if code is None and last_code is not None and _DASH.fullmatch(text, last_end, start):
            code = last_code
        if touches:  # $5M
            number = number._replace(value=None)
        last_end, last_code = number.end, code
        if code is not None:
            for each in (*waiting, number):
                yield Reading(each.value if currency in (None, code) else None, each.decimals)
        waiting = []


_DASH = regex.compile(r"\s?[-–—~～〜]\s?")
_RANGE = regex.compile(r"\s?[-–—~～〜]\s?\p{Nd}")


def _continues_range(text: str, end: int, *, whole: bool) -> bool:
    """Whether a range follows whose unit comes later, as in ``5–10 km``."""
    match = _RANGE.match(text, end, partial=not whole)
    if match is not None and match.partial:
        raise Unsettled
    return match is not None


def _measured(text: str, locale: str, dimension: str, *, whole: bool) -> Iterator[tuple[Numeral, str, int]]:
    """Yield numbers with the names of their units, which are of one dimension, and where these end."""
    words = _unit_words(dimension, locale)
    waiting: list[Numeral] = []
    for number in numerals(text, locale, whole=whole):
        try:
            after = words.at(text, after_space(text, number.end, whole=whole), whole=whole)
            if after is None and _continues_range(text, number.end, whole=whole):
                waiting.append(number)
                continue
        except Unsettled:
            return
        if after is not None and text[number.end : after[0]] == "s":  # the 1990s
            after = None
        if after is not None and UNITS[after[1]].dimension == dimension:
            if regex.match(r"\p{Nd}:", text[max(0, number.start - 2) : number.start]):  # 1:30 h
                number = number._replace(value=None)
            for each in (*waiting, number):
                yield each, after[1], after[0]
        waiting = []


def _converted(number: Numeral, name: str, unit: str) -> Fraction | None:
    """Return a number's value in another unit of its dimension."""
    if number.value is None:
        return None
    return (number.value * UNITS[name].factor - _ZERO.get(name, 0) + _ZERO.get(unit, 0)) / UNITS[unit].factor


def quantities(text: str, locale: str, unit: str, *, whole: bool) -> Iterator[Reading]:
    """Yield the quantities of a text that have the dimension of a unit, in this unit."""
    for number, name, _ in _measured(text, locale, UNITS[unit].dimension, whole=whole):
        yield Reading(_converted(number, name, unit), number.decimals)


_NEXT_PART = regex.compile(r"\s?(?:,|and|und|et|y|e|i|и|en|ve|و|और)?\s?\p{Nd}")


def durations(text: str, locale: str, unit: str, *, whole: bool) -> Iterator[Reading]:
    """Yield the durations of a text in a unit of time. Parts such as "1 hour and 30 minutes" are one duration.

    One that digits follow directly, as in ``1h30``, has no value.
    """
    total: Fraction | None = None
    decimals, last, end = 0, "", -1
    for number, name, after in _measured(text, locale, "time", whole=whole):
        value = _converted(number, name, unit)
        joined = (
            last != ""
            and UNITS[name].factor < UNITS[last].factor
            and (match := _NEXT_PART.match(text, end)) is not None
            and match.end() - 1 == number.start
        )
        if joined:
            total = None if total is None or value is None else total + value
        else:
            if last:
                yield Reading(None if text[end : end + 1].isdecimal() else total, decimals)
            total = value
        decimals, last, end = number.decimals, name, after
    # Another part may follow the last one, or have begun.
    if last and (whole or _NEXT_PART.match(text, end, partial=True) is None):
        yield Reading(None if text[end : end + 1].isdecimal() else total, decimals)
