"""Equations in texts. Covers ``rules/arithmetic.py``."""

import re
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Arithmetic, Part, Verdict
from guardwrap.constraints import parse
from guardwrap.errors import ConstraintError, GuardwrapError
from guardwrap.rules import arithmetic
from guardwrap.rules.arithmetic import Token, TooLarge, expression_value
from guardwrap.testing import check_constraint

RIGHT = [
    "12 × 3 = 36",
    "7*8=56",
    "100 / 8 = 12.5",
    "2 + 3 = 5 = 10/2",
    "50% = 0.5",
    "15% of 200 = 30",
    "2/3 = 0.67",
    "10/3 ≈ 3",
    "(2 + 3 = 5)",
    "**12 × 3 = 36**",
    "12 × 3 = **36** apples and 5 + 7 = 3*y",
    "- 2 + 3 = 5",
    "1. 2 + 3 = 5",
    "x - 3 = 7",
    "2x + 3 = 7",
    "sin 30 = 0.5",
    "level 5 = 10 points",
    "$3 + $4 = $7",
    "3 × -4 = -12",
    "-2^2 = -4",
    "2(3+4) = 14",
    "1,000 + 1 = 1,001",
    "2020 3 + 4 = 7",
    "so 3 + 4 = 7 apples",
    "2**10 = 1024",
    "12 x 3 = 36",
    "12 : 3 = 4",
    "f(2, 3) = 5",
    "====",
    "a == b",
    "3+4 => 7",
    "100 + 10% = 110",
    "5 = 2 + y",
    "= 36 (12 each) 6*6 = 36 (12 each)",
    "5 + 3 == 8",
    "√16 + 1 = 5",
    "x = 5",
    "12 km / 2 h = 6 km/h",
    "1 - 1/3 = 0.667",
]
"""Right, or with a side that is not arithmetic."""

WRONG = [
    "12 × 3 = 35",
    "7*8=54",
    "2 + 3 = 5 = 10/3",
    "so 3 + 4 = 8 apples",
    "(2 + 3 = 6)",
    "**12 × 3 = 35**",
    "12 × 3 = **35** apples",
    "**12 × 3 = 35** apples",
    "12 × 3 = *35* apples",
    "- 2 + 3 = 1",
    "1/0 = 5",
    "9**9**9 = 1",
    "2/3 = 0.66",
    "7/2 = 4",
    "$3 + $4 = $8",
    "x: 5 + 5 = 11.",
    "15% of 200 = 31",
    "5 = 2 + 2",
    "3 × -4 = 12",
    "1,000 + 1 = 1001.5",
    "  - 2 + 2 = 5",
    "x = 3 + 4 = 8",
    "5 + 3 == 9",
    "6*6 = 35 (12 each)",
    "1. 2 + 3 = 6",
    "9" * 2_000 + " + 1 = 2",
    "1,5 + 1 = 4",
]
PIECES = [
    "1",
    "2",
    "3",
    "=",
    "=",
    "+",
    "-",
    " ",
    "*",
    "**",
    "x",
    "(",
    ")",
    "%",
    ".",
    "/",
    "a",
    "\n",
    " of ",
    "≈",
    " m",
    ",000",
    "1. ",
]
LOCALIZED = {
    "de": ("1.000 + 0,5 = 1.000,5", "1.000 + 0,5 = 1.005"),
    "fr": ("12 000 + 1,5 = 12 001,5", "12 000 + 1,5 = 12 002,5"),
    "es": ("el 50 % de 1.200 = 600", "el 50 % de 1.200 = 500"),
    "pl": ("12 000 : 2 = 6 000", "12 000 : 2 = 7 000"),
    "ar": ("١٢ × ٣ = ٣٦", "١٢ × ٣ = ٣٥"),
    "hi": ("१,००,००० + १ = १,००,००१", "१,००,००० + १ = १,००,००२"),
    "zh": ("（１２＋３）×２＝３０。", "（１２＋３）×２＝３１。"),
    "ja": ("合計12×3＝36です。", "12 ÷ 3 ＝ 5 です。"),
}


