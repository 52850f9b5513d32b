"""The states of an automaton after each token of a vocabulary."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from guardwrap.pipelines.vocabulary import Vocabulary
from guardwrap.twists.automata import Automaton

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

    def after(self, state: int, *, begins: bool) -> States:
        """Return the state after each token, ``[vocabulary]``; ``begins``: whether no text has been written yet."""
        key = state, begins
        if key not in self._after:
            states = np.full(self._vocabulary.size, state, dtype=np.int32)
            for tokens, kinds in self._codes[begins]:
                states[tokens] = self.automaton.table[states[tokens], kinds]
            self._after[key] = states
            if len(self._after) * self._vocabulary.size > _KEPT and len(self._after) > 1:
                self._after.popitem(last=False)
        self._after.move_to_end(key)
        return self._after[key]

    def read(self, token_ids: Sequence[int]) -> tuple[int, bool]:
        """Return the state after some tokens, and whether they have written no text."""
        state, begins = 0, True
        for token in token_ids:
            if token < self._vocabulary.size:
                state = int(self.after(state, begins=begins)[token])
                begins = begins and not self._vocabulary.shows(token)
        return state, begins

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
