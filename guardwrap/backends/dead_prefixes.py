"""Attempts that are known to be rejected are not drawn: how many there were before the next other one is.

Where hardly any text satisfies the constraint, nearly every attempt ends after a few tokens, always in the same ways.
Let L be the share of the law that is not known to be rejected. The number n of attempts that are, before the next one
that is not, has the geometric law (1 - L)^n L, and that next one has the law given that it is not. So the number is
drawn at once, and then the attempt: texts and attempt numbers are distributed as if everything was drawn.

What is known is a tree of prefixes, with the law of the next token at each, and the tokens that lead nowhere left out.
It is made of attempts that were decided before the first one is drawn from it, so it depends on none that it is used
for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from guardwrap.backends.prefix_cache import TokenLaw
from guardwrap.scheduling.backend import Ids, TokenMask

__all__ = ["Branch", "Candidates", "WithoutDeadPrefixes", "without_dead_prefixes"]

NEW = 32
"""Prefixes that are added at a time: each takes the model one token."""

ENTRIES = 2**20
"""Candidates of all prefixes together from which on none is added: 40 MB. To judge all that were not judged yet would
make room, but takes 2 s a prefix with 49 k of them, as long as 100 attempts."""

JUDGED = 1024
"""Candidates that are judged at a prefix when it is added, the likeliest; 8 times as many whenever the others of all
prefixes may be a large part of what is left, ``NOTABLE`` of it."""

NOTABLE = 1 / 16

_TINY = -600.0
"""Logarithm of shares that are held against the largest one, as floats end at exp(-745)."""

Candidates = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]
"""Of the next token: ids, and log-probabilities in nats, the likeliest first; ``[candidates]`` each."""


@dataclass(eq=False)
class Branch:
    """A prefix of texts of which not all are known to be rejected.

    Parameters
    ----------
    prefix
        New tokens so far.
    tokens, log_probabilities
        The candidates of the next token that are not known to lead nowhere, the likeliest first; ``[candidates]``.
    judged
        How many of these have been judged: the first ones.
    quota
        How many were to be judged at first, those that lead nowhere included.
    children
        By the next token.
    log_live
        Logarithm of the share of the texts with this prefix that are not known to be rejected: the share itself may be
        less than any float.
    law
        Of the next token, given that the text is not known to be rejected; its log-probabilities are those of the
        whole law.
    """

    prefix: Ids
    tokens: npt.NDArray[np.int64]
    log_probabilities: npt.NDArray[np.float64]
    judged: int = 0
    quota: int = 0
    children: dict[int, Branch] = field(default_factory=dict)
    log_live: float = 0.0
    law: TokenLaw | None = None

    def judge(self, mask: TokenMask) -> None:
        """Judge the first candidates, or 8 times as many as before."""
        more = 7 * self.quota if self.quota else JUDGED
        some = self.tokens[self.judged : self.judged + more].tolist()
        dead = mask.dead(self.prefix, some) if some else []
        self.quota += more
        self.judged += len(some)
        self.leave_out({token for token, gone in zip(some, dead, strict=True) if gone})

    def leave_out(self, dead: set[int]) -> None:
        """Forget these of the candidates."""
        gone = np.isin(self.tokens, list(dead))
        self.judged -= int(gone[: self.judged].sum())
        self.tokens, self.log_probabilities = self.tokens[~gone], self.log_probabilities[~gone]
        for token in dead:
            self.children.pop(token, None)

    def weigh(self) -> None:
        """Compute ``log_live`` and ``law``, here and below."""
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
        """Yield this branch and those below, each with the log-probability of its prefix."""
        yield self, reached
        for token, child in self.children.items():
            yield from child.below(reached + float(self.log_probabilities[self.tokens == token][0]))

    def at(self, prefix: Sequence[int]) -> Branch | None:
        """Return the branch of a prefix, if there is one."""
        found: Branch | None = self
        for token in prefix:
            found = None if found is None else found.children.get(token)
        return found


@dataclass(frozen=True, eq=False)
class WithoutDeadPrefixes:
    """The law of a request's attempts without those that are known to be rejected.

    Parameters
    ----------
    root
        Where attempts begin.
    log_live
        log L, where L is the share of the law that is left; minus infinity where every text is known to be rejected.
    computed
        Tokens that the model was run for.
    """

    root: Branch
    log_live: float
    computed: int


def without_dead_prefixes(
    before: Branch | None,
    ended: Sequence[tuple[Ids, bool]],
    law_after: Callable[[Ids], Candidates],
    mask: TokenMask,
) -> Branch:
    """Leave out more of what is known to be rejected, and return where attempts begin.

    Parameters
    ----------
    before
        Where they began, with what was left out already. It grows, so none that is drawn from it may be under way.
    ended
        The tokens of attempts that were drawn since then, in launch order, and whether each ended there and was
        rejected.
    law_after
        From new tokens to the candidates of the next one.
    mask
        Finds those that lead nowhere.

    Raises
    ------
    CheckFailed
        If the constraint cannot judge a text.
    """
    root = before or Branch((), *law_after(()))
    if before is None:
        root.judge(mask)
    added, size = 0, sum(len(branch.tokens) for branch, _ in root.below())
    # Prefixes of attempts that came by at least twice; those of more attempts first, and so each before longer ones.
    visits = Counter(ids[:end] for ids, _ in ended for end in range(1, len(ids)))
    for prefix, count in visits.most_common():
        if count < 2 or added == NEW or size >= ENTRIES:
            break
        parent = root.at(prefix[:-1])
        if parent is not None and prefix[-1] in parent.tokens and prefix[-1] not in parent.children:
            child = parent.children[prefix[-1]] = Branch(prefix, *law_after(prefix))
            child.judge(mask)
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
            branch.judge(mask)
    root.weigh()
    return root
