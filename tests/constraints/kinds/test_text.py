"""Regex, Keyword and Length on whole texts, and invalid parameters."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import pkgutil
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import guardwrap.constraints
from guardwrap import Case, OneOf
from guardwrap.constraints import Keyword, Length, Regex, Verdict
from guardwrap.constraints.kinds.text import luhn
from guardwrap.constraints.regex_analysis import _items
from guardwrap.errors import CheckFailed, ConstraintError, Unsatisfiable
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import AWKWARD_PATTERNS, PIECES, patterns, profile

MODULES = [module.name for module in pkgutil.walk_packages(guardwrap.constraints.__path__, "guardwrap.constraints.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples_in_docstrings():
    found = [
        len(test.examples) for name in MODULES for test in doctest.DocTestFinder().find(importlib.import_module(name))
    ]
    assert sum(found) >= 4


# --------------------------------------------------------------------------------------------------------------- Regex


@pytest.mark.slow
@profile(1000)
@given(
    st.text(max_size=12)
    | st.lists(st.sampled_from([*PIECES, *"()[]{}|*+?^$\\<>=!:#P&~"]), max_size=9).map("".join)
    | patterns()
)
def test_any_string_is_a_pattern_or_a_constraint_error(pattern):
    try:
        constraint = Regex(pattern, timeout=0.05)
    except ConstraintError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        return
    with contextlib.suppress(CheckFailed):
        constraint.accepts("ab 1")


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a**",
        "[",
        r"\p{}",
        "(?V1)a",
        "(?P<1>a)",
        r"\L<w>",
        r"(?&x)",
        "a{99999999999999}",
        "a{1000000}",
        "(?(9)a)",
        "(?<=",
        "\\",
    ],
)
def test_invalid_patterns(pattern):
    with pytest.raises(ConstraintError, match="regular expression") as caught:
        Regex(pattern)
    assert pattern[:5] in str(caught.value).replace("\\\\", "\\")


@pytest.mark.parametrize(
    "pattern",
    [
        "(((a{1000}){1000}){1000}){1000}",
        "(?:a{1000}b){1000}",
        "(?x) ( a {1000} # ) \n ){1000}",
        "[)]{400}(?:[(]{400}x){1000}",
        r"(\({1000}){1000}",
        "[[:alpha:]]{1000000}",
        "(" * 50 + "a" + "){100}" * 50,
    ],
)
def test_patterns_that_would_fill_the_memory_are_refused_at_once(pattern):
    start = time.perf_counter()
    with pytest.raises(ConstraintError, match="at most 100000"):
        Regex(pattern)
    assert time.perf_counter() - start < 5


def test_ordinary_patterns_are_small():
    assert max(map(_items, AWKWARD_PATTERNS)) < 100


def test_long_ordinary_patterns_are_not_refused():
    words = "|".join(f"word{i}" for i in range(5000))
    assert Regex(rf"\b(?:{words})\b").accepts("a word4711.")
    assert Regex(r"\d{4}[ -]?" * 12).accepts("1234 " * 12)
    assert Regex("a{0,1000}b{1,500}").accepts("ab")


def test_compiling_leaves_the_users_random_numbers_alone():
    random.seed(1)
    state = random.getstate()
    for i in range(1200):
        Regex(f"a{i}"), Keyword(f"a{i}").accepts("a")
    assert random.getstate() == state


def test_catastrophic_pattern_fails_quickly():
    constraint = Regex(r"^(?:\w|\w\w)+$", timeout=0.2)
    text = "a" * 5000 + "!"
    start = time.perf_counter()
    with pytest.raises(CheckFailed, match=r"took more than 0\.2 s") as caught:
        constraint.accepts(text)
    assert "aaa" not in str(caught.value)
    assert time.perf_counter() - start < 10
    start = time.perf_counter()
    for on in ("completion", "lines", "sentences", "first_sentence"):
        assert Regex(r"^(?:\w|\w\w)+$", timeout=0.2, on=on).verdict(text + "\n") is Verdict.UNDECIDED
    assert Regex("(?:a|aa)+b", match="fullmatch").verdict("a" * 60) is Verdict.UNDECIDED
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("4111 1111 1111 1111", True),
        ("4111 1111 1111 1112", False),
        ("18", True),
        ("0", True),
        ("", False),
        ("x", False),
        ("٠", True),
    ],
)
def test_luhn(text, valid):
    assert luhn(text) is valid


def test_checksum_looks_at_every_match():
    cards = Regex(r"\b(?:\d[ -]?){13,19}\b", checksum="luhn")
    assert cards.accepts("no 4111 1111 1111 1112 but 4111-1111-1111-1111.")
    assert not cards.accepts("4111 1111 1111 1112")
    assert (~cards).verdict("pay 4111 1111 1111 1111 " + "and that is all there is to say.") is Verdict.VIOLATED


# ------------------------------------------------------------------------------------------------------------- Keyword


@pytest.mark.parametrize(
    ("constraint", "accepted", "rejected"),
    [
        (Keyword("cup"), ["Cup", "a cup.", "CUP-cake", "(cup)"], ["", "cups", "hiccup", "cup_", "cup1"]),
        (Keyword("cup", whole_words=False), ["hiccups"], ["cap"]),
        (Keyword("Cup", case_sensitive=True), ["Cup"], ["cup", "CUP"]),
        (Keyword(["a b", "c"]), ["x a b", "C", "a\n b"], ["ab", "a-b"]),
        (Keyword("a b", spacing="exact"), ["x a b"], ["a  b", "a\nb"]),
        (Keyword(["a", "b"], match="all"), ["b a"], ["a", "b", ""]),
        (Keyword(["a", "b"], match="none"), ["", "ab"], ["a", "x b"]),
        (Keyword(["a", "b"], min_count=2), ["a b", "a a"], ["a", "ab"]),
        (Keyword(["a", "b"], match="all", min_count=2), ["a b a b"], ["a a b", "a b"]),
        (Keyword(["a", "b"], max_count=1), ["", "a", "b"], ["a b", "a a"]),
        (Keyword(["a", "b"], min_count=1, max_count=1), ["a", "b"], ["", "a b", "a a"]),
        (Keyword("a", max_count=0), ["", "b"], ["a"]),
        (Keyword("a", min_count=0, max_count=1), ["", "a"], ["a a"]),
        (Keyword("a", min_count=0, max_count=0), ["", "b"], ["a"]),
        (Keyword(["ab", "abc"], max_count=1, whole_words=False), ["abc"], ["abab"]),
        (Keyword("aa", max_count=1, whole_words=False), ["aaa"], ["aaaa"]),
        (Keyword("ΣΑΣ"), ["σας"], ["σα"]),
        (Keyword("c++"), ["C++ and C", "c++"], ["c+", "cc"]),
        (Keyword(".*"), ["a .*"], ["abc"]),
    ],
    ids=repr,
)
def test_keywords(constraint, accepted, rejected):
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []


def test_contradictory_counts():
    with pytest.raises(Unsatisfiable):
        Keyword("a", min_count=3, max_count=2)
    with pytest.raises(Unsatisfiable):
        Keyword("a", min_count=1, max_count=0)


# -------------------------------------------------------------------------------------------------------------- Length


@pytest.mark.parametrize(
    ("constraint", "accepted", "rejected"),
    [
        (Length(min=2, max=3), ["ab", "a🙂", "e\u0301"], ["", "a", "abcd"]),
        (Length(max=0), [""], ["a"]),
        (Length(max=2, unit="words"), ["", "a b", " a\n\tb "], ["a b c"]),
        (Length(min=2, unit="sentences"), ["Ab. Cd.", "a\nb"], ["A", "Mr. B", "A. B"]),
        (Length(max=2, unit="lines"), ["", "a", "a\nb", "a\r\nb", "a\nb\n"], ["a\n\nb", "a\nb\nc"]),
        (Length(max=3, on="lines"), ["", "abc\n\nabc", "\n\n"], ["a\nabcd"]),
        (Length(min=1, on="lines"), ["a"], ["", "\n"]),
        (Length(max=1, unit="words", on="last_sentence"), ["A b c. D", "A b c.\nD.\n"], ["A. B c."]),
    ],
    ids=repr,
)
def test_lengths(constraint, accepted, rejected):
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []


def test_tokens():
    constraint = Length(min=2, max=3, unit="tokens")
    drawn = [Draw("", tuple(range(n)), "x" * n) for n in range(5)]
    assert constraint.check(drawn) == [False, False, True, True, False]
    with pytest.raises(CheckFailed, match="counts tokens"):
        constraint.accepts("some text")
    with pytest.raises(ConstraintError, match="requires on='completion'"):
        Length(max=3, unit="tokens", on="lines")


def test_contradictory_length():
    with pytest.raises(Unsatisfiable):
        Length(min=3, max=2)


# --------------------------------------------------------------------------------------------------------------- views


@pytest.mark.parametrize(
    ("on", "accepted", "rejected"),
    [
        ("completion", ["b x"], ["", "b"]),
        ("full", ["", "b"], []),
        ("first_sentence", ["x. b", "x\nb"], ["b. x", ""]),
        ("last_sentence", ["b. x", "b\nx\n"], ["x. b", ""]),
        ("sentences", ["x. x!"], ["x. b", ""]),
        ("lines", ["x\n\nx"], ["x\nb", ""]),
    ],
)
def test_views(on, accepted, rejected):
    for constraint in (Regex("x", on=on), Keyword("x", on=on)):
        for texts, expected in ((accepted, True), (rejected, False)):
            drawn = [Draw("prompt with x ", (), text) for text in texts]
            assert constraint.check(drawn) == [expected] * len(texts)


@pytest.mark.parametrize(
    "pattern", [r"\d+", r"\\", "a\\\\", r"it's \d", r"'\"\d", "\n\\d", "\x00\\d", "\u2028\\w", "a"]
)
def test_the_spelling_of_an_expression_is_python(pattern: str) -> None:
    made = Regex(pattern)
    assert eval(repr(made), {"Regex": Regex}) == made
    assert "\n" not in repr(made)


def test_backslashes_are_shown_as_they_are_written() -> None:
    """Backslashes are not doubled in a ``repr``, or in a message that quotes one."""
    title = Regex(r"\d{4}").title
    assert title == r"Regex(pattern=r'\d{4}')"
    assert str(CheckFailed(title, "is slow")) == r"""constraint "Regex(pattern=r'\d{4}')" is slow"""
    with pytest.raises(ConstraintError, match=r"invalid regular expression '\\d\('"):
        Regex(r"\d(")


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
