"""Deterministic automata over characters, which follow how far a text has come towards satisfying a constraint."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from guardwrap.constraints.verdicts import Progress
from guardwrap.support.time_limits import check_deadline

MOST_STATES = 20_000
"""The most states of an automaton."""

MOST_KINDS, MOST_CELLS, MOST_PAIRS = 30_000, 5_000_000, 20_000_000
"""The most kinds of characters, entries of a table, and pairs of states of two automata: up to 100 MB."""

States = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


class TooManyStates(Exception):
    """The automaton of a constraint has more than ``MOST_STATES`` states, or its tables are too large."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """An automaton as tables. States are numbers, and 0 is the start."""

    table: States  # the state after each kind of character, ``[states, kinds]``
    kind_of: Callable[[str], int]  # returns the kind of a character, as a number
    # whether a text that ends in each state satisfies the constraint, if the model ended it and if the token limit did;
    # ``[states]`` each
    ended: Flags
    cut: Flags

    def __len__(self) -> int:
        return len(self.table)

    def read(self, text: str, state: int = 0) -> int:
        """Return the state after a text."""
        for char in text:
            state = int(self.table[state, self.kind_of(char)])
        return state

    def live(self) -> Flags:
        """Return from which states a satisfying text can be reached, ``[states]``."""
        return self._reaches(self.ended | self.cut)

    def safe(self) -> Flags:
        """Return from which states only satisfying texts can be reached, ``[states]``."""
        return ~self._reaches(~(self.ended & self.cut))

    def _reaches(self, some: Flags) -> Flags:
        """Return from which states one of some states can be reached."""
        count, kinds = self.table.shape
        ends = np.flatnonzero(some)
        # Edges in reverse, and one more node with an edge to each of these states.
        begin = np.concatenate([self.table.ravel(), np.full(len(ends), count, dtype=np.int32)])
        after = np.concatenate([np.repeat(np.arange(count, dtype=np.int32), kinds), ends.astype(np.int32)])
        edges = csr_array((np.ones(len(begin), dtype=np.int8), (begin, after)), shape=(count + 1, count + 1))
        reached = np.zeros(count + 1, dtype=np.bool_)
        reached[breadth_first_order(edges, count, return_predecessors=False)] = True
        return reached[:count]


def build(progress: Progress) -> Automaton:
    """Return the tables of the states that can be reached."""
    numbers: dict[Hashable, int] = {progress.start: 0}
    states, rows = [progress.start], []
    for state in states:  # the list grows during the loop
        check_deadline()
        row = []
        for kind in progress.kinds:
            after = progress.step(state, kind)
            if after not in numbers:
                if len(states) == MOST_STATES or len(states) * len(progress.kinds) > MOST_CELLS:
                    raise TooManyStates
                numbers[after] = len(states)
                states.append(after)
            row.append(numbers[after])
        rows.append(row)
    kinds, kind_of = {kind: number for number, kind in enumerate(progress.kinds)}, progress.kind_of
    table, merged = _merged(np.array(rows, dtype=np.int32).reshape(len(states), len(kinds)))
    return Automaton(
        table,
        lambda char: merged[kinds[kind_of(char)]],
        np.array([progress.satisfied(state, True) for state in states]),
        np.array([progress.satisfied(state, False) for state in states]),
    )


def minimized(automaton: Automaton) -> Automaton:
    """Return the automaton in which states that no text tells apart are one (Moore 1956).

    Fewer states are learned from fewer attempts. States are compared by sums of random numbers of 64 bits.
    """
    random = np.random.default_rng(0)
    groups = np.unique(automaton.ended + 2 * automaton.cut, return_inverse=True)[1]
    factors = random.integers(1, 2**63, automaton.table.shape[1] + 1, dtype=np.uint64) | np.uint64(1)
    before = 0
    while (count := int(groups.max()) + 1) > before:
        check_deadline()
        before, names = count, random.integers(0, 2**63, len(automaton), dtype=np.uint64)
        sums = names[groups] * factors[-1]
        for column, factor in zip(automaton.table.T, factors, strict=False):
            sums += names[groups[column]] * factor
        groups = np.unique(sums, return_inverse=True)[1]
    # Number the groups by their first states, so that the start stays 0.
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    kept, number = first[order], place[group]
    columns, merged = _merged(number[automaton.table[kept]])
    kind_of = automaton.kind_of
    return Automaton(columns, lambda char: merged[kind_of(char)], automaton.ended[kept], automaton.cut[kept])


def product(automata: Sequence[Automaton], combine: Callable[[Flags, Flags], Flags]) -> Automaton:
    """Return the automaton that follows several at once.

    ``combine``: combines whether two parts are satisfied: ``numpy.logical_and`` for all parts, ``numpy.logical_or``
    for any.
    """
    return reduce(lambda one, other: _pair(one, other, combine), automata)


def _pair(one: Automaton, other: Automaton, combine: Callable[[Flags, Flags], Flags]) -> Automaton:
    widths = one.table.shape[1], other.table.shape[1]
    if widths[0] * widths[1] > MOST_KINDS or len(one) * len(other) > MOST_PAIRS:
        raise TooManyStates
    left, right = (axis.ravel() for axis in np.indices(widths))
    numbers = np.full(len(one) * len(other), -1, dtype=np.int32)
    numbers[0] = 0
    states, table, frontier = np.array([0]), [], np.array([0])
    while len(frontier):
        check_deadline()
        if len(states) * len(left) > MOST_CELLS:
            raise TooManyStates
        after = one.table[frontier // len(other)][:, left].astype(np.int64) * len(other)
        after += other.table[frontier % len(other)][:, right]
        new = np.unique(after)
        new = new[numbers[new] < 0]
        if len(states) + len(new) > MOST_STATES:
            raise TooManyStates
        numbers[new] = np.arange(len(states), len(states) + len(new), dtype=np.int32)
        states = np.concatenate([states, new])
        table.append(numbers[after])
        frontier = new
    first, second = states // len(other), states % len(other)
    columns, merged = _merged(np.concatenate(table))
    return Automaton(
        columns,
        lambda char: merged[one.kind_of(char) * widths[1] + other.kind_of(char)],
        combine(one.ended[first], other.ended[second]),
        combine(one.cut[first], other.cut[second]),
    )


def _merged(table: States) -> tuple[States, list[int]]:
    """Return a table in which kinds of characters with equal columns are one, and the new number of each kind."""
    _, first, number = np.unique(table, axis=1, return_index=True, return_inverse=True)
    return table[:, first], number.ravel().tolist()
