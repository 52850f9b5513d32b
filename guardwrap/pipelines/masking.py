"""Which next tokens could not lead to a text that satisfies the constraint."""

from __future__ import annotations

import heapq
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from guardwrap.backends.law import GenerationLaw
from guardwrap.constraints.base import Constraint, Monitor, Verdict
from guardwrap.constraints.callables import runs_code
from guardwrap.constraints.characters import REPLACEMENT, split
from guardwrap.constraints.judge import guarded_call, judge_parts
from guardwrap.constraints.limits import StepOver, apart, now, time_limit
from guardwrap.draws import Draw
from guardwrap.errors import CheckFailed
from guardwrap.pipelines.prefix import PrefixWatch
from guardwrap.pipelines.vocabulary import Ahead, Trie, Vocabulary, run_text

__all__ = ["Mask"]

DEAR = 2
"""``Constraint.cost`` of parts that are not asked about texts which nobody may ever draw: classifiers."""

MOST_LOOKED_AT = 2048
"""Nodes of the trie, and single tokens, that are judged for one next token."""

BURST_SECONDS, STEP_SECONDS = 0.5, 0.02
"""A request's mask may take so long at once, and so long on average for a next token; then it is given up."""

KEPT = 10_000
"""Judgements that are kept for monitors that judge alike, and prefixes whose ways on are known."""

MOST_WAYS = 64
"""Ways on from a prefix that are counted."""

_GIVEN_UP = (
    "the mask was given up after {} tokens, as it took too long: later tokens were drawn without it; "
    "a simpler constraint, or shorter texts, would keep it"
)
_UNSEEN = (
    "the mask did not look at all tokens: those that it left unseen had up to {:.1%} of what remained, "
    "and attempts that drew a wrong one of them were rejected"
)

_ROUNDING = 1e-9
"""Below this a difference of probabilities is not exact enough."""

_Node = tuple[Monitor, bytes] | None


