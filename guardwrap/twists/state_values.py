"""The value of each state: an estimate of the probability that a text will satisfy the constraint.

The values are learned from soft counts: the mean probability, over attempts, of the tokens that lead from one state to
another. That works for transitions that no attempt has made.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, diags_array, vstack

from guardwrap.models.vocabulary import Vocabulary
from guardwrap.twists.automata import Automaton

HOPE = 0.5
"""The value of a state that no attempt has reached: high, so that the next round looks."""

ENOUGH = 200
"""The number of visits after which a state's counts are not changed by later rounds."""

_FEW = 10
"""The number of visits from which a state's own counts are used alone."""

_LEAST, _DEAD = 1e-9, 1e-30
"""The least value of a state from which a satisfying text can be reached, and that of the others."""

LOG_DEAD = float(np.log(_DEAD))
"""log ψ of states from which no satisfying text can be reached, in nats."""

Values = npt.NDArray[np.float64]


@dataclass
class SoftCounts:
    """Sums of next-token probabilities by state."""

    states: int
    enough: int = ENOUGH
    full: set[int] = field(default_factory=set)
    # number of next tokens that were drawn in each state
    visits: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    # sum of the probabilities that the text ends there
    ends: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    # sums of the probabilities of the tokens that lead to each state, ``[1, states]``
    onward: dict[int, Any] = field(default_factory=dict)

    def note(self, state: int, after: npt.NDArray[np.int32], shares: Values, ends: float) -> None:
        """Add the distribution of one next token in a state.

        ``after`` and ``shares`` are the state after each token, and its probability, 0 if it ends the text; ``ends`` is
        the probability that the text ends.
        """
        if state in self.full:
            return
        self.visits[state] += 1
        self.ends[state] += ends
        # Sparse, as states may be many, and only a few are one token away.
        sums = csr_array(np.bincount(after, shares, minlength=self.states)[None])
        self.onward[state] = self.onward[state] + sums if state in self.onward else sums

    def close_round(self) -> None:
        """Keep what is known of the states with enough visits.

        Later rounds come there by other ways than the model's own texts do: by those on which success is more likely.
        """
        self.full = {state for state, visits in self.visits.items() if visits >= self.enough}


def log_values(automaton: Automaton, counts: SoftCounts, tokens: int) -> Values:
    """Return log ψ, ``[tokens + 1, states]``, in nats: row t holds the values with t tokens left.

    ψ(s, t) = P(end | s) ψ(end) + Σ P(s' | s) ψ(s', t - 1), where the probabilities are the soft counts of s. States
    without visits have the value ``HOPE``, and states after which every text satisfies the constraint have 1.
    """
    visited = np.array(sorted(counts.visits), dtype=np.int64)
    visits = np.array([counts.visits[state] for state in visited.tolist()], dtype=np.float64)
    sums = [csr_array((0, len(automaton))), *(counts.onward[state] for state in visited.tolist())]
    onward = diags_array(1 / visits) @ vstack(sums, format="csr")
    ends = np.array([counts.ends[state] for state in visited.tolist()]) / visits * automaton.ended[visited]
    trust = np.minimum(visits / _FEW, 1.0)
    live, safe = automaton.live(), automaton.safe()
    unknown = np.where(safe, 1.0, np.where(live, HOPE, _DEAD))
    values = np.empty((tokens + 1, len(automaton)))
    values[0] = np.where(automaton.cut, 1.0, _DEAD)
    for left in range(1, tokens + 1):
        row = unknown.copy()
        row[visited] = trust * (ends + onward @ values[left - 1]) + (1 - trust) * row[visited]
        values[left] = np.where(live & ~safe, np.clip(row, _LEAST, 1.0), unknown)
    return np.log(values)


_KEPT = 8_000_000
"""The most successors that are kept, 32 MB: those of 160 states with a vocabulary of 50 000 tokens."""

States = npt.NDArray[np.int32]
Column = tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]
"""The tokens that have a character at one place, and its kinds."""


class TokenStates:
    """The state after each next token."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        self.automaton = automaton
        self._vocabulary = vocabulary
        kinds: dict[str, int] = {}
        self._codes = tuple(self._encoded(begins, kinds) for begins in (False, True))
        self._after: OrderedDict[tuple[int, bool], States] = OrderedDict()
        self._order = Lock()  # batches in several threads share the states, and change which were used last

    def after(self, state: int, *, begins: bool) -> States:
        """Return the state after each token, ``[vocabulary]``; ``begins``: whether no text has been written yet."""
        key = state, begins
        states = self._after.get(key)
        if states is None:
            states = np.full(self._vocabulary.size, state, dtype=np.int32)
            for tokens, kinds in self._codes[begins]:
                states[tokens] = self.automaton.table[states[tokens], kinds]
        with self._order:
            self._after[key] = states  # again, if another thread has dropped it
            self._after.move_to_end(key)
            if len(self._after) * self._vocabulary.size > _KEPT and len(self._after) > 1:
                self._after.popitem(last=False)
        return states

    def read(self, token_ids: Sequence[int]) -> tuple[int, bool]:
        """Return the state after some tokens, and whether they have written no text."""
        state, begins = 0, True
        for token in token_ids:
            state, begins = self.step(state, begins, token)
        return state, begins

    def step(self, state: int, begins: bool, token: int) -> tuple[int, bool]:
        """Return the state after one more token, and whether no text has been written yet."""
        if token >= self._vocabulary.size:
            return state, begins
        return int(self.after(state, begins=begins)[token]), begins and not self._vocabulary.shows(token)

    def ahead(self, state: int, begins: bool, tokens: npt.NDArray[np.int64] | None, columns: int) -> States:
        """Return the state after the token of each column, ``[columns]``: ``tokens[i]``, or i if that is None."""
        successors = self.after(state, begins=begins)
        if len(successors) < columns:  # rows of the model without a token
            successors = np.append(successors, np.full(columns - len(successors), state, dtype=np.int32))
        return successors[:columns] if tokens is None else successors[tokens]

    def _encoded(self, begins: bool, kinds: dict[str, int]) -> list[Column]:
        """Return the kinds of the tokens' characters, place by place."""
        places: list[tuple[list[int], list[int]]] = []
        for token, raw in enumerate(self._vocabulary.pieces(begins=begins)):
            for place, char in enumerate(raw.decode("utf-8", "replace")):
                if char not in kinds:
                    kinds[char] = self.automaton.kind_of(char)
                if place == len(places):
                    places.append(([], []))
                places[place][0].append(token)
                places[place][1].append(kinds[char])
        return [(np.array(tokens), np.array(codes, dtype=np.int16)) for tokens, codes in places]
