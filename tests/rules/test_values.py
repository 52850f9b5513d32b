"""Values in a range. Covers ``rules/measures.py`` and ``rules/values.py``."""

from __future__ import annotations

import time
from datetime import date
from typing import Any

import pytest
from babel import Locale
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Part, Values, Verdict
from guardwrap.constraints import parse
from guardwrap.errors import ConstraintError, GuardwrapError, Unsatisfiable
from guardwrap.rules import values
from guardwrap.rules.measures import durations, money, quantities
from guardwrap.rules.numbers import LOCALES, numerals
from guardwrap.rules.values import date_style, dates
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile

MONEY: dict[str, dict[str, list[str]]] = {
    "en": {
        "$1,234.50, -$5 or 5 EUR": ["1234.50", "-5", "5"],
        "$5-10": ["5", "10"],
        "5 try": [],
        "won 5 real games of 6 ft": [],
        "€3 million": ["3000000"],
    },
    "de": {"1.234,50 € und 5 Mio. Euro": ["1234.5", "5000000"], "5–10 €": ["5", "10"]},
    "fr": {"12 345,60 €": ["12345.6"]},
    "es": {"3 mil euros": ["3000"]},
    "pl": {"12 345,67 zł i 3 tys. złotych": ["12345.67", "3000"]},
    "ar": {"٥٠٠ دولار أمريكي": ["500"]},
    "hi": {"₹1,00,000 और 5 रुपये": ["100000", "5"]},
    "zh": {"¥5,000，300元": ["5000", "300"]},
    "ja": {"3万5千円と￥500": ["35000", "500"]},
    "pt": {"R$ 5,50 ou 10 reais": ["5.5", "10"]},
    "ru": {"5 000 руб. и 3 доллара": ["5000", "3"]},
}
DATES: dict[str, dict[str, list[str]]] = {
    "en": {"March 12, 2024; 12th of March 2024; 3/4/2025": ["2024-03-12", "2024-03-12", "2025-03-04"], "May 2024": []},
    "en-GB": {"3/4/2025 or 2025-04-03": ["2025-04-03", "2025-04-03"], "4 Sep 2025, 4 Sept. 2025": ["2025-09-04"] * 2},
    "en-IN": {"4 Sep 2025, 4 Sept. 2025": ["2025-09-04"] * 2},
    "de": {"12. März 2024, 12.03.2024 und 1. Jan. 2025": ["2024-03-12", "2024-03-12", "2025-01-01"]},
    "fr": {"le 1er mars 2024, le 12 août 2024": ["2024-03-01", "2024-08-12"]},
    "es": {"12 de marzo de 2024": ["2024-03-12"]},
    "pt": {"12 de março de 2024": ["2024-03-12"]},
    "pl": {"12 marca 2024 r.": ["2024-03-12"]},
    "ru": {"12 марта 2024 года": ["2024-03-12"]},
    "ar": {"١٢ مارس ٢٠٢٤": ["2024-03-12"]},
    "hi": {"12 मार्च 2024": ["2024-03-12"]},
    "zh": {"2024年3月12日": ["2024-03-12"]},
    "ja": {"2024年3月12日、2024/03/12": ["2024-03-12", "2024-03-12"]},
    "ko": {"2024년 3월 12일, 12024, 1 2024": ["2024-03-12"]},
    "tr": {"3 KASIM 2024, 3 Ekim 2024, 3 EKİM 2024": ["2024-11-03", "2024-10-03", "2024-10-03"]},
    "th": {"12 มีนาคม 2567": ["2024-03-12"]},
}
MINUTES: dict[str, dict[str, list[str]]] = {
    "en": {"1 hour and 30 minutes, then 45 min": ["90", "45"], "2-3 hours": ["120", "180"], "in the 1990s": []},
    "de": {"1 Stunde 30 Minuten; 2 Std.": ["90", "120"]},
    "fr": {"1 heure et 30 minutes": ["90"]},
    "es": {"2 horas y 3 minutos": ["123"]},
    "pl": {"2 godziny i 5 minut": ["125"]},
    "ru": {"2 часа 5 минут": ["125"]},
    "ar": {"3 ساعات": ["180"]},
    "hi": {"2 घंटे": ["120"]},
    "zh": {"2小时30分钟": ["150"]},
    "ja": {"2時間30分": ["150"]},
}
METERS: dict[str, dict[str, list[str]]] = {
    "en": {
        "5 km, 5 in total, 2 kg": ["5000"],
        "2–3 km": ["2000", "3000"],
        "5 km/h, 20 m/s, 5 m², 20–30 km2, 3 meters per second": [],
        "5 m/min, 3 km / 2": ["5", "3000"],
    },
    "de": {"3,5 m und 5 Kilometer": ["3.5", "5000"]},
    "fr": {"300 mètres": ["300"], "les 5 m'ont dit": []},
    "es": {"5 kilómetros": ["5000"]},
    "pl": {"5 kilometrów": ["5000"]},
    "hi": {"5 किलोमीटर": ["5000"]},
    "ar": {"5 كيلومتر": ["5000"]},
    "zh": {"5公里": ["5000"]},
    "ja": {"5キロメートル": ["5000"]},
}
LAW = {
    "number": (
        Values(max=20),
        Values(min=5, which="any"),
        Values(min=3, which="last", max_count=2),
        Values(decimals=1),
    ),
    "money": (Values("money", max=20, currency="EUR"), Values("money", min=5, which="first")),
    "date": (Values("date", min="2020-01-01"), Values("date", max="2024-06-01", which="any", min_count=2)),
    "duration": (Values("duration", max=60, unit="min"), Values("duration", min=60, which="any")),
    "quantity": (Values("quantity", max=5, unit="km"), Values("quantity", min=1, unit="km", which="first")),
}
PIECES = {
    "number": ["1", "20", ".", ",", " ", "-", "5", "000", "e", "a", " million", "万"],
    "money": ["M", "1", "20", ".", " ", "-", "$", "€", "EUR", " euro", "s", "–", "5 "],
    "date": ["12", "3", "/", "-", ".", " ", "20", "24", "March", "Mar", ", ", "年", "月", "日", "2019-01-02"],
    "duration": ["1", "90", " ", "h", "min", " and ", "hour", "s", ",", "-", "5 minutes"],
    "quantity": ["1", "9", " ", "k", "m", "/h", "²", "mm", "–", "miles", ",", "000", "."],
}


