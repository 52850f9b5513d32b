"""Masks: which next tokens cannot lead to a text that satisfies the constraint."""

from __future__ import annotations

import heapq
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from guardwrap.constraints.base import EXPENSIVE, Constraint
from guardwrap.constraints.checking import guarded_call, judge_parts
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.constraints.verdicts import REPLACEMENT, Monitor, Verdict, split
from guardwrap.engine.generation_law import TRUNCATIONS, GenerationLaw
from guardwrap.engine.scheduling.backend import keep_state, last_state
from guardwrap.errors import CheckFailed
from guardwrap.models.call_syntax import hastened
from guardwrap.models.early_abort import PrefixWatch
from guardwrap.models.vocabulary import Ahead, Trie, Vocabulary, run_text
from guardwrap.outcomes import Draw
from guardwrap.support.time_limits import StepOver, call_apart, now, time_limit

BURST_SECONDS, STEP_SECONDS = 0.5, 0.02
"""Seconds allowed per request: a reserve, plus so much per token. A mask that takes longer is given up.

One that goes beyond truncation has the reserve for every token instead, and is not given up: it is asked for because
hardly any text passes without it. With calls in XML, a slow machine gave it up, and 380 attempts in prose followed.
"""

KEPT = 10_000
"""The most cached trie nodes, and the most prefixes with their possible next tokens."""

MOST_WAYS = 64
"""The most possible next tokens that are remembered for a prefix."""


@dataclass(eq=False)
class Beginning:
    """A beginning of texts, as far as a mask remembers it."""

    ways: set[int] | None = None  # the next tokens that are not known to be dead; None if they were not all looked at
    following: dict[int, Beginning] = field(default_factory=dict)  # the longer beginnings, by their last token


_GIVEN_UP = (
    "the mask was given up after {} tokens because it took too long: later tokens were drawn without it; "
    "use a simpler constraint or shorter texts to keep it"
)
_BEYOND = (
    "where {} left no token that the mask allows, other tokens were drawn, so your model itself cannot draw some of "
    "these texts under your settings"
)
_UNSEEN = (
    "the mask did not look at all tokens: the others had up to {:.1%} of the probability that remained, "
    "and attempts that drew a wrong one of them were rejected"
)


