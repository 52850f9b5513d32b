"""Texts that begin and end with given texts."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Edges, Verdict
from guardwrap.testing import check_constraint

PIECES = st.lists(st.sampled_from(["a", "A", "ab", "ß", "ss", "S", '"', " ", "\n", "İ", "i", "b."]), max_size=8).map(
    "".join
)
RULES: dict[str, dict[str, Any]] = {
    "start": {"start": "ab"},
    "end": {"end": ["b.", "ss"]},
    "both": {"start": ["a", "aba"], "end": "a"},
    "quotes": {"start": '"', "end": '"'},
    "folded": {"start": ["Maß", "ß"], "end": "İ", "ignore_case": True},
}


@pytest.mark.parametrize(
    ("rule", "accepted", "rejected"),
    [
        ({"start": '"', "end": '"'}, [' "so" \n', '""'], ['"', '"a', 'a"', ""]),
        ({"start": ["Hey", "Hi"]}, ["Hey Ada", "\n Hi", "Hire"], ["Hello", "He", "hey"]),
        ({"start": "hey", "end": "bye!", "ignore_case": True}, ["HEY Ada, BYE! "], ["Hey bye", "ey bye!"]),
        ({"end": "机密。", "start": "这"}, ["这是机密。"], ["这是机密"]),
        ({"start": "STRASSE", "ignore_case": True}, ["Straße 1"], ["Strase"]),
        ({"start": "ab", "end": "ba"}, ["abba"], ["aba"]),
    ],
)
def test_what_is_accepted(rule: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    assert [text for text in accepted if not Edges(**rule).accepts(text)] == []
    assert [text for text in rejected if Edges(**rule).accepts(text)] == []
    check_constraint(Edges(**rule), [*accepted, *rejected])


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@given(text=PIECES)
@settings(max_examples=150, deadline=None)
def test_laws_and_the_statement(name: str, text: str) -> None:
    rule = Edges(**RULES[name])
    check_constraint(rule, [text])
    fold = str.casefold if rule.ignore_case else str
    body = fold(text.strip())
    pairs = [(fold(start), fold(end)) for start in rule.start or [""] for end in rule.end or [""]]
    assert rule.accepts(text) == any(
        len(body) >= len(start) + len(end) and body.startswith(start) and body.endswith(end) for start, end in pairs
    )


def test_an_attempt_ends_at_the_first_wrong_letter() -> None:
    rule = Edges(start=["Hey", "Hi"])
    verdicts = [rule.verdict(text) for text in (" ", "H", "Ho", "Hi")]
    assert verdicts == [Verdict.UNDECIDED, Verdict.UNDECIDED, Verdict.VIOLATED, Verdict.SATISFIED]


def test_long_texts() -> None:
    for text in ("a" * 100_000, " " * 100_000, "\u0301" * 100_000):
        assert not Edges(start="b" * 1000, end="c").accepts(text)
        Edges(start="a", ignore_case=True).verdict(text)