def expected(table: dict[str, list[str]]) -> dict[str, list[str]]:
    return {text: [str(values._limit(float(each))) for each in numbers] for text, numbers in table.items()}


def read(readings: Any) -> list[str]:
    return [str(each.value) for each in readings]


@pytest.mark.parametrize("locale", MONEY)
def test_money(locale: str) -> None:
    assert {text: read(money(text, locale, None, whole=True)) for text in MONEY[locale]} == expected(MONEY[locale])


@pytest.mark.parametrize("locale", DATES)
def test_dates(locale: str) -> None:
    style = date_style(locale)
    assert {text: read(dates(text, style, whole=True)) for text in DATES[locale]} == DATES[locale]


@pytest.mark.parametrize("locale", MINUTES)
def test_durations(locale: str) -> None:
    readings = {text: read(durations(text, locale, "min", whole=True)) for text in MINUTES[locale]}
    assert readings == expected(MINUTES[locale])


@pytest.mark.parametrize("locale", METERS)
def test_quantities(locale: str) -> None:
    readings = {text: read(quantities(text, locale, "m", whole=True)) for text in METERS[locale]}
    assert readings == expected(METERS[locale])


@pytest.mark.slow
@pytest.mark.parametrize("of", LAW)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_laws(of: str, data: st.DataObject) -> None:
    text = data.draw(st.lists(st.sampled_from(PIECES[of]), max_size=9).map("".join))
    for constraint in LAW[of]:
        check_constraint(constraint, [text])


def test_which() -> None:
    text = "5, 50 and 500"
    passing = {
        which: [Values(min=low, max=high, which=which).accepts(text) for low, high in ((5, 5), (50, 50), (500, 500))]
        for which in ("all", "any", "first", "last")
    }
    assert passing == {
        "all": [False] * 3,
        "any": [True] * 3,
        "first": [True, False, False],
        "last": [False, False, True],
    }
    assert [Values(min=1, which=which).accepts("none") for which in passing] == [True, False, False, False]  # type: ignore[arg-type]
    assert Values(min_count=3, max_count=3).accepts(text)
    assert not Values(max_count=2).accepts(text)
    assert Values(decimals=2).accepts("2.50")
    assert not Values(decimals=0).accepts("2.0")
    assert Values(max=0.1).accepts("0.1")


def test_attempts_end_when_a_value_is_out_of_range() -> None:
    limit = Values(max=100)
    assert [limit.verdict(prefix) for prefix in ("about 12", "about 120", "about 120.", "about 120 a")] == [
        *(Verdict.UNDECIDED,) * 3,
        Verdict.VIOLATED,
    ]
    assert Values("money", currency="EUR", max=9).verdict("only $5 a") is Verdict.VIOLATED
    assert Values("date", min="2024-01-01").verdict("on May 3, 2023.") is Verdict.VIOLATED
    assert Values("duration", max=1, unit="h").verdict("takes 2 hours to") is Verdict.VIOLATED
    assert Values(min=5, which="any").verdict("from 7 to") is Verdict.SATISFIED


def test_negative_control_a_number_that_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = numerals

    def early(text: str, locale: str, *, whole: bool, start: int = 0) -> Any:
        return everything(text, locale, start=start)

    monkeypatch.setattr(values, "numerals", early)
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(Values(min=5), ["10"])


