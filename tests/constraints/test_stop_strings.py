"""Stop strings: texts are cut where OpenAI's API cuts them, and checked without them."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import JSONSchema, Keyword, Length, Regex, Verdict
from guardwrap.constraints import stop_strings
from guardwrap.constraints.stop_strings import GrowingCut, StopAt, cut
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


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.text("ab\n", max_size=4), max_size=8),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_what_is_certain_to_remain_of_a_growing_text_is_not_cut_later(
    pieces: list[str], stops: tuple[str, ...]
) -> None:
    growing, whole = GrowingCut(stops), "".join(pieces)
    said = "".join(map(growing.read, pieces))
    assert cut(whole, stops).startswith(said)
    assert growing.settled == len(said)
    held = cut(whole, stops)[len(said) :]
    assert not held or any(stop.startswith(held) for stop in stops)
    assert said == whole or stops


def test_a_growing_text_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    end = stop_strings._end

    def counted(text: str, stops: Sequence[str], begin: int = 0) -> int | None:
        searched.append(len(text) - begin)
        return end(text, stops, begin)

    monkeypatch.setattr(stop_strings, "_end", counted)
    growing = GrowingCut(("ab", "END"))
    assert "".join(growing.read("a cE") for _ in range(1_000)) == "a cE" * 999 + "a c"
    assert sum(searched) <= 2 * 4 * 1_000


def test_negative_control_nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GrowingCut(("ab",)).read("ca") == "c"
    monkeypatch.setattr(stop_strings, "begun_length", lambda text, stops: 0)
    assert not cut("cab", ("ab",)).startswith(GrowingCut(("ab",)).read("ca"))
