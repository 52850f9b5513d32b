"""Parts of a text between separators."""

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Case, CheckFailed, Count, JSONSchema, Length, Regex, Split, Verdict
from guardwrap.constraints import dump, parse
from guardwrap.rules import layout
from guardwrap.testing import check_constraint

U, V = Verdict.UNDECIDED, Verdict.VIOLATED
PIECES = st.lists(st.sampled_from(["*", "**", "***", "a", "b", "ab", " ", "\n", ",", "1", "."]), max_size=12).map(
    "".join
)
RULES = {
    "number": Split("***", min=2, max=2),
    "many": Split("**", max=1),
    "different": Split("***", different=True),
    "each": Split("***", each=~Regex("1")),
    "whole": Split("\n", each=Regex("a+b?", match="fullmatch")),
    "table": Split("\n", min=1, each=Split(",", min=2, max=2)),
    "long": Split(" ", each=Length(max=2), max=3),
    "sentences": Split("***", each=Length(unit="sentences", max=1) & Count("words", max=1)),
    "JSON": Split("\n", each=JSONSchema({"type": "integer"})),
    "on lines": Split(",", max=2, on="lines"),
}


@pytest.mark.parametrize(
    ("rule", "accepted", "rejected"),
    [
        (RULES["number"], ["a***b", "***\na *** b***", "a****b"], ["a", "a***b***c", "a*** ***b", "******"]),
        (RULES["different"], ["a***b", "", "a"], ["a *** a", "b***a***b"]),
        (RULES["table"], ["a,b\nc,d\n", "a,b"], ["a,b\nc", "a,b\n\nc,d", "", "a"]),
        (Split("###", min=2, each=Case("upper")), ["A ### B"], ["A ### b", "A"]),
    ],
)
def test_what_is_accepted(rule: Split, accepted: list[str], rejected: list[str]) -> None:
    assert [text for text in accepted if not rule.accepts(text)] == []
    assert [text for text in rejected if rule.accepts(text)] == []
    check_constraint(rule, [*accepted, *rejected])


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@given(text=PIECES)
@settings(max_examples=150, deadline=None)
def test_laws(name: str, text: str) -> None:
    check_constraint(RULES[name], [text])


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("number", [("a***b", U), ("a***b***", U), ("a***b***\n", U), ("a***b***c", V), ("a***  ***", V)]),
        ("each", [("a*", U), ("a***1", V), ("1", V)]),
        ("different", [("a***a", U), ("a***a***", V)]),
        ("table", [("a,b", U), ("a,b,c", V), ("a\n", V)]),
    ],
)
def test_verdicts(name: str, verdicts: list[tuple[str, Verdict]]) -> None:
    assert [(text, RULES[name].verdict(text)) for text, _ in verdicts] == verdicts


def test_negative_control_the_beginning_of_a_separator_is_no_text() -> None:
    """If ``*`` counted as a part before ``***`` is complete, a text that ends with it would be lost."""
    rule = Split("***", each=Regex("[ab]", match="fullmatch"))
    check_constraint(rule, ["a***b***"])
    with patch.object(layout, "begun_length", lambda *_: 0), pytest.raises(AssertionError, match="unsound"):
        check_constraint(rule, ["a***b***"])


def test_yaml_and_faults() -> None:
    text = "guardwrap: 1\nconstraint: {kind: split, by: '***', max: 3, each: {kind: length, unit: sentences, max: 2}}\n"
    rule = parse(text).constraint
    assert rule == Split("***", max=3, each=Length(unit="sentences", max=2))
    assert parse(dump(rule)).constraint.digest == rule.digest
    assert RULES["number"].fault("a") == "has 1 part, not at least 2 and at most 2"


def test_slow_rules_keep_to_the_limits_of_the_whole_text() -> None:
    slow = Split("\n", each=Regex("(a|aa)+b", match="fullmatch"))
    text = f"{'a' * 40}\n{'a' * 40}c"
    assert slow.verdict(text) is U  # within 0.05 s; the second part would be VIOLATED
    with pytest.raises(CheckFailed, match=r"took more than 1 s|ran out"):
        slow.accepts(text)


def test_ready_made_constraints_for_each_part() -> None:
    rule = parse("guardwrap: 1\nconstraint: {kind: split, by: '***', each: 'catalogue:no-urls'}\n").constraint
    assert rule.accepts("a *** b")
    assert not rule.accepts("a *** https://example.com")


def test_long_texts_take_little_time() -> None:
    for text in ("a," * 30_000, "," * 60_000, "a" * 60_000):
        Split(",", max=100_000, different=True).accepts(text)
        Split(",", each=Regex("^a")).accepts(text[:10_000])
