"""Values learned from soft counts are the probabilities of success, where the counts are."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from guardwrap import Keyword, Length
from guardwrap.models.vocabulary import Vocabulary
from guardwrap.testing import character_tokenizer
from guardwrap.twists import state_values
from guardwrap.twists.automata import Automaton
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import SoftCounts, TokenStates, log_values


def automaton() -> Automaton:
    found = automaton_of(Keyword("a", whole_words=False))
    assert found is not None
    return found


def test_a_geometric_wait() -> None:
    """With probability .1 of the letter and .2 of the end at each token, P(letter within n tokens) is known."""
    rule = automaton()
    done = rule.read("a")
    counts = SoftCounts(len(rule))
    for state in {0, rule.read("b")}:
        for _ in range(50):
            counts.note(state, np.array([done, rule.read("b")]), np.array([0.1, 0.7]), 0.2)
    values = np.exp(log_values(rule, counts, 6))
    exact = [0.0]
    for _ in range(6):
        exact.append(0.1 + 0.7 * exact[-1])
    assert values[1:, rule.read("b")] == pytest.approx(exact[1:], abs=1e-6)


def test_states_without_visits_are_looked_at_and_dead_ones_are_not() -> None:
    rule = automaton_of(Length(max=2))
    assert rule is not None
    counts = SoftCounts(len(rule))
    counts.note(0, np.array([rule.read("x")]), np.array([0.9]), 0.1)
    values = log_values(rule, counts, 3)
    assert math.exp(values[2][rule.read("x")]) == pytest.approx(0.5)
    assert values[2][rule.read("xxx")] < -60


def test_states_with_enough_visits_keep_what_the_model_itself_showed() -> None:
    counts = SoftCounts(2, enough=3)
    for _ in range(3):
        counts.note(0, np.array([1]), np.array([0.5]), 0.5)
    counts.close_round()
    counts.note(0, np.array([1]), np.array([1.0]), 0.0)
    counts.note(1, np.array([1]), np.array([1.0]), 0.0)
    assert counts.visits == {0: 3, 1: 1}
    assert counts.ends[0] == pytest.approx(1.5)


def test_threads_that_share_states_do_not_drop_them_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = character_tokenizer("abc")
    vocabulary = Vocabulary(tokenizer, tokenizer.decode, skips=True)
    rule = automaton_of(Keyword("abcabc", whole_words=False))
    assert rule is not None
    every = TokenStates(rule, vocabulary)
    expected = [every.after(state, begins=False).tolist() for state in range(len(rule))]
    monkeypatch.setattr(state_values, "_KEPT", 3 * vocabulary.size)
    shared = TokenStates(rule, vocabulary)

    def reads(stride: int) -> None:
        for number in range(30_000):
            state = number * stride % len(rule)
            states = shared.after(state, begins=False)
            assert number % 100 or states.tolist() == expected[state]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(reads, (1, 2, 3, 5)):
                pass
    finally:
        sys.setswitchinterval(interval)
    assert len(shared._after) == 3
