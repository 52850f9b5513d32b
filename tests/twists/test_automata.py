"""Automata say of whole texts what their constraints say."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Constraint, Count, Finished, Keyword, Length, Regex
from guardwrap.constraints.verdicts import Progress, TextPattern
from guardwrap.outcomes import Draw
from guardwrap.twists import automata
from guardwrap.twists.automata import Automaton, TooManyStates, build, product
from guardwrap.twists.progress_of import automaton_of

RULES = [
    Keyword("robot"),
    Keyword("ab", whole_words=False),
    Keyword(["ab", "bc"], whole_words=False, max_count=2, min_count=1),
    Keyword("aba", whole_words=False, max_count=1, min_count=1),
    Keyword(["a", "ab a"], match="all"),
    Keyword(["ab", "ba"], match="none"),
    Keyword("a-b", match="none", spacing="optional"),
    Keyword("ab", min_count=2),
    Keyword("Straße"),
    Keyword("bé"),
    Keyword("be"),
    Keyword("机密", whole_words=False),
    Keyword("机密"),
    Keyword(" - a", match="none", spacing="optional"),
    Keyword("a-", min_count=1, max_count=1),
    Length(min=2, max=3, unit="words"),
    Length(max=4, unit="characters"),
    Length(max=2, unit="lines"),
    Keyword("ab") & Length(max=3, unit="words") & Finished(),
    Keyword("ab") | Keyword("ba"),
    ~Keyword("ab") & Finished(),
]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
@given(
    text=st.text(st.sampled_from("abcrot AB\n-'ßs1,"), max_size=14)
    | st.lists(st.sampled_from(["ab", "ba", "robot", *"a \n-", "Ab", "Straße", "bé", "be"]), max_size=8).map("".join),
    finished=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_automata_agree_with_constraints(rule: Constraint, text: str, finished: bool) -> None:
    automaton = automaton_of(rule)
    assert automaton is not None
    state = automaton.read(text)
    satisfied = (automaton.ended if finished else automaton.cut)[state]
    assert bool(satisfied) == rule.check([Draw("", (), text, finished)])[0]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_dead_states_are_left_out_of_the_live_ones(rule: Constraint) -> None:
    automaton = automaton_of(rule)
    assert automaton is not None
    live = automaton.live()
    assert live[0]
    after = automaton.table[~live]
    assert not live[after].any(), "a dead state leads to dead states only"
    assert not (automaton.ended | automaton.cut)[~live].any()


@pytest.mark.parametrize(
    "rule",
    [
        Keyword("a", on="full"),
        Count("palindromes", max=3) | Keyword("a"),
        Keyword(["ab", "abab"], whole_words=False, max_count=2, min_count=1),
        Keyword("run", stem="english"),
        Keyword("机密", match="none"),
        Keyword(["tea", "사과"], match="all", min_count=1, max_count=2),
        Keyword("سر", match="none"),
        Keyword("ёлка", match="none"),
    ],
    ids=str,
)
def test_constraints_that_no_automaton_follows(rule: Constraint) -> None:
    assert automaton_of(rule) is None


@pytest.mark.parametrize(
    ("rule", "texts", "missed"),
    [
        (Keyword("사과"), ["사과", "그 사과는", "사과"], ["파인사과"]),
        (Keyword(["tea", "سر"], match="all"), ["tea سر", "السر tea"], []),
        (Keyword("ёлка"), ["ёлка", "Ёлка!"], ["елка"]),
    ],
    ids=str,
)
def test_automata_of_required_words_may_see_too_much_or_too_little(
    rule: Constraint, texts: list[str], missed: list[str]
) -> None:
    automaton = automaton_of(rule)
    assert automaton is not None
    assert all(rule.accepts(text) and automaton.cut[automaton.read(text)] for text in texts)
    assert not any(rule.accepts(text) == automaton.cut[automaton.read(text)] for text in missed)


def test_parts_that_cannot_be_followed_are_left_out() -> None:
    known, whole = automaton_of(Keyword("ab")), automaton_of(Keyword("ab") & Regex("(c)\\1"))
    assert known is not None
    assert whole is not None
    assert len(known) == len(whole)


def counter(most: int) -> Automaton:
    return build(
        Progress(0, ("x",), lambda char: "x", lambda state, kind: min(most, state + 1), lambda state, _: state == most)
    )


def test_products_follow_both_parts() -> None:
    both = product([counter(3), counter(5)], np.logical_and)
    either = product([counter(3), counter(5)], np.logical_or)
    assert [bool(both.ended[both.read("x" * n)]) for n in range(7)] == [False] * 5 + [True] * 2
    assert [bool(either.ended[either.read("x" * n)]) for n in range(7)] == [False] * 3 + [True] * 4


def test_the_number_of_states_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automata, "MOST_STATES", 10)
    assert len(counter(9)) == 10
    with pytest.raises(TooManyStates):
        counter(10)
    one = build(Progress(0, (0, 1), lambda char: int(char == "b"), lambda s, k: (s + k) % 4, lambda s, _: s == 0))
    other = build(Progress(0, (0, 1), lambda char: int(char == "a"), lambda s, k: (s + k) % 4, lambda s, _: s == 0))
    with pytest.raises(TooManyStates):
        product([one, other], np.logical_and)
    assert automaton_of(Length(max=20)) is None


def test_kinds_of_characters_that_lead_to_the_same_states_are_one() -> None:
    """So that the kinds of joined words, which multiply, stay few."""
    alone = automaton_of(Keyword("tea"))
    joined = automaton_of(Keyword("tea") & Keyword("coffee") & Keyword("milk"))
    assert alone is not None
    assert joined is not None
    assert len({tuple(column) for column in alone.table.T.tolist()}) == alone.table.shape[1] < 10
    assert joined.table.shape[1] < 1_000
    for text in ("tea, coffee, milk.", "tea and milk.", "Coﬀee, tea, MILK!"):
        assert joined.ended[joined.read(text)] == (Keyword("tea") & Keyword("coffee") & Keyword("milk")).accepts(text)


def test_what_can_be_reached_backwards() -> None:
    rule = automaton_of(Keyword("ab", whole_words=False, match="none") & Length(max=3))
    assert rule is not None
    assert [bool(rule.live()[rule.read(text)]) for text in ("", "a", "aaa", "ab", "aaaa")] == [True] * 3 + [False] * 2
    assert not rule.safe().any()
    done = automaton_of(Keyword("ab", whole_words=False))
    assert done is not None
    assert [bool(done.safe()[done.read(text)]) for text in ("a", "ab", "abc")] == [False, True, True]


class Elsewhere(Constraint):
    """A kind of a plug-in, which says itself what a proposal follows."""

    def __init__(self, followed: Any, on: str = "completion") -> None:
        self.followed, self.on = followed, on

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        return [True] * len(draws)

    def progress(self) -> Any:
        return self.followed


COUNTING = Progress(
    0, ("any",), lambda char: "any", lambda state, kind: min(3, state + 1), lambda state, ended: state < 3
)


@pytest.mark.parametrize(
    ("followed", "rejected"),
    [
        (Regex("a"), ["", "bb", "bbbb"]),
        ([TextPattern("a"), TextPattern("b", absent=True)], ["", "ab", "bb", "bbbb"]),
        (COUNTING, ["aaa", "bbbb"]),
    ],
)
def test_a_kind_says_itself_what_is_followed(followed: Any, rejected: list[str]) -> None:
    rule = automaton_of(Elsewhere(followed))
    assert rule is not None
    texts = ["", "a", "ab", "bb", "aaa", "bbbb"]
    assert [text for text in texts if not rule.ended[rule.read(text)]] == rejected
    assert automaton_of(Elsewhere(None)) is None
    if not isinstance(followed, Constraint):  # negative control: a part of the text is not followed as the whole text
        assert automaton_of(Elsewhere(followed, on="lines")) is None