@pytest.mark.parametrize("text", RIGHT)
def test_right_equations(text: str) -> None:
    assert Arithmetic().accepts(text)


@pytest.mark.parametrize("text", WRONG)
def test_wrong_equations(text: str) -> None:
    assert not Arithmetic().accepts(text)


@pytest.mark.parametrize("locale", LOCALIZED)
def test_every_locale(locale: str) -> None:
    right, wrong = LOCALIZED[locale]
    assert Arithmetic(locale=locale, min_count=1).accepts(right)
    assert not Arithmetic(locale=locale).accepts(wrong)


@pytest.mark.slow
@given(
    text=st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    after=st.sampled_from(["", "\n", " and so it goes on", "3"]),
)
@settings(max_examples=500, deadline=None)
def test_laws(text: str, after: str) -> None:
    check_constraint(Arithmetic(), [text + after])
    check_constraint(Arithmetic(min_count=1), [text + after])


SUMS = st.recursive(
    st.integers(0, 30).map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "**"]), inner).map(
        lambda parts: f"({''.join(parts)})"
    ),
    max_leaves=5,
)


@given(text=SUMS)
@settings(max_examples=300, deadline=None)
def test_values_are_those_of_python(text: str) -> None:
    source = "".join(f"Fraction({each})" if each.isdigit() else each for each in re.findall(r"\d+|\*\*|\D", text))
    tokens: list[Token] = [
        Fraction(each) if each.isdigit() else each.replace("**", "^") for each in re.findall(r"\d+|\*\*|\D", text)
    ]
    try:
        value = expression_value(tokens)
    except TooLarge:
        return
    if value is not None:
        assert value == eval(source, {"Fraction": Fraction})  # digits and operators only


def test_attempts_end_when_an_equation_is_wrong() -> None:
    verdicts = [Arithmetic().verdict(text) for text in ("12 × 3 = 3", "12 × 3 = 35 km", "12 × 3 = 35\n", "1 + 1 = 3 =")]
    assert verdicts == [Verdict.UNDECIDED, Verdict.UNDECIDED, Verdict.VIOLATED, Verdict.VIOLATED]
    assert Arithmetic().verdict("12 × 3 = 35 and so it goes on") is Verdict.VIOLATED


def test_negative_control_an_equation_that_may_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "_AHEAD", 0)
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(Arithmetic(), ["12 × 3 = 36"])


def test_parameters_views_and_files() -> None:
    assert Arithmetic(on=Part(after="So ")).accepts("1 + 1 = 3? So 1 + 1 = 2")
    assert not Arithmetic(min_count=1).accepts("no equation")
    assert parse("guardwrap: 1\nconstraint: {kind: arithmetic, locale: de}\n").constraint == Arithmetic(locale="de")
    fault = Arithmetic().fault("2 = 2\n1 + 1 = 3, 1 + 1 = 2")
    assert fault == "1 of 3 equations are wrong, the first in '1 + 1 = 3, 1 + 1 = 2'"
    options: dict[str, Any]
    for options in ({"locale": "xx"}, {"min_count": -1}, {"min_count": True}):
        with pytest.raises(ConstraintError):
            Arithmetic(**options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "9**9**9 = 1",
        "9" * 1_000_000 + " + 1 = 2",
        "(" * 50_000 + "1" + ")" * 50_000 + " = 1 + 0",
        "1/3+" * 50_000 + "1 = 2",
        "=1+1" * 50_000,
        "1/" + "+1/".join(map(str, range(2, 20_000))) + " = 1",
        "-" * 100_000 + "1 = 1 + 0",
        " = " * 50_000,
        "2^" * 50_000 + "2 = 1",
    ],
)
def test_hostile_texts(text: str) -> None:
    start = time.process_time()
    try:
        Arithmetic().accepts(text)
        Arithmetic().verdict(text)
    except GuardwrapError:
        pass
    assert time.process_time() - start < 3
