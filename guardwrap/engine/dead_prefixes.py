"""Skipping of attempts that are known to be rejected: only their number is drawn.

If hardly any text satisfies the constraint, nearly every attempt ends after a few tokens, always in the same ways. Let
L be the probability that an attempt is not known to be rejected. The number n of attempts known to be rejected before
the next other one has the geometric distribution P(n) = (1 - L)^n L, and that next attempt has the distribution of
attempts given that they are not known to be rejected. So n is drawn in one step, and then the attempt: texts and
attempt numbers have the same distribution as if every attempt were drawn.

The known part is a tree of prefixes, with the distribution of the next token at each, without the tokens that lead to
rejection only. The tree is built from attempts that were decided before the first attempt is drawn from it, so it does
not depend on any attempt that it is used for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from guardwrap.engine.prefix_cache import TokenLaw
from guardwrap.engine.scheduling.backend import Ids, Lookahead

NEW = 32
"""Maximum number of prefixes to add per call. Each requires computing one token with the model."""

ENTRIES = 2**20
"""Number of candidates in the whole tree, 40 MB, from which on no prefix is added. Judging all candidates would shrink
the tree, but takes 2 s per prefix with 49 k of them, as long as 100 attempts."""

JUDGED = 1024
"""Number of candidates, the most likely, that are judged when a prefix is added. 8 times as many are judged when the
prefix's unjudged candidates may have too large a part of the remaining probability; see ``NOTABLE``."""

NOTABLE = 1 / 16
"""The part of the remaining probability that the unjudged candidates of all prefixes together may have."""

_TINY = -600.0
"""Log-probabilities below this are computed relative to the largest one, because floats underflow near exp(-745)."""

Candidates = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Candidates for the next token: ids, and log-probabilities in nats, the most likely first; ``[candidates]`` each."""


@dataclass(eq=False)
class Branch:
    """A prefix of texts of which not all are known to be rejected: a node of the tree."""

    prefix: Ids  # the new tokens
    # candidates for the next token, without those known to lead to rejection only, and their log-probabilities in nats,
    # the most likely first; ``[candidates]``
    tokens: npt.NDArray[np.int64]
    log_probabilities: npt.NDArray[np.float64]
    judged: int = 0  # number of these that have been judged: the first ones
    quota: int = 0  # number of candidates that were to be judged so far, including those that were removed since
    children: dict[int, Branch] = field(default_factory=dict)  # longer prefixes, by their next token
    # Log-probability, in nats, that a text with this prefix is not known to be rejected. The probability itself may be
    # smaller than any float.
    log_live: float = 0.0
    # The distribution of the next token, given that the text is not known to be rejected. The log-probabilities that it
    # records are those of the full distribution, without this condition.
    law: TokenLaw | None = None

    def judge(self, lookahead: Lookahead) -> None:
        """Judge the most likely candidates: the first ``JUDGED``, and in later calls 8 times as many in total."""
        more = 7 * self.quota if self.quota else JUDGED
        some = self.tokens[self.judged : self.judged + more].tolist()
        dead = lookahead.dead(self.prefix, some) if some else []
        self.quota += more
        self.judged += len(some)
        self.leave_out({token for token, gone in zip(some, dead, strict=True) if gone})

    def leave_out(self, dead: set[int]) -> None:
        """Remove candidates that lead to rejection only."""
        gone = np.isin(self.tokens, list(dead))
        self.judged -= int(gone[: self.judged].sum())
        self.tokens, self.log_probabilities = self.tokens[~gone], self.log_probabilities[~gone]
        for token in dead:
            self.children.pop(token, None)

    def weigh(self) -> None:
        """Compute ``log_live`` and ``law`` of this branch and all branches below it."""
        for child in self.children.values():
            child.weigh()
        self.leave_out({token for token, child in self.children.items() if child.log_live == -math.inf})
        logs = self.log_probabilities.copy()
        for token, child in self.children.items():
            logs[self.tokens == token] += child.log_live
        top = float(logs.max()) if len(logs) else -math.inf
        shift = top if top < _TINY else 0.0
        shares = np.exp(logs - shift)
        some = shares > 0
        bounds = shares[some].cumsum()
        self.log_live = min(math.log(bounds[-1]) + shift, 0.0) if len(bounds) else -math.inf
        if len(bounds):
            tokens, values = self.tokens[some].tolist(), self.log_probabilities[some].tolist()
            self.law = TokenLaw(tokens, values, bounds.tolist(), float(bounds[-1]), gaps=False)

    def below(self, reached: float = 0.0) -> Iterator[tuple[Branch, float]]:
        """Yield this branch and those below, each with the log-probability of its prefix in nats."""
        yield self, reached
        for token, child in self.children.items():
            yield from child.below(reached + float(self.log_probabilities[self.tokens == token][0]))

    def at(self, prefix: Sequence[int]) -> Branch | None:
        """Return the branch of a prefix, or None if there is none."""
        branch: Branch | None = self
        for token in prefix:
            branch = None if branch is None else branch.children.get(token)
        return branch


@dataclass(frozen=True, eq=False)
class WithoutDeadPrefixes:
    """The distribution of a request's attempts, given that they are not known to be rejected."""

    root: Branch  # the branch of the empty prefix, where attempts start
    # log L in nats, where L is the probability that an attempt is not known to be rejected; -inf if every text is known
    # to be rejected
    log_live: float
    computed: int  # number of tokens for which the model was run to build it


def without_dead_prefixes(
    before: Branch | None,
    ended: Sequence[tuple[Ids, bool]],
    law_after: Callable[[Ids], Candidates],
    lookahead: Lookahead,
) -> Branch:
    """Exclude more texts that are known to be rejected, and return the branch where attempts start.

    ``before``: the root of the tree so far; None for the first call. It is extended in place, so no attempt that is
    drawn from it may be in flight.
    """
    root = before or Branch((), *law_after(()))
    if before is None:
        root.judge(lookahead)
    added, size = 0, sum(len(branch.tokens) for branch, _ in root.below())
    # Add prefixes that at least two attempts share, the most frequent first, so that each comes before longer ones.
    visits = Counter(ids[:end] for ids, _ in ended for end in range(1, len(ids)))
    for prefix, count in visits.most_common():
        if count < 2 or added == NEW or size >= ENTRIES:
            break
        parent = root.at(prefix[:-1])
        if parent is not None and prefix[-1] in parent.tokens and prefix[-1] not in parent.children:
            child = parent.children[prefix[-1]] = Branch(prefix, *law_after(prefix))
            child.judge(lookahead)
            added, size = added + 1, size + len(child.tokens)
    for ids, rejected in ended:
        if rejected and (parent := root.at(ids[:-1])) is not None:
            parent.leave_out({ids[-1]})
    root.weigh()
    branches = list(root.below())
    notable = math.log(NOTABLE / len(branches)) + root.log_live
    for branch, reached in branches:
        unjudged = float(np.exp(branch.log_probabilities[branch.judged :]).sum())
        if unjudged > 0 and reached + math.log(unjudged) > notable:
            branch.judge(lookahead)
    root.weigh()
    return root
