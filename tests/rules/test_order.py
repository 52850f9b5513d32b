"""How words, sentences, lines and paragraphs follow each other."""

from typing import Any, get_args
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Order, Verdict
from guardwrap.constraints.sentences import words_of
from guardwrap.rules import order
from guardwrap.rules.order import Feature, Relation
from guardwrap.testing import check_constraint

U, V = Verdict.UNDECIDED, Verdict.VIOLATED
PIECES = st.lists(
    st.sampled_from(
        [*"abcz1-' .\n?", "  ", "é", "e\u0301", "Ab", "b a", "3.", " M", "机", "。", "p.m.", "\n\n", "\t", "가"]
    ),
    max_size=12,
).map("".join)
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"units": "words", "relation": "different", "by": "first_letter"}, ["Big apples cost", "a", ""], ["Tea To go"]),
    ({"units": "words", "relation": "different"}, ["a b a", "a aa"], ["so, So", "é e\u0301"]),
    ({"units": "words", "relation": "next_letter"}, ["Yes, zebras are", "b c"], ["a c", "b b", "1 2"]),
    ({"units": "words", "relation": "no_next_letter"}, ["a c b", "z a", "1 2"], ["a b", "Tea under"]),
    ({"units": "words", "relation": "next_letter", "alphabet": "абв"}, ["а б в а"], ["а в", "а b"]),
    ({"units": "words", "relation": "alternating", "by": "syllables"}, ["tea coffee cup"], ["tea cup"]),
    ({"units": "words", "relation": "increasing"}, ["apple Banana cherry"], ["a a", "b a"]),
    ({"units": "words", "relation": "increasing", "by": "characters"}, ["I am new"], ["I a", "new am"]),
    ({"units": "words", "relation": "circular", "on": "lines"}, ["So it is so.\n\nb", ""], ["So it is", "b\na b"]),
    (
        {"units": "sentences", "relation": "increasing", "by": "words", "step": 1},
        ["Tea. I am! 是机密。"],
        ["A b. C d."],
    ),
    ({"units": "sentences", "relation": "decreasing", "by": "words"}, ["I am. Yes."], ["Aa. Bb cc."]),
    ({"units": "sentences", "relation": "same", "by": "characters"}, ["Ab. Cd!", "Ab. Cd! Ef?"], ["Ab. Cde."]),
    ({"units": "sentences", "relation": "chained"}, ["I like tea. Tea is good!", "A. ..."], ["I like tea. It is."]),
    ({"units": "sentences", "relation": "next_letter"}, ["All. Be. Come."], ["All. Come."]),
    (
        {"units": "sentences", "relation": "increasing", "by": "alliteration"},
        ["Tea. Big bad. Ah, all apes."],
        ["Aa. Bb."],
    ),
    ({"units": "lines", "relation": "increasing", "by": "indent"}, ["a\n b\n\n  c", "a\n\tb"], ["a\nb", " a\nb"]),
    ({"units": "lines", "relation": "decreasing", "ties": True}, ["- Zoë\n- Yes\n- yes", "b\na"], ["a\nb"]),
    ({"units": "lines", "relation": "same", "by": "last_word"}, ["a b.\nc b!"], ["a b\nb a"]),
    ({"units": "paragraphs", "relation": "different", "by": "first_word"}, ["A b\n\nB"], ["A\n\na b"]),
    ({"units": "paragraphs", "relation": "increasing", "by": "letters"}, ["ab\n\nabc"], ["ab\n\n1 2 3"]),
]


def test_every_relation_and_feature_has_a_case() -> None:
    assert {case["relation"] for case, *_ in CASES} == set(get_args(Relation))
    used = {Order(**case).by for case, *_ in CASES}
    assert used == set(get_args(Feature))


@pytest.mark.parametrize(("rule", "accepted", "rejected"), CASES)
def test_what_is_accepted(rule: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    assert [text for text in accepted if not Order(**rule).accepts(text)] == []
    assert [text for text in rejected if Order(**rule).accepts(text)] == []
    check_constraint(Order(**rule), [*accepted, *rejected])


@pytest.mark.slow
@pytest.mark.parametrize("rule", [case for case, *_ in CASES])
@given(text=PIECES)
@settings(max_examples=200, deadline=None)
def test_laws(rule: dict[str, Any], text: str) -> None:
    check_constraint(Order(**rule), [text])


@pytest.mark.slow
@pytest.mark.parametrize("by", get_args(Feature))
@pytest.mark.parametrize("units", ["words", "sentences", "lines", "paragraphs"])
@given(text=PIECES, step=st.integers(0, 2), relation=st.sampled_from(["increasing", "decreasing", "same", "different"]))
@settings(max_examples=60, deadline=None)
def test_verdicts_on_all_units_are_sound(units: Any, by: Any, text: str, step: int, relation: Any) -> None:
    numeric = by in order.NUMERIC and relation in ("increasing", "decreasing")
    check_constraint(Order(units, relation, by=by, step=step or None if numeric else None), [text])


@pytest.mark.parametrize(
    ("rule", "verdicts"),
    [
        (CASES[0][0], [("Tea t", U), ("Tea to", V), ("Tea t ", V), ("Tea is", U)]),
        (CASES[9][0], [("Tea. I a", U), ("Tea. I am tall", U), ("Tea. I am tall ", V), ("Tea. I. ", U)]),
        (CASES[11][0], [("Ab. Cd", U), ("Ab. Cdef ", V)]),
        (CASES[12][0], [("I like tea. T", U), ("I like tea. It ", V)]),
        (CASES[15][0], [("a\n ", U), ("a\nb", V), ("a\n b", U)]),
    ],
)
def test_an_attempt_ends_early(rule: dict[str, Any], verdicts: list[tuple[str, Verdict]]) -> None:
    assert [(text, Order(**rule).verdict(text)) for text, _ in verdicts] == verdicts


def test_negative_control_a_word_that_grows_is_not_compared() -> None:
    rule = Order("words", "different")
    check_constraint(rule, ["a ab"])
    with (
        patch.object(order, "settled_words", words_of),
        pytest.raises(AssertionError, match="unsound"),
    ):
        check_constraint(rule, ["a ab"])


@pytest.mark.parametrize(
    ("word", "number"), [("tea", 1), ("coffee", 2), ("table", 2), ("make", 1), ("the", 1), ("Straße", 2), ("молоко", 3)]
)
def test_syllables(word: str, number: int) -> None:
    assert order.features([word], "syllables") == [number]


@pytest.mark.slow
@pytest.mark.parametrize("rule", [case for case, *_ in CASES])
def test_long_texts_take_little_time(rule: dict[str, Any]) -> None:
    """A check that exceeds its time limit raises CheckFailed."""
    for piece in ("a", "a ", "a-", "\u0301", "机", ". ", "a.\n\n", " ", "\t"):
        text = piece * (30_000 // len(piece))
        Order(**rule).accepts(text)
        Order(**rule).verdict(text)
