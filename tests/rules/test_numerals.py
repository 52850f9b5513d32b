"""Numbers as locales write them, and which of a prefix's numbers no continuation changes."""

from fractions import Fraction

import pytest
from babel import Locale
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap.rules import numbers as module
from guardwrap.rules.numbers import LOCALES, Unsettled, WordTable, numerals

READ: dict[str, dict[str, list[str | None]]] = {
    "en": {
        "1,234.5 and -3": ["1234.5", "-3"],
        "12.": ["12"],
        "1,234,567": ["1234567"],
        "10-5 is 5": ["10", "5", "5"],
        "from −2 to +3": ["-2", "3"],
        "H2O and x2": [],
        "1st, 5km": ["1", "5"],
        "1e5 1.5e-3": ["100000", "0.0015"],
        "5 million, 2 bn": ["5000000", "2000000000"],
        "5 millionaires": ["5"],
        "1,23": [None],
        "1.234,5": [None],
        "v 1.2.3": ["1", "2", "3"],
        "1, 2, 3": ["1", "2", "3"],
        "1,00,000": [None],
        "1e9999": [None],
    },
    "de": {
        "1.234": ["1234"],
        "1.234,5": ["1234.5"],
        "1,5": ["1.5"],
        "1.5": [None],
        "24.12.2024": ["24", "12", "2024"],
        "3 Mio. Euro, 2,5 Milliarden": ["3000000", "2500000000"],
        "1 234 567": ["1", "234", "567"],
        "1\u202f234\u202f567": ["1234567"],
    },
    "de-CH": {"1'234.50": ["1234.5"], "1’234’567": ["1234567"]},
    "fr": {"12 345,6": ["12345.6"], "2020 300": ["2020", "300"], "12 34": ["12", "34"], "1\u202f234": ["1234"]},
    "es": {"1.234,5 y 3 mil": ["1234.5", "3000"], "2 mil millones": ["2000000000"]},
    "pl": {"12 345,67 zł i 3 tys. osób": ["12345.67", "3000"], "5 milionów": ["5000000"]},
    "ru": {"1 234,5 и 2 млн": ["1234.5", "2000000"]},
    "ar": {"١٬٢٣٤٫٥": ["1234.5"], "و5": ["5"], "٣ مليون": ["3000000"], "1,234.5": ["1234.5"]},
    "hi": {"१,००,०००": ["100000"], "12,34,567.5": ["1234567.5"], "३ लाख": ["300000"]},
    "en-IN": {"1,00,000 and 2 crore": ["100000", "20000000"]},
    "ja": {
        "3万5000円": ["35000"],
        "１，２３４円": ["1234"],
        "1兆2億": ["1000200000000"],
        "第3章": ["3"],
        "１２．５": ["12.5"],
    },
    "zh": {"共5人": ["5"], "3万亿": ["3000000000000"], "1.5亿": ["150000000"], "3千5百": ["3500"]},
    "ko": {"5만 명": ["50000"]},
    "tr": {"1.234,5 ve 5 bin": ["1234.5", "5000"]},
}
PIECES = [
    "1",
    "23",
    "000",
    ",",
    ".",
    " ",
    "-",
    "–",
    "e",
    "x",
    "million",
    "万",
    "千",
    "\u202f",
    "５",
    "，",
    "٣",
    "٬",
    "円",
    "'",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


def values(text: str, locale: str) -> list[Fraction | None]:
    return [each.value for each in numerals(text, locale)]


@pytest.mark.parametrize("locale", READ)
def test_numbers_are_read_as_the_locale_writes_them(locale: str) -> None:
    expected = {
        text: [None if each is None else Fraction(each) for each in numbers] for text, numbers in READ[locale].items()
    }
    assert {text: values(text, locale) for text in READ[locale]} == expected


@pytest.mark.parametrize("locale", LOCALES)
def test_separators_are_those_of_unicode(locale: str) -> None:
    symbols = Locale.parse(locale, sep="-").number_symbols["latn"]
    assert symbols["decimal"] == LOCALES[locale].decimal
    assert symbols["group"] in LOCALES[locale].groups


@pytest.mark.parametrize("locale", ["en", "de", "fr", "hi", "ja"])
@given(text=TEXTS)
@settings(max_examples=200, deadline=None)
def test_settled_numbers_stay(locale: str, text: str) -> None:
    final = list(numerals(text, locale))
    for end in range(len(text) + 1):
        settled = list(numerals(text[:end], locale, whole=False))
        assert settled == final[: len(settled)]


def test_negative_control_what_may_continue_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_require_settled", lambda *arguments, **options: None)
    assert [each.value for each in numerals("12.", "en", whole=False)] == [12]  # it may become 12.5


def test_most_numbers_settle_soon() -> None:
    assert [each.value for each in numerals("12 apples", "en", whole=False)] == [12]
    assert [each.value for each in numerals("12 a", "en", whole=False)] == [12]
    assert list(numerals("12 m", "en", whole=False)) == []  # million
    assert list(numerals("12.", "en", whole=False)) == []


def test_words() -> None:
    words = WordTable({"km": 1, "kmh": 2, "円": 3})
    assert words.at("5 KM.", 2) == (4, 1)
    assert words.at("5 kmh", 2) == (5, 2)
    assert words.at("5 kmx", 2) is None
    assert words.at("円です", 0) == (1, 3)
    assert words.before("a km", 4) == (2, 1)
    assert words.before("akm", 3) is None
    with pytest.raises(Unsettled):
        words.at("k", 0, whole=False)


@pytest.mark.parametrize("text", ["9" * 1_000_000, "1," * 300_000, "1 000 " * 10_000, "9e" * 10_000, "１，" * 100_000])
@pytest.mark.parametrize("locale", ["en", "fr", "ja"])
def test_long_texts_are_read_in_linear_time(text: str, locale: str) -> None:
    assert all(each.value is None or each.value < 10**1000 for each in numerals(text, locale))