@dataclass(eq=False)
class Mask:
    """Judges the candidates of a next token: those that end the text as whole texts, the others by their verdicts.

    Parameters
    ----------
    watch
        Of the same prompt.
    law
        Of the same prompt: it says which tokens end a text.
    constraint
        b.
    draw
        From new tokens and whether they ended by themselves to the text as the user gets it.
    unseen
        Of what is left, the share that tokens which were not looked at may have.
    vocabulary
        What each token adds to a text; None where that is not known, so that tokens are judged one by one.

    Attributes
    ----------
    impossible : bool
        Whether it is known that no text can be drawn which satisfies the constraint.
    given_up : int or None
        After how many tokens it was given up, because it took too long.
    unseen_most : float
        The largest share of what was left that tokens had which were not looked at.
    """

    watch: PrefixWatch
    law: GenerationLaw
    constraint: Constraint
    draw: Callable[[Sequence[int], bool], Draw]
    unseen: float
    vocabulary: Vocabulary | None = None
    impossible: bool = field(default=False, init=False)
    given_up: int | None = field(default=None, init=False)
    unseen_most: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._parts = [part for part in self.constraint.parts if part.cost < DEAR]
        self._interruptible = all(part.interruptible for part in self.constraint.parts)
        # The user's own code may wait for something, which costs no time of the processor.
        self._time = time.monotonic if runs_code(self.constraint) else now
        self._looks = 0
        self._seconds = 0.0
        self._judged: OrderedDict[Hashable, dict[int, _Node]] = OrderedDict()
        self._ways: OrderedDict[tuple[int, ...], set[int]] = OrderedDict()

    @property
    def notes(self) -> list[str]:
        """What the report says of it."""
        found = [] if self.given_up is None else [_GIVEN_UP.format(self.given_up)]
        return [*found, _UNSEEN.format(self.unseen_most)] if self.unseen_most > self.unseen else found

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Say for each candidate whether no text that begins with these tokens and it satisfies the constraint.

        Parameters
        ----------
        token_ids
            New tokens so far.
        candidates
            Token ids.

        Raises
        ------
        CheckFailed
            If the constraint cannot judge one of them.
        """
        over = [self._over(token_ids, token) for token in candidates]
        growing = [token for token, ends in zip(candidates, over, strict=True) if not ends]
        ending = [token for token, ends in zip(candidates, over, strict=True) if ends]
        violated = iter(self.watch.violated(token_ids, growing))
        fails = iter(self._fail([self._drawn(token_ids, token) for token in ending]))
        return [next(fails if ends else violated) for ends in over]

    def left_out(
        self, token_ids: Sequence[int], tokens: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        """Return which of all tokens that may come next are left out.

        They are looked at from the likeliest down, those that begin alike together, until the others have hardly any
        share of what is left. When that is depends on the law alone, unless the time for it is over.

        Parameters
        ----------
        token_ids
            New tokens so far.
        tokens
            What may come next, ``[tokens]``.
        shares
            Their probabilities, ``[tokens]``.

        Raises
        ------
        CheckFailed
            If the constraint cannot judge one of them.
        """
        if self.given_up is not None:
            return np.zeros(len(tokens), dtype=bool)
        if self._interruptible:
            return self._searched(token_ids, tokens, shares)
        return apart(lambda: self._searched(token_ids, tokens, shares), self.constraint)

    def _searched(
        self, token_ids: Sequence[int], tokens: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        self._looks += 1
        search: _Search | None = None
        began = self._time()
        end = began + BURST_SECONDS + STEP_SECONDS * self._looks - self._seconds
        try:
            with time_limit(end - began, firm=True), guarded_call(self.constraint):
                search = _Search(self, tuple(token_ids), tokens, shares)
                while search.goes_on():
                    if self._time() >= end:
                        self.given_up = self._looks
                        break
                    search.step()
        except StepOver:
            # Others wait. What is known to lead nowhere is left out, and the rest stays in.
            if search is None:
                raise
        except CheckFailed:
            if self._time() < end:
                raise
            self.given_up = self._looks  # what failed had no time left
        self._seconds += self._time() - began
        if search is None:
            return np.zeros(len(tokens), dtype=bool)
        if search.left + search.unknown > 0:
            self.unseen_most = max(self.unseen_most, search.unknown / (search.left + search.unknown))
        gone = search.gone[tokens]
        if not search.heap and search.unknown == 0 and (~gone).sum() <= MOST_WAYS:
            self._remember(tuple(token_ids), set(tokens[~gone].tolist()))
        return gone

    def close(self, token_ids: Sequence[int]) -> None:
        """Note that no token may follow these; where they were the last way on from a prefix, none may follow that."""
        ids = tuple(token_ids)
        while ids:
            ids, last = ids[:-1], ids[-1]
            ways = self._ways.get(ids)
            if ways is None:
                return
            ways.discard(last)
            if ways:
                return
        self.impossible = True

    def _remember(self, ids: tuple[int, ...], ways: set[int]) -> None:
        self._ways[ids] = ways
        if len(self._ways) > KEPT:
            self._ways.popitem(last=False)

    def judged(self, key: Hashable | None) -> dict[int, _Node]:
        """Return the judgements on nodes of the trie that monitors with this key have in common."""
        if key is None:
            return {}
        found = self._judged.setdefault(key, {})
        self._judged.move_to_end(key)
        while len(self._judged) > 1 and sum(map(len, self._judged.values())) > KEPT:
            self._judged.popitem(last=False)
        return found

    def ahead(self, token_ids: tuple[int, ...]) -> tuple[Monitor, Ahead, Trie] | None:
        """Return what judges and what stands before the next token, and the trie; None where that is not known."""
        vocabulary = self.vocabulary
        if vocabulary is None:
            return None
        read, monitor = self.watch.monitor(token_ids)
        before = vocabulary.ahead(token_ids)
        if before.text.rstrip(REPLACEMENT) != read.rstrip(REPLACEMENT):
            return None
        return monitor.read(before.text[len(read) :]), before, vocabulary.trie(begins=before.begins)

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary, as far as that is known."""
        return 0 if self.vocabulary is None else self.vocabulary.size

    @property
    def full(self) -> int:
        """The number of new tokens at which a text is cut."""
        return self.law.max_length - len(self.law.ids)

    def _over(self, token_ids: Sequence[int], token: int) -> bool:
        return len(token_ids) + 1 >= self.full or token in self.law.end_ids

    def _drawn(self, token_ids: Sequence[int], token: int) -> Draw:
        return self.draw([*token_ids, token], token in self.law.end_ids)

    def _fail(self, draws: Sequence[Draw]) -> list[bool]:
        return [not judgement.satisfied for judgement in judge_parts(self._parts, draws)]


