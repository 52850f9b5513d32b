"""Which next tokens could not lead to a text that satisfies the constraint."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.constraints.base import EXPENSIVE, Constraint
from guardwrap.constraints.checking import guarded_call, judge_parts
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.constraints.utf8 import REPLACEMENT
from guardwrap.constraints.verdicts import Monitor
from guardwrap.documents.time_limits import StepOver, call_apart, now, time_limit
from guardwrap.errors import CheckFailed
from guardwrap.outcomes import Draw
from guardwrap.pipelines.early_abort import PrefixWatch
from guardwrap.pipelines.mask_search import Node, Search
from guardwrap.pipelines.vocabulary import Ahead, Trie, Vocabulary

__all__ = ["ConstraintMask"]

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


@dataclass(eq=False)
class ConstraintMask:
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
        self._parts = [part for part in self.constraint.parts if part.cost < EXPENSIVE]
        self._interruptible = all(part.interruptible for part in self.constraint.parts)
        # The user's own code may wait for something, which costs no time of the processor.
        self._time = time.monotonic if runs_code(self.constraint) else now
        self._looks = 0
        self._seconds = 0.0
        self._judged: OrderedDict[Hashable, dict[int, Node]] = OrderedDict()
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
        return call_apart(lambda: self._searched(token_ids, tokens, shares), self.constraint)

    def _searched(
        self, token_ids: Sequence[int], tokens: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:
        self._looks += 1
        search: Search | None = None
        began = self._time()
        end = began + BURST_SECONDS + STEP_SECONDS * self._looks - self._seconds
        try:
            with time_limit(end - began, firm=True), guarded_call(self.constraint):
                search = Search(self, tuple(token_ids), tokens, shares)
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

    def judged(self, key: Hashable | None) -> dict[int, Node]:
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