@dataclass(eq=False)
class ConstraintMask:
    """Judges candidates for the next token: by the whole text if they end it, else by the verdict on the prefix."""

    watch: PrefixWatch  # the watch of the prompt
    law: GenerationLaw  # the law of the prompt, which defines the tokens that end a text
    constraint: Constraint  # the constraint, b
    # makes the draw that the user receives, from new tokens and whether the model ended them
    draw: Callable[[Sequence[int], bool], Draw]
    unseen: float  # the share of the remaining probability that unjudged tokens may have, from 0 to 1
    # the text that each token adds; None if that is not known, and tokens have to be judged one by one
    vocabulary: Vocabulary | None = None
    # whether a token may be drawn that truncation leaves out, where it leaves none that the mask allows
    beyond: bool = False
    narrower: bool = False  # whether its watch leaves out texts that satisfy the constraint
    # whether it has been shown that no text that can be drawn satisfies the constraint
    impossible: bool = field(default=False, init=False)
    # the number of tokens after which the mask was given up because it took too long; None if it was not
    given_up: int | None = field(default=None, init=False)
    # the largest share of the remaining probability that unjudged tokens had
    unseen_most: float = field(default=0.0, init=False)
    # the first new tokens after which every possible next token was excluded; None if that has not happened
    dead_end: tuple[int, ...] | None = field(default=None, init=False)
    went_beyond: bool = field(default=False, init=False)  # whether a token was drawn that truncation leaves out

    def __post_init__(self) -> None:
        self._parts = [part for part in self.constraint.parts if part.cost < EXPENSIVE]
        self._interruptible = all(part.interruptible for part in self.constraint.parts)
        # User code may wait, e.g. for a network, which CPU time would not count.
        self._time = time.monotonic if runs_code(self.constraint) else now
        self._looks = 0
        self._seconds = 0.0
        self._judged: OrderedDict[Hashable, dict[int, Node]] = OrderedDict()
        self._beginning = Beginning()
        self._remembered = 0

    @property
    def notes(self) -> list[str]:
        """Notes about the mask for the report."""
        notes = [] if self.given_up is None else [_GIVEN_UP.format(self.given_up)]
        if self.went_beyond:
            names = [f"{name}={float(getattr(each, attribute)):g}" for each, name, attribute in self._truncations]
            notes.append(_BEYOND.format(" and ".join(names)))
        return [*notes, _UNSEEN.format(self.unseen_most)] if self.unseen_most > self.unseen else notes

    @property
    def _truncations(self) -> list[tuple[Any, str, str]]:
        return [(each, *TRUNCATIONS[type(each)]) for each in self.law.warpers if type(each) in TRUNCATIONS]

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Return for each candidate whether no text that continues with it can satisfy the constraint."""
        over = [self._over(token_ids, token) for token in candidates]
        growing = [token for token, ends in zip(candidates, over, strict=True) if not ends]
        ending = [token for token, ends in zip(candidates, over, strict=True) if ends]
        violated = iter(self.watch.violated(token_ids, growing))
        fails = iter(self._fail([self._drawn(token_ids, token) for token in ending]))
        return [next(fails if ends else violated) for ends in over]

    def outlook(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool | None]:
        """Return for each candidate whether it is possible, that is not dead; None if it adds no visible text.

        Half a character is not judged before later tokens complete it, and white space may lead nowhere.
        """
        dead = self.dead(token_ids, candidates)
        adds = self.watch.adds_text(token_ids, candidates)
        known = [shows or self._over(token_ids, token) for token, shows in zip(candidates, adds, strict=True)]
        return [False if gone else True if sure else None for gone, sure in zip(dead, known, strict=True)]

    def unlimited(self) -> ConstraintMask:
        """Return the mask for texts without a limit on their number of tokens."""
        return replace(self, law=replace(self.law, max_length=2**31))

    def left_out(
        self,
        token_ids: Sequence[int],
        tokens: npt.NDArray[np.int64],
        shares: npt.NDArray[np.float64],
        *,
        beyond: bool = False,
    ) -> npt.NDArray[np.bool_]:
        """Return which of the possible next tokens are masked.

        Tokens are judged from the most probable down, those with a common beginning together, until the others have
        hardly any of the remaining probability. The stopping point depends only on the law, unless time runs out.

        ``tokens`` and ``shares`` are their ids and probabilities, ``[tokens]``. ``beyond``: whether truncation leaves
        them out. Raises CheckFailed if the constraint fails to judge one of them.
        """
        self.went_beyond |= beyond
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
        end = began + BURST_SECONDS + (0.0 if self.beyond else STEP_SECONDS * self._looks - self._seconds)
        try:
            with time_limit(end - began, firm=True), guarded_call(self.constraint):
                search = Search(self, token_ids, tokens, shares)
                while search.goes_on():
                    if self._time() >= end:
                        self._give_up()
                        break
                    search.step()
        except StepOver:
            # The time of this step is over. Mask the tokens known to be dead, and keep the rest.
            if search is None:
                raise
        except CheckFailed:
            if self._time() < end:
                raise
            self._give_up()  # the check failed because time was up
        self._seconds += self._time() - began
        if search is None:
            return np.zeros(len(tokens), dtype=bool)
        if search.left + search.unknown > 0:
            self.unseen_most = max(self.unseen_most, search.unknown / (search.left + search.unknown))
        gone = search.gone[tokens]
        if not search.heap and search.unknown == 0 and (~gone).sum() <= MOST_WAYS:
            self._remember(token_ids, set(tokens[~gone].tolist()))
        return gone

    def _give_up(self) -> None:
        """Exclude nothing from now on; beyond truncation, nothing more at this token."""
        self.given_up = None if self.beyond else self._looks

    def close(self, token_ids: Sequence[int]) -> None:
        """Mark a prefix as dead, and then each shorter prefix whose possible next tokens are all dead."""
        self.dead_end = tuple(token_ids) if self.dead_end is None else self.dead_end
        beginnings = [self._beginning]
        for token in token_ids[:-1]:
            if (following := beginnings[-1].following.get(token)) is None:
                return
            beginnings.append(following)
        for beginning, token in zip(reversed(beginnings), reversed(token_ids), strict=False):
            if beginning.ways is None:
                return
            beginning.ways.discard(token)
            if beginning.ways:
                return
        self.impossible = not self.narrower

    def _remember(self, token_ids: Sequence[int], ways: set[int]) -> None:
        length, beginning = last_state(token_ids, self) or (0, self._beginning)
        for token in token_ids[length:]:
            if self._remembered == KEPT:
                return
            if token not in beginning.following:
                beginning.following[token] = Beginning()
                self._remembered += 1
            beginning = beginning.following[token]
        beginning.ways = ways
        keep_state(token_ids, self, beginning)

    def judged(self, key: Hashable | None) -> dict[int, Node]:
        """Return the cached trie nodes of monitors with this key, which judge alike."""
        if key is None:
            return {}
        nodes = self._judged.setdefault(key, {})
        self._judged.move_to_end(key)
        while len(self._judged) > 1 and sum(map(len, self._judged.values())) > KEPT:
            self._judged.popitem(last=False)
        return nodes

    def ahead(self, token_ids: Sequence[int]) -> tuple[Monitor, Ahead, Trie] | None:
        """Return the monitor, the state of decoding before the next token, and the trie; None if not known."""
        vocabulary = self.vocabulary
        if vocabulary is None:
            return None
        read, monitor = self.watch.monitor(token_ids)
        before = vocabulary.ahead(token_ids)
        if before.text.rstrip(REPLACEMENT) != read.rstrip(REPLACEMENT):
            return None
        monitor = hastened(monitor.read(before.text[len(read) :]), len(token_ids), self.full)
        return monitor, before, vocabulary.trie(begins=before.begins)

    @property
    def size(self) -> int:
        """The number of tokens in the vocabulary; 0 if that is not known."""
        return 0 if self.vocabulary is None else self.vocabulary.size

    @property
    def full(self) -> int:
        """The largest number of new tokens, at which a text is cut off."""
        return self.law.most_new

    def _over(self, token_ids: Sequence[int], token: int) -> bool:
        return len(token_ids) + 1 >= self.full or token in self.law.end_ids

    def _drawn(self, token_ids: Sequence[int], token: int) -> Draw:
        return self.draw([*token_ids, token], token in self.law.end_ids)

    def _fail(self, draws: Sequence[Draw]) -> list[bool]:
        return [not judgement.satisfied for judgement in judge_parts(self._parts, draws)]


MOST_LOOKED_AT = 2048
"""The most nodes of the trie and single tokens that are judged for one next token."""

_ROUNDING = 1e-9
"""Differences of probabilities below this are dominated by rounding."""

Node = tuple[Monitor, bytes] | None
"""The monitor at a node and the bytes of an incomplete character; None for a dead node, which nothing can follow."""


class Search:
    """A search for dead tokens among the possible next ones. The most probable candidates are judged first.

    ``tokens``, ``shares``: the ids of possible next tokens, and their probabilities; ``[tokens]`` each.
    """

    def __init__(
        self, mask: ConstraintMask, ids: Sequence[int], tokens: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]
    ) -> None:
        self._mask = mask
        self._ids = ids
        self._full = len(ids) + 1 >= mask.full
        self._gone = np.zeros(max(int(tokens.max()) + 1, mask.size), dtype=bool)
        self._share = np.zeros(len(self._gone))
        self._share[tokens] = shares
        self._alone: dict[int, bool] = dict.fromkeys(mask.law.end_ids, False)  # whether each is masked
        # the probability of tokens judged possible, and of tokens not judged
        self.left, self.unknown = 0.0, float(shares.sum())
        # unjudged candidates by probability: nodes of the trie, each with its parent, and tokens that are judged one by
        # one, stored as -1 - token
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
        # In prose about 900 tokens are likely, and what is known of them depends on the keys of an object so far.
        if not (run or pending or self._full) and (delimiters := start.delimiters) is not None:
            free = trie.without(delimiters)
            self._resolve(float(self._ordered[free].sum()), out=False)
            self._ordered[free] = 0.0
        key = start.key
        self._known = self._mask.judged(None if key is None else (key, pending, id(trie)))
        self._known[0] = None if start.verdict is Verdict.VIOLATED or not possible else (start, pending)
        self._push_tokens([*ends, *(token for token in vocabulary.single if self._share[token] > 0)])
        hidden = [*vocabulary.hidden.tolist(), *range(vocabulary.size, len(others))]
        hidden = [token for token in hidden if others[token] > 0]
        if self._full:
            self._push_tokens(hidden)
        elif hidden:
            out = not possible or self._mask.beyond  # tokens without text may follow each other up to the limit
            self._gone[hidden] = out
            self._resolve(float(others[hidden].sum()), out=out)
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
