"""Stop strings: texts are cut where OpenAI's API cuts them, and checked without them."""

import itertools

import pytest

from guardwrap import JSONSchema, Keyword, Length, Regex, Verdict
from guardwrap.constraints.stop_strings import StopAt, cut
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint

TEXTS = ["", "abc", "aab", "ab\n", "a\n\nb", "\n", "STOP", "aSTOb", "aSTOPb", "xSTOP", "bbSTSTOPa"]


@pytest.mark.parametrize(
    ("text", "stops", "left"),
    [
        ("one\ntwo", ["\n"], "one"),
        ("one two", ["\n"], "one two"),
        ("\none", ["\n"], ""),
        ("abc", ["abc", "b"], "a"),  # "b" ends first
        ("abc", ["bc", "c", "abc"], ""),  # all end together, and the longest counts
        ("a.b.c", ["."], "a"),
        ("anything", [], "anything"),
    ],
)
def test_cut(text, stops, left):
    assert cut(text, stops) == left


def test_the_cut_is_where_a_stop_string_is_first_complete():
    for text in map("".join, itertools.product("ab", repeat=6)):
        for stops in (["ab"], ["aab", "b"], ["ba", "aba"], ["bb", "a"]):
            complete = next((i for i in range(len(text) + 1) if any(text[:i].endswith(s) for s in stops)), None)
            whole = text if complete is None else text[:complete]
            longest = max((len(s) for s in stops if whole.endswith(s)), default=0)
            assert cut(text, stops) == whole[: len(whole) - longest]


@pytest.mark.parametrize(
    "inner",
    [
        Regex("a"),
        ~Regex("b"),
        Regex("a*b?", match="fullmatch"),
        Regex("STO"),
        ~Regex("STO"),
        Length(max=2),
        Keyword("STO", whole_words=False),
        ~Keyword("STO", whole_words=False),
        JSONSchema({"type": "integer"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("stops", [("STOP",), ("\n",), ("\n\n", "STOP", "TOP")])
def test_it_obeys_the_laws_of_constraints(inner, stops):
    check_constraint(StopAt(inner, stops), TEXTS)


def test_it_judges_the_text_that_leaves():
    whole_integer = JSONSchema({"type": "integer"})
    assert not whole_integer.accepts("12\n34a")
    assert StopAt(whole_integer, ("\n",)).accepts("12\n34a")
    assert not StopAt(Regex("P"), ("STOP",)).accepts("aSTOP")  # what is cut off is not checked


def test_what_is_violated_before_the_stop_string_ends_an_attempt_early():
    until = StopAt(~Regex("b"), ("STOP",))
    assert until.verdict("ab") is Verdict.VIOLATED
    assert until.verdict("aST") is Verdict.UNDECIDED


def test_negative_control_a_beginning_that_is_not_held_back_is_unsound():
    """A ban on "S" accepts "aSTOP", which is returned as "a"; on the prefix "aS" it would reject it."""
    ban = ~Regex("S")
    assert ban.verdict("aS") is Verdict.VIOLATED
    assert StopAt(ban, ("STOP",)).verdict("aS") is Verdict.UNDECIDED
    assert StopAt(ban, ("STOP",)).accepts("aSTOP")


def test_the_prompt_stays_whole():
    until = StopAt(Regex("^xab$", on="full"), ("\n",))
    assert until.check([Draw("x", (), "ab\ncd")]) == [True]
    assert until.check([Draw("x", (), "ab\ncd", full="xab\ncd")]) == [True]
    assert until.check([Draw("x", (), "abc")]) == [False]
