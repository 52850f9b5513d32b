"""How deep brackets, quotes and lists are nested."""

from typing import Any, get_args
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Depth, Verdict
from guardwrap.rules.layout import Nested
from guardwrap.testing import check_constraint

EXAMPLES: dict[str, dict[str, int]] = {
    "brackets": {"(a [b {c}])": 3, "(a": 0, "()()": 1, "(a] b)": 1, ":) (x)": 1, "（【】）": 2, "": 0, "((a) [": 2},
    "quotes": {
        'He said "she said \'it is "on"\' again".': 3,
        "don't \"can't\"": 1,
        "«a “b ‘c’ d” e»": 3,
        "„a ‚b‘ c“": 2,
        "「a『b』」": 2,
        '"a': 0,
        "It’s “so”": 1,
    },
    "lists": {
        "- a\n- b": 1,
        "- a\n  - b\n    * c\n- d": 3,
        "1. a\n\t- b": 2,
        "text\n  - a\ntext\n- b": 1,
        "-a": 0,
        "- a\n\n   - b": 2,
        "- ": 0,
    },
}
PIECES = st.lists(
    st.sampled_from([*"([{}])'\"’“”„«»a -*\n", "  ", "1.", "\t", "- a", "（", "）", "\r\n"]), max_size=12
).map("".join)


def test_every_kind_has_examples() -> None:
    assert set(EXAMPLES) == set(get_args(Nested))


@pytest.mark.parametrize("of", EXAMPLES)
def test_depths(of: Any) -> None:
    assert {text: Depth(of, min=0).measure(text) for text in EXAMPLES[of]} == EXAMPLES[of]
    for text, depth in EXAMPLES[of].items():
        assert Depth(of, min=depth, max=depth).accepts(text)
        assert not Depth(of, min=depth + 1).accepts(text)


@pytest.mark.slow
@pytest.mark.parametrize("of", EXAMPLES)
@given(text=PIECES, limit=st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_laws(of: Any, text: str, limit: int) -> None:
    check_constraint(Depth(of, max=limit), [text])
    check_constraint(Depth(of, min=limit), [text])


def test_negative_control_an_apostrophe_taken_for_a_quote() -> None:
    rule = Depth("quotes", max=0)
    check_constraint(rule, ["'a'b"])
    with (
        patch.object(Depth, "prefix_verdict", lambda self, prefix: Verdict(-(self.measure(prefix) > 0))),
        pytest.raises(AssertionError, match="unsound"),
    ):
        check_constraint(rule, ["'a'b"])


def test_verdicts_and_faults() -> None:
    assert Depth("brackets", max=1).verdict("((a)") is Verdict.VIOLATED
    assert Depth("brackets", min=2).verdict("((a)") is Verdict.SATISFIED
    assert Depth("lists", max=1).verdict("- a\n  - b") is Verdict.VIOLATED
    assert Depth("lists", max=1).fault("- a\n  - b") == "has lists nested 2 deep, not at most 1"


@pytest.mark.parametrize("of", EXAMPLES)
def test_long_and_strange_texts_take_little_time(of: Any) -> None:
    """A check that exceeds its time limit raises CheckFailed."""
    for piece in ("(", "([{", ")", '"', "'", "a'", "“", "- ", "\n- a", "\n" + " " * 50 + "- a", " ", "\n", "1."):
        text = piece * (60_000 // len(piece))
        Depth(of, max=10).accepts(text)
