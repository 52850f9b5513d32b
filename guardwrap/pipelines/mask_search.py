"""A best-first search of a vocabulary trie for next tokens that cannot lead to a satisfying text."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from guardwrap.constraints.verdicts import REPLACEMENT, Monitor, Verdict, split
from guardwrap.pipelines.vocabulary import Trie, run_text

if TYPE_CHECKING:
    from guardwrap.pipelines.masking import ConstraintMask

MOST_LOOKED_AT = 2048
"""The most nodes of the trie and single tokens that are judged for one next token."""

_ROUNDING = 1e-9
"""Differences of probabilities below this are dominated by rounding."""

Node = tuple[Monitor, bytes] | None
"""The monitor at a node and the bytes of an incomplete character; None for a dead node, which nothing can follow."""


class Search:
    """A search for dead tokens among the possible next ones. The most probable candidates are judged first.

    Parameters
    ----------
    mask
        The mask.
    ids
        New tokens so far.
    tokens, shares
        The ids of possible next tokens, and their probabilities; ``[tokens]`` each.

    Attributes
    ----------
    left, unknown
        The probability of tokens judged possible, and of tokens not judged.
    heap
        A priority queue of unjudged candidates by probability: nodes of the trie, each with its parent, and tokens that
        are judged one by one, stored as -1 - token.
    """

    def __init__(
        self, mask: ConstraintMask, ids: tuple[int, ...], tokens: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]
    ) -> None:
        self._mask = mask
        self._ids = ids
        self._full = len(ids) + 1 >= mask.full
        self._gone = np.zeros(max(int(tokens.max()) + 1, mask.size), dtype=bool)
        self._share = np.zeros(len(self._gone))
        self._share[tokens] = shares
        self._alone: dict[int, bool] = dict.fromkeys(mask.law.end_ids, False)  # whether each is masked
        self.left, self.unknown = 0.0, float(shares.sum())
        self.heap: list[tuple[float, int, int]] = []
        self._looked = 0
        self._rest = 0.0  # the probability of tokens beyond the limit, which are not judged
        ahead = mask.ahead(ids)
        if ahead is None:
            self._trie = None
            order = tokens[(-shares).argsort(kind="stable")]
            self._push_tokens(order[:MOST_LOOKED_AT].tolist())
            self._rest = float(self._share[order[MOST_LOOKED_AT:]].sum())
        else:
            self._monitor, self._before, self._trie = ahead
            self._begin(self._trie)

    @property
    def gone(self) -> npt.NDArray[np.bool_]:
        """Whether each token is masked, by token id."""
        for token, out in self._alone.items():
            if token < len(self._gone):
                self._gone[token] = out
        return self._gone

    def goes_on(self) -> bool:
        """Whether unjudged tokens still have more than the allowed share of probability."""
        if not self.heap or self._looked == MOST_LOOKED_AT:
            return False
        if self.unknown < _ROUNDING:
            self.unknown = self._rest - math.fsum(negative for negative, _, _ in self.heap)
        return self.unknown > self._mask.unseen * self.left

    def step(self) -> None:
        """Judge the most probable candidate."""
        self._looked += 1
        negative, place, above = heapq.heappop(self.heap)
        if place < 0:
            token = -1 - place
            self._alone[token] = self._fails(token)
            self._resolve(-negative, out=self._alone[token])
        else:
            self._enter(place, above)
        if not self.heap:
            self.unknown = self._rest

    def _begin(self, trie: Trie) -> None:
        """Put all possible next tokens on the heap."""
        vocabulary = self._mask.vocabulary
        assert vocabulary is not None
        run, pending = self._before.run, self._before.pending
        start = self._monitor.read(run_text(run)) if run else self._monitor
        possible = self._may_follow(run) if run else _read(start, pending) is not None
        ends = [token for token in self._alone if token < len(self._share)]
        others = self._share.copy()
        others[ends] = 0.0
        self._ordered = others[trie.order]
        key = start.key
        self._known = self._mask.judged(None if key is None else (key, pending, id(trie)))
        self._known[0] = None if start.verdict is Verdict.VIOLATED or not possible else (start, pending)
        self._push_tokens([*ends, *(token for token in vocabulary.single if self._share[token] > 0)])
        hidden = [*vocabulary.hidden.tolist(), *range(vocabulary.size, len(others))]
        hidden = [token for token in hidden if others[token] > 0]
        if self._full:
            self._push_tokens(hidden)
        elif hidden:
            self._gone[hidden] = not possible
            self._resolve(float(others[hidden].sum()), out=not possible)
        self._enter(0, 0)

    def _enter(self, node: int, above: int) -> None:
        """Judge a node of the trie: mask all tokens below it, or keep those that end at it."""
        trie: Any = self._trie
        if node not in self._known:
            self._known[node] = self._after(above, trie.labels[node])
        first, own, last = trie.first[node], trie.own[node], trie.last[node]
        if self._known[node] is None:
            self._gone[trie.order[first:last]] = True
            self._resolve(float(self._ordered[first:last].sum()), out=True)
            return
        if self._full:
            self._push_tokens(trie.order[first:own].tolist())
        else:
            self._resolve(float(self._ordered[first:own].sum()), out=False)
        below = trie.below[node]
        if len(below):
            masses = np.add.reduceat(self._ordered[:last], trie.first[below])
            some = masses > 0
            for inner, mass in zip(below[some].tolist(), masses[some].tolist(), strict=True):
                heapq.heappush(self.heap, (-mass, inner, node))

    def _after(self, above: int, label: bytes) -> Node:
        """Return the node below another one, after the bytes of its label; None if it is dead."""
        before = self._known[above]
        assert before is not None
        return _read(before[0], before[1] + label)

    def _push_tokens(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._share[token] > 0:
                heapq.heappush(self.heap, (-float(self._share[token]), -1 - token, 0))

    def _resolve(self, mass: float, *, out: bool) -> None:
        self.unknown -= mass
        if not out:
            self.left += mass

    def _fails(self, token: int) -> bool:
        """Whether a single token is dead."""
        mask = self._mask
        if self._trie is None or self._full or token in mask.law.end_ids:
            return mask.dead(self._ids, [token])[0]
        vocabulary: Any = mask.vocabulary
        return not self._may_follow(self._before.run + bytes([vocabulary.single[token]]))

    def _may_follow(self, run: bytes) -> bool:
        """Whether a run of single bytes may come next, as UTF-8 or with each byte as U+FFFD."""
        text, pending = split(run)
        if text.encode() + pending == run and _read(self._monitor, run) is not None:
            return True
        return self._monitor.read(REPLACEMENT * len(run)).verdict is not Verdict.VIOLATED


def _read(monitor: Monitor, raw: bytes) -> Node:
    """Return the monitor after some bytes, and the incomplete character at their end; None if nothing can follow."""
    text, pending = split(raw)
    after = monitor.read(text) if text else monitor
    if after.verdict is Verdict.VIOLATED or (pending and not after.may_begin(pending)):
        return None
    return after, pending
