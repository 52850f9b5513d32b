"""The case of letters, and texts that are one of several, with sound verdicts on every prefix."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Case, OneOf, Verdict
from guardwrap.errors import ConstraintError
from guardwrap.testing import check_constraint

CASES = {
    "upper": ({"TEA AT 5 O'CLOCK", "ÄÖ 茶", "I"}, {"Tea", "ß", "", "茶", "12", "ǅ"}),
    "lower": ({"tea at 5", "straße 茶"}, {"Tea", "", "12", "İ", "ǅ"}),
    "title": ({"A Cup Of Tea", "NASA's 5th Cup", "O'clock", "茶 Tea", "ÄB"}, {"A cup", "tea", "", "Well-known", "12"}),
}


@pytest.mark.parametrize("letters", CASES)
def test_which_texts_are_in_a_case(letters: Any) -> None:
    accepted, rejected = CASES[letters]
    assert {text for text in accepted | rejected if Case(letters).accepts(text)} == accepted


@pytest.mark.parametrize("letters", CASES)
@given(text=st.text(alphabet="aA1 '’-\u0301ßǅİ茶_\n", max_size=10))
def test_verdicts_on_cases_are_sound(letters: Any, text: str) -> None:
    check_constraint(Case(letters), [text])
    if letters == "upper" and "ǅ" not in text:
        cased = [char for char in text if char.lower() != char.upper()]
        assert Case(letters).accepts(text) is (bool(cased) and not any(map(str.islower, cased)))


def test_an_attempt_ends_at_the_first_wrong_letter() -> None:
    for letters, (undecided, dead) in {"upper": ("AB", "ABc"), "lower": ("a", "aB"), "title": ("Ab C", "Ab c")}.items():
        rule = Case(letters)  # type: ignore[arg-type]
        assert (rule.verdict(undecided), rule.verdict(dead)) == (Verdict.UNDECIDED, Verdict.VIOLATED)


TEXTS = ["yes", "no", "Not sure", "Straße"]


@pytest.mark.parametrize("ignore_case", [False, True])
@given(text=st.lists(st.sampled_from([*TEXTS, *"yesnoNSt ß\n", "SS", "  "]), max_size=4).map("".join))
def test_one_of_several_texts(ignore_case: bool, text: str) -> None:
    rule = OneOf(TEXTS, ignore_case=ignore_case)
    options = [each.casefold() for each in TEXTS] if ignore_case else TEXTS
    assert rule.accepts(text) is ((text.casefold() if ignore_case else text).strip() in options)
    check_constraint(rule, [text])
    whole = rule.accepts(text)
    assert whole or rule.verdict(text) is not Verdict.SATISFIED


def test_an_attempt_ends_when_none_of_the_texts_is_left() -> None:
    rule = OneOf(TEXTS)
    verdicts = {text: rule.verdict(text) for text in ("", " ", "Not", "Not ", "no ", "no x", "Y")}
    assert {text for text, verdict in verdicts.items() if verdict is Verdict.VIOLATED} == {"no x", "Y"}
    assert OneOf(["yes"], ignore_case=True).verdict("YE") is Verdict.UNDECIDED


@pytest.mark.parametrize("texts", [[], "yes", [""], [" a"], [1], None, {"a"}])
def test_mistakes(texts: Any) -> None:
    with pytest.raises(ConstraintError, match="texts must be a list"):
        OneOf(texts)
    with pytest.raises(ConstraintError, match="did you mean 'upper'"):
        Case("uper")  # type: ignore[arg-type]
