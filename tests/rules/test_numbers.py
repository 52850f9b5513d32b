"""Numbers by locale, the same in every prefix that settles them, and numbers that must occur in a source."""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import pytest
from babel import Locale
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Draw, NumbersFrom, Part, Verdict
from guardwrap.constraints import parse
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.verdicts import Context
from guardwrap.errors import ConstraintError, GuardwrapError
from guardwrap.rules import numbers
from guardwrap.rules import numbers as module
from guardwrap.rules.numbers import LOCALES, Unsettled, WordTable, numerals
from guardwrap.testing import check_constraint

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
        "-.5, $.50, (.05) .5 million x.5 so.5 ..5": ["-0.5", "0.5", "0.05", "500000", "5", "5", "5"],
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
    "$",
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


SOURCE = "Sales rose from 1,000 to 1250.50 (-5 % in 2023)."
SOURCE_PIECES = st.lists(st.sampled_from([*"15 .,-\n)", "000", "1,000", "1250.5", "2024", "million"]), max_size=10).map(
    "".join
)


@pytest.mark.parametrize(
    ("rule", "accepted", "rejected"),
    [
        ({}, ["1000, 1250.5 or 1,250.50", "5 percent", "none", "H2O"], ["1001", "1.000", "5 million", "2024", "1. It"]),
        ({"ignore": ["years"]}, ["in 1999"], ["1899", "1. It", "2,023.5", "2,024"]),
        ({"ignore": ["list_markers"]}, ["1. It\n 2) It", "> 3. It", "3、"], ["It 1. It", "2024. It", "1: It"]),
        ({"locale": "de", "source_locale": "en"}, ["1.000 oder 1.250,5"], ["1,000", "1.250.50"]),
        ({"source": ["7", "8"]}, ["8 and 7"], ["9"]),
        ({"source": "1.5 Liter", "locale": "de"}, ["1.5"], ["1,5", "15"]),
        ({"source": "3万円", "locale": "ja"}, ["30,000円", "３００００"], ["3円"]),
        ({"source": "5 lakh", "locale": "en-IN"}, ["5,00,000"], ["5"]),
        ({"source": "१२", "locale": "hi"}, ["12"], ["13"]),
        ({"source": "12 000", "locale": "fr"}, ["12000", "12 000"], ["12"]),
        ({"source": "12 000", "locale": "pl"}, ["12 tys."], ["12"]),
        ({"source": "1.200", "locale": "es"}, ["1200"], ["1,2"]),
        ({"source": "١٢", "locale": "ar"}, ["12"], ["21"]),
        ({"source": "三百 300", "locale": "zh"}, ["3百"], ["3"]),
    ],
)
def test_what_is_accepted(rule: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    constraint = NumbersFrom(**({"source": SOURCE} | rule))
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []
    check_constraint(constraint, [*accepted, *rejected])


@pytest.mark.slow
@given(text=SOURCE_PIECES)
@settings(max_examples=200, deadline=None)
def test_laws(text: str) -> None:
    check_constraint(NumbersFrom(SOURCE, ignore=["years", "list_markers"]), [text])
    check_constraint(NumbersFrom(SOURCE, on="lines"), [text])
    check_constraint(NumbersFrom(SOURCE, on=Part(after=")", missing="pass")), [text])


@given(prompt=SOURCE_PIECES, text=SOURCE_PIECES)
@settings(max_examples=200, deadline=None)
def test_the_prompt_as_the_source(prompt: str, text: str) -> None:
    rule = NumbersFrom()
    holds = run_check(rule, [Draw(prompt, (), text)])[0]
    assert holds == NumbersFrom(prompt).accepts(text)
    for end in range(len(text) + 1):
        verdict = rule.monitor_in(Context(prompt=prompt)).read(text[:end]).verdict
        assert verdict is Verdict.UNDECIDED or not holds
        assert rule.monitor_in(Context()).read(text[:end]).verdict is Verdict.UNDECIDED


def test_prompts_are_not_mixed_up() -> None:
    draws = [Draw("7", (), "7"), Draw("8", (), "7"), Draw("7", (), "8")]
    assert run_check(NumbersFrom(), draws) == [True, False, False]


def test_attempts_end_when_a_number_does_not_occur() -> None:
    rule = NumbersFrom(SOURCE)
    verdicts = [rule.verdict(text).name for text in ("about 1", "about 10", "about 10 p", "about 1000 p")]
    assert verdicts == ["UNDECIDED", "UNDECIDED", "VIOLATED", "UNDECIDED"]


def test_negative_control_a_number_that_may_grow() -> None:
    unsettled = patch.object(numbers, "numerals", lambda text, locale, whole=True: numerals(text, locale))
    with unsettled, pytest.raises(AssertionError, match="unsound"):
        check_constraint(NumbersFrom(SOURCE), ["1000"])


def test_parameters_and_files() -> None:
    file = parse("guardwrap: 1\nconstraint: {kind: numbers_from, source: ['1', '2'], ignore: [years]}\n")
    assert file.constraint == NumbersFrom(["1", "2"], ignore=["years"])
    assert parse("guardwrap: 1\nconstraint: {kind: numbers_from}\n").constraint == NumbersFrom()
    assert "7" in NumbersFrom("8").fault("7 is new")
    options: dict[str, Any]
    for options in ({"source": 5}, {"source": []}, {"ignore": ["dates"]}, {"ignore": "years"}, {"locale": "xx"}):
        with pytest.raises(ConstraintError):
            NumbersFrom(**options)
    with pytest.raises(ConstraintError, match="source_locale"):
        NumbersFrom("1", source_locale="xx")


@pytest.mark.parametrize("text", ["1." * 100_000, "9" * 1_000_000, "\n" * 500_000 + "7", "\n 1) " * 20_000])
def test_hostile_texts(text: str) -> None:
    start = time.process_time()
    rule = NumbersFrom("1", ignore=["list_markers", "years"])
    try:
        rule.accepts(text)
        rule.verdict(text)
    except GuardwrapError:
        pass
    assert time.process_time() - start < 3