class _Search:
    """A search for the tokens that lead nowhere, among all that may come next: what is likeliest is judged first.

    Parameters
    ----------
    mask
        The mask.
    ids
        New tokens so far.
    tokens, shares
        What may come next, and with which probability; ``[tokens]`` each.

    Attributes
    ----------
    left, unknown
        The probability of tokens that are not left out, and of those that were not judged.
    heap
        What has not been judged, the likeliest first: nodes of the trie, each with the one above it, and tokens that
        are judged one by one, as -1 - token.
    """

    def __init__(
        self, mask: Mask, ids: tuple[int, ...], tokens: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]
    ) -> None:
        self._mask = mask
        self._ids = ids
        self._full = len(ids) + 1 >= mask.full
        self._gone = np.zeros(max(int(tokens.max()) + 1, mask.size), dtype=bool)
        self._share = np.zeros(len(self._gone))
        self._share[tokens] = shares
        self._alone: dict[int, bool] = dict.fromkeys(mask.law.end_ids, False)  # is it left out
        self.left, self.unknown = 0.0, float(shares.sum())
        self.heap: list[tuple[float, int, int]] = []
        self._looked = 0
        self._rest = 0.0  # the probability of tokens that will not be judged
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
        """Whether a token is left out, by token id."""
        for token, out in self._alone.items():
            if token < len(self._gone):
                self._gone[token] = out
        return self._gone

    def goes_on(self) -> bool:
        """Whether tokens of notable probability have not been judged yet."""
        if not self.heap or self._looked == MOST_LOOKED_AT:
            return False
        if self.unknown < _ROUNDING:
            self.unknown = self._rest - math.fsum(negative for negative, _, _ in self.heap)
        return self.unknown > self._mask.unseen * self.left

    def step(self) -> None:
        """Judge what is likeliest."""
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
        """Put all that may come next on the heap."""
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
        """Judge a node of the trie: leave out all of its tokens, or none that ends with it."""
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

    def _after(self, above: int, label: bytes) -> _Node:
        """Return what judges, and which bytes are pending, after some more; None where nothing can follow them."""
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
        """Judge one token."""
        mask = self._mask
        if self._trie is None or self._full or token in mask.law.end_ids:
            return mask.dead(self._ids, [token])[0]
        vocabulary: Any = mask.vocabulary
        return not self._may_follow(self._before.run + bytes([vocabulary.single[token]]))

    def _may_follow(self, run: bytes) -> bool:
        """Return whether a run of single bytes may come next: as UTF-8, or each byte as U+FFFD."""
        text, pending = split(run)
        if text.encode() + pending == run and _read(self._monitor, run) is not None:
            return True
        return self._monitor.read(REPLACEMENT * len(run)).verdict is not Verdict.VIOLATED


def _read(monitor: Monitor, raw: bytes) -> _Node:
    """Return what judges what comes after some bytes, and those that are pending; None where nothing can follow."""
    text, pending = split(raw)
    after = monitor.read(text) if text else monitor
    if after.verdict is Verdict.VIOLATED or (pending and not after.may_begin(pending)):
        return None
    return after, pending
