"""Copies of the prompt and of given texts."""

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Copy, Draw, NumbersFrom, Part, Verdict
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.verdicts import Context
from guardwrap.testing import check_constraint

U, V, S = Verdict.UNDECIDED, Verdict.VIOLATED, Verdict.SATISFIED
RULES: dict[str, dict[str, Any]] = {
    "whole": {"text": "A b, a."},
    "start": {"text": "a b", "at": "start", "ignore_case": True},
    "end": {"text": "a b", "at": "end"},
    "times": {"text": "a b", "times": 2, "separator": "**"},
    "words": {"text": "a b a", "unit": "words", "ignore_case": True},
    "start of words": {"text": "a  b", "unit": "words", "at": "start"},
    "span": {"text": "x a b x", "unit": "words", "span": [1, 3]},
    "characters": {"text": "a b a", "span": [2, 5]},
    "first word": {"text": "a b a", "unit": "words", "change": "first_word"},
    "one word": {"text": "a b a", "unit": "words", "change": "one_word", "times": 2, "separator": "**"},
}
PIECES = st.lists(
    st.sampled_from(["a b", "a", "b", "A", "ab", " ", "\n", "*", "**", ".", ",", "A b, a."]), max_size=9
).map("".join)


@pytest.mark.parametrize(
    ("rule", "accepted", "rejected"),
    [
        ({"text": "Say hi."}, ["Say hi.", "\n Say hi. "], ["say hi.", "Say  hi.", "Say hi. So"]),
        ({"text": "Say hi.", "ignore_case": True, "at": "start"}, ["SAY hi. So"], ["So say hi."]),
        ({"text": "Say hi.", "at": "end"}, ["So Say hi.\n"], ["Say hi. So"]),
        ({"text": "a", "times": 3, "separator": "******"}, ["a ****** a ******\na"], ["a******a", "a******a******"]),
        ({"text": "one two three", "span": [1, 3], "unit": "words"}, ["two\nthree"], ["two", "one two three"]),
        ({"text": "one two three", "span": [4, 7]}, ["two"], ["two three"]),
        ({"text": "a b c", "unit": "words", "change": "first_word"}, ["x b  c", "A b c"], ["a b c", "x b", "b c"]),
        ({"text": "a b c", "unit": "words", "change": "one_word"}, ["a x c", "x b c"], ["a b c", "a x x", "a x b c"]),
        ({"text": "是机密", "at": "start"}, ["是机密。"], ["机密"]),
    ],
)
def test_what_is_accepted(rule: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    assert [text for text in accepted if not Copy(**rule).accepts(text)] == []
    assert [text for text in rejected if Copy(**rule).accepts(text)] == []
    check_constraint(Copy(**rule), [*accepted, *rejected])


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@given(text=PIECES)
@settings(max_examples=150, deadline=None)
def test_laws(name: str, text: str) -> None:
    check_constraint(Copy(**RULES[name]), [text])
    for on in ("lines", "first_sentence", Part(after="*", missing="pass")):
        check_constraint(Copy(**RULES[name], on=on), [text])


@pytest.mark.parametrize("at", ["whole", "start", "end"])
@given(prompt=PIECES, text=PIECES, rest=PIECES)
@settings(max_examples=100, deadline=None)
def test_copies_of_the_prompt(at: Any, prompt: str, text: str, rest: str) -> None:
    rule = Copy(at=at)
    holds = run_check(rule, [Draw(prompt, (), text + rest), Draw("other", (), text + rest)])[0]
    body, expected = (text + rest).strip(), prompt.strip()
    assert holds == {"whole": body == expected, "start": body.startswith(expected), "end": body.endswith(expected)}[at]
    verdict = rule.monitor_in(Context(prompt=prompt)).read(text).verdict
    assert verdict is U or (verdict is S) == holds
    assert rule.verdict(text) is U
    assert rule.monitor_in(Context()).read(text).verdict is U


def test_prompts_of_two_draws_are_not_mixed_up() -> None:
    rule = Copy()
    assert run_check(rule, [Draw("a", (), "a"), Draw("b", (), "a"), Draw("b", (), "b")]) == [True, False, True]
    assert rule.monitor_in(Context(prompt="abc")).read("ax").verdict is V
    sentences = Copy(on="sentences")
    assert run_check(sentences, [Draw("Hi.", (), "Hi. Hi."), Draw("Hi.", (), "Hi. Ho.")]) == [True, False]
    assert sentences.verdict("Ho. ") is U


def test_an_attempt_ends_at_the_first_difference() -> None:
    twice = Copy("a b", times=2, separator="**")
    verdicts = [twice.verdict(text) for text in ("a ", "a b*", "a b **", "a b ** a c", "a b**a b**", "a x")]
    assert verdicts == [U, U, U, V, V, V]
    changed = Copy("a b c", unit="words", change="first_word")
    assert [changed.verdict(text) for text in ("a", "a ", "x c ", "x b c d", "x b c")] == [U, V, V, V, U]
    assert Copy("ab", at="start").verdict(" abc") is S


def test_negative_control_a_separator_that_has_begun() -> None:
    rule = Copy("a", times=2, separator="**")
    check_constraint(rule, ["a**a"])
    with (
        patch("guardwrap.rules.copies.begun_length", lambda *_: 0),
        pytest.raises(AssertionError, match="unsound"),
    ):
        check_constraint(rule, ["a**a"])


def test_long_texts_take_little_time() -> None:
    for text in ("a" * 100_000, "a " * 30_000, " " * 100_000, "**" * 50_000):
        for rule in RULES.values():
            Copy(**rule).accepts(text)
            Copy(**rule).verdict(text)


def test_the_fault_of_a_draw_is_judged_by_its_own_prompt() -> None:
    rule = NumbersFrom()
    assert rule.fault_of(Draw("7 cups", (), "7 pots and 8 cups", True)).reason.startswith("has the number 8")
    assert rule.fault_of(Draw("8 cups", (), "8 pots", True)).reason == ""