def test_what_the_locale_does_not_write_lies_in_no_range() -> None:
    assert not Values(max=100, locale="de").accepts("1.5")
    assert not Values(max=100).accepts("1,5")
    assert not Values("date", min="2000-01-01").accepts("3/4/25")
    assert not Values("date", min="2000-01-01").accepts("2024-02-30")
    assert not Values("duration", max=3, unit="h").accepts("1:30 h")
    assert not Values("duration", max=3, unit="h", locale="fr").accepts("1h30, et 5 min")
    assert not Values("duration", max=3, unit="h").accepts("1h30m")
    assert not Values("money", max=100).accepts("$5M")
    assert not Values("money", max=100).accepts("$5-10k")
    assert Values("money", max=100).accepts("$5 a piece, $5USD, €5.")
    assert not Values("money", currency="EUR", min=1).accepts("$5")


def test_durations_in_iso_8601_are_not_read() -> None:
    assert not Values("duration", max=9, unit="h", min_count=1).accepts("PT1H30M or P1D")


@pytest.mark.parametrize("locale", LOCALES)
def test_every_locale_reads_its_months_however_they_are_capitalized(locale: str) -> None:
    style = date_style(locale)
    months = Locale.parse(locale, sep="-").months["format"]["wide"]
    for number, month in months.items():
        for word in {month, month.upper(), month.lower(), month.swapcase(), month.replace("s", "ſ")}:
            texts = [f"3 {word} 2024", f"{word} 3, 2024", f"12024 {word}", f"2024{word}"]
            read_dates = [[each.value for each in dates(text, style, whole=True)] for text in texts]
            assert not any(read_dates[2:]), style
            if not month[:1].isdecimal() and not style.buddhist:
                assert date(2024, number, 3) in read_dates[0], (style, texts)


@pytest.mark.slow
@pytest.mark.parametrize("locale", LOCALES)
@given(data=st.data())
@profile(40)
def test_no_text_is_an_error_in_any_locale(locale: str, data: st.DataObject) -> None:
    months = [form for word in date_style(locale).months for form in (word, word.upper())]
    pieces = [
        "1",
        "12",
        "2024",
        "12024",
        " ",
        ". ",
        "/",
        "-",
        ",",
        "İ",
        "ı",
        "ſ",
        "K",
        "年",
        "월",
        "日",
        "$",
        "km",
        "h",
    ]
    text = data.draw(st.lists(st.sampled_from([*pieces, *months]), max_size=8).map("".join))
    for rule in (
        Values("date", min="2024-01-01", locale=locale),
        Values(max=20, locale=locale),
        Values("money", max=20, locale=locale),
        Values("duration", max=20, locale=locale, which="last"),
        Values("quantity", max=20, unit="km", locale=locale),
    ):
        check_constraint(rule, [text])


def test_views_and_files() -> None:
    assert Values(max=5, on=Part(after="Total: ")).accepts("9 times. Total: 4")
    assert not Values(max=5, on="last_line").accepts("1\n9")
    file = parse("guardwrap: 1\nconstraint: {kind: values, of: money, max: 100, currency: EUR, locale: de}\n")
    assert file.constraint == Values("money", max=100, currency="EUR", locale="de")
    file = parse("guardwrap: 1\nconstraint: {kind: values, of: date, min: '2025-01-01'}\n")
    assert file.constraint == Values("date", min="2025-01-01")
    assert Values(max=3).fault("4 of 2") == "1 of its 2 values are not as required, such as 4"
    assert Values(max=3).fault("1,5").endswith("such as one that cannot be read, or is in another unit")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"of": "speed", "max": 1},
        {"max": "1"},
        {"max": True},
        {"max": float("nan")},
        {"max": 1, "locale": "xx"},
        {"max": 1, "currency": "EUR"},
        {"of": "money", "currency": "eur"},
        {"of": "quantity", "max": 1},
        {"of": "quantity", "max": 1, "unit": "h"},
        {"of": "duration", "max": 1, "unit": "km"},
        {"of": "date", "min": "2025-1-1"},
        {"of": "date", "min": 2025},
        {"of": "date", "min": "2025-01-01", "decimals": 1},
        {"min_count": -1},
        {"decimals": 1.5},
        {"max": 1, "which": "none"},
    ],
)
def test_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError) as caught:
        Values(**options)
    assert "\n" not in str(caught.value)


def test_contradictions_and_the_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"min": 2, "max": 1}, {"min_count": 2, "max_count": 1}):
        with pytest.raises(Unsatisfiable):
            Values(**options)  # type: ignore[arg-type]
    monkeypatch.setattr(values, "find_spec", lambda name: None)
    Values(max=1)
    with pytest.raises(ConstraintError, match=r"pip install 'guardwrap\[values\]'"):
        Values("money", max=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "9" * 1_000_000,
        "1 " * 20_000,
        "$" * 300_000,
        "1 hour and " * 9_000,
        "12 March " * 9_000,
        "1–" * 20_000,
        "1/2/" * 20_000,
    ],
)
@pytest.mark.parametrize("of", LAW)
def test_hostile_texts(of: str, text: str) -> None:
    constraint = LAW[of][0]
    start = time.process_time()
    try:
        constraint.accepts(text)
        constraint.verdict(text)
    except GuardwrapError:
        pass
    assert time.process_time() - start < 3
