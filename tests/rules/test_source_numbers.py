"""Numbers that occur in a source or in the prompt."""

import time
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Draw, NumbersFrom, Part, Verdict
from guardwrap.constraints import parse
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.verdicts import Context
from guardwrap.errors import ConstraintError, GuardwrapError
from guardwrap.rules import numbers
from guardwrap.rules.numbers import numerals
from guardwrap.testing import check_constraint

SOURCE = "Sales rose from 1,000 to 1250.50 (-5 % in 2023)."
PIECES = st.lists(st.sampled_from([*"15 .,-\n)", "000", "1,000", "1250.5", "2024", "million"]), max_size=10).map(
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
@given(text=PIECES)
@settings(max_examples=200, deadline=None)
def test_laws(text: str) -> None:
    check_constraint(NumbersFrom(SOURCE, ignore=["years", "list_markers"]), [text])
    check_constraint(NumbersFrom(SOURCE, on="lines"), [text])
    check_constraint(NumbersFrom(SOURCE, on=Part(after=")", missing="pass")), [text])


@given(prompt=PIECES, text=PIECES)
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
