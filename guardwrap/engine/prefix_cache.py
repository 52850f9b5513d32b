"""A cache of distributions of next tokens, and of prefixes at which attempts end.

An attempt has its own sequence of uniform random numbers. If the distribution of the next token is cached, the token
follows from the next random number without the model. If it leads to a prefix at which an earlier attempt ended (its
verdict was VIOLATED, or the text ended), this attempt ends too. So texts, attempt numbers and rates are the same as
without the cache, and only the cost differs.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch

from guardwrap.engine.generation_law import BLOCK, GenerationLaw
from guardwrap.engine.scheduling.backend import AttemptState, JudgementCache, Launch
from guardwrap.engine.scheduling.request import Request

LIKELY = 128
"""A prefix of running attempts is cached if its probability is at least 1 in 128, or 1 in n in a request's n-th attempt
with n > 128."""

CANDIDATES = 64
"""Number of tokens, the most likely, that are kept of a distribution over the whole vocabulary."""

PLACES = 20_000
"""Maximum number of cached prefixes of all prompts together; the most recently used ones are kept. One takes 1 KB with
the distribution of the next token, and another 1 KB with a judged text: 40 MB in the worst case."""

OFTEN = 256
"""Number of attempts between two checks of the cache's size."""


class TokenLaw:
    """The cached part of the distribution of one next token.

    ``bounds``: bounds of the candidates' intervals in [0, ``total``], ascending. With ``gaps``, candidate i has
    ``bounds[2 i]`` to ``bounds[2 i + 1]``; without, ``bounds[i]`` is the upper end of candidate i, where the next
    one's starts.

    ``log_weight``: log Z in nats, where Z is the probability of the tokens that a mask did not exclude; 0 without a
    mask.
    """

    __slots__ = ("_bounds", "_gaps", "_last", "_total", "log_probabilities", "log_weight", "log_weights", "tokens")

    def __init__(
        self,
        tokens: Sequence[int],
        log_probabilities: Sequence[float],
        bounds: Sequence[float],
        total: float,
        gaps: bool,
    ) -> None:
        self.tokens = array("i", tokens)
        self.log_probabilities = array("d", log_probabilities)
        self._bounds = array("d", bounds)
        self._total = total
        self._last = math.nextafter(bounds[-1], 0.0)
        self._gaps = gaps
        self.log_weight = 0.0
        self.log_weights: array[float] | None = None

    def drawn(self, uniform: float) -> int | None:
        """Return the index of the candidate that a uniform random number draws, or None if it draws another token."""
        target = uniform * self._total
        if not self._gaps:
            return bisect_right(self._bounds, min(target, self._last))
        place = bisect_right(self._bounds, target)
        return place // 2 if place % 2 else None


class Node:
    """A cached prefix of a prompt's texts.

    ``used``: the number of the latest attempt that passed here, counted over all attempts. At most that of the
    parent.
    """

    __slots__ = ("children", "end", "law", "memo", "used")

    def __init__(self, used: int = 0, end: tuple[str, str | None] | None = None) -> None:
        self.used = used
        self.end = end
        self.law: TokenLaw | None = None
        self.children: dict[int, Node] = {}
        self.memo = None if end is None else JudgementCache()


class PrefixTree:
    """The cached prefixes of all prompts of a backend; the most recently used ones are kept."""

    def __init__(self, most: int = PLACES) -> None:
        self._roots: WeakKeyDictionary[GenerationLaw, dict[Any, Node]] = WeakKeyDictionary()
        self._most = most
        self._begun = 0

    def root(self, launch: Launch) -> Node | None:
        """Return the node of the empty prefix for an attempt, or None if the attempt must not use the cache.

        It is not worth it for the first attempt of a request for one text, which is usually the last one too. It would
        be wrong with the user's own processors and stopping criteria, or with ``max_time``, whose effect may differ
        each time.
        """
        law: GenerationLaw = launch.law
        learns = launch.twist is not None and launch.twist.learns  # it has to see each distribution
        if (launch.attempt == 0 and law.count == 1) or not law.is_stateless or learns:
            return None
        self._begun += 1
        if self._begun % OFTEN == 0:
            self._forget()
        # Requests with equal prompts share the law object. A prefix at which an attempt of one ends also ends attempts
        # of the others with the same constraint and the same prompt text. The text is part of the key because
        # judgements may depend on it, and a tokenizer may map two texts to the same tokens.
        # With a mask, nodes are not shared between requests, because a mask may be given up for one of them only.
        # With a twist, distributions differ.
        masked = None if launch.mask is None and launch.twist is None else ref(launch.request)
        rule = _judged_by(launch), launch.watch is None, masked
        root = self._roots.setdefault(law, {}).setdefault(rule, Node())
        root.used = self._begun
        return root

    def _forget(self) -> None:
        """If there are more than ``most`` prefixes, delete the least recently used ones, down to half of ``most``."""
        roots = [root for each in self._roots.values() for root in each.values()]
        places = list(roots)
        for place in places:  # the list grows during the loop
            places += place.children.values()
        if len(places) > self._most:
            before = sorted(place.used for place in places)[-self._most // 2]
            for place in places:
                place.children = {token: child for token, child in place.children.items() if child.used >= before}


def step(attempt: AttemptState) -> bool:
    """Move to the node of the newest token, and end the attempt if earlier ones ended there.

    Returns False if there is no such node, so that it must be determined whether the attempt ends.
    """
    place: Node | None = attempt.place
    child = None if place is None else place.children.get(attempt.token_ids[-1])
    if place is None or child is None:
        return False
    child.used = place.used
    attempt.place = child
    if child.end is not None:
        attempt.status, attempt.blame = child.end
        attempt.memo = child.memo
    return True


def learn(attempt: AttemptState) -> None:
    """Cache the newest token's prefix if the attempt ended with it, or if other attempts are likely to reach it."""
    place: Node | None = attempt.place
    attempt.place = None
    if place is None or attempt.status not in ("running", "finished", "cut", "aborted", "dead_end"):
        return
    token = attempt.token_ids[-1]
    if token in place.children:  # another attempt added this prefix in the same step
        attempt.place = place
        step(attempt)
    elif attempt.status != "running":
        child = place.children[token] = Node(place.used, (attempt.status, attempt.blame))
        attempt.memo = child.memo
    elif attempt.log_probability >= -math.log(max(LIKELY, attempt.launch.attempt + 1)):
        attempt.place = place.children[token] = Node(place.used)


def next_token(attempt: AttemptState) -> bool:
    """Draw the next token from its cached distribution; return False if that is not possible."""
    branch = attempt.branch
    law: TokenLaw | None = (
        branch.law if branch is not None else attempt.place.law if attempt.place is not None else None
    )
    if law is None:
        return False
    uniform = next(attempt.stream)
    column = law.drawn(uniform)
    if column is None:
        attempt.stream.give_back(uniform)
        return False
    token = law.tokens[column]
    attempt.token_ids.append(token)
    attempt.branch = None if branch is None else branch.children.get(token)
    attempt.log_probability += law.log_probabilities[column]
    attempt.log_weight += law.log_weight if law.log_weights is None else law.log_weights[column]
    return True


def token_laws(scores: torch.Tensor, candidates: torch.Tensor | None) -> list[TokenLaw]:
    """Return the distribution of each row, with the same sums and the same rounding as ``inverse_cdf``.

    Takes scores after all processors and warpers, ``[rows, columns]``, with the token of each column; None if column i
    is token i.
    """
    size = scores.shape[1]
    top = scores.amax(-1, keepdim=True)
    weights = torch.nn.functional.pad((scores - top).exp_(), (0, -size % BLOCK)).view(len(scores), -1, BLOCK)
    blocks = weights.sum(-1, dtype=torch.float64).cumsum(-1)
    total = blocks[:, -1:]
    values = scores.double() - top.double() - total.log()
    if blocks.shape[1] == 1:
        bounds = weights.squeeze(1).double().cumsum(-1)[:, :size]
        ids = torch.arange(size).expand(len(scores), -1).to(total) if candidates is None else candidates.double()
        # In numpy, because torch takes several operations to select the candidates of each row.
        laws = []
        for row in torch.cat([total, ids, values, bounds], dim=1).cpu().numpy():
            tokens, logs, ends = row[1:].reshape(3, size)
            some = logs > -math.inf
            kept = tokens[some].astype(np.int64).tolist(), logs[some].tolist(), ends[some].tolist()
            laws.append(TokenLaw(*kept, float(row[0]), gaps=False))
        return laws
    chosen = scores.topk(min(CANDIDATES, size)).indices.sort(-1).values
    block = chosen // BLOCK
    inside = weights.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).double().cumsum(-1)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0.0)
    place = (chosen % BLOCK)[:, :, None]
    upper = before + inside.gather(2, place).squeeze(2)
    lower = before + torch.where(place > 0, inside.gather(2, (place - 1).clamp(min=0)), 0.0).squeeze(2)
    bounds = torch.stack([lower, upper], dim=2).flatten(1)
    ids = chosen if candidates is None else candidates.gather(1, chosen)
    count = chosen.shape[1]
    return [
        TokenLaw(
            [*map(int, row[1 : count + 1])], row[count + 1 : 2 * count + 1], row[2 * count + 1 :], row[0], gaps=True
        )
        for row in torch.cat([total, ids.double(), values.gather(1, chosen), bounds], dim=1).tolist()
    ]


def _judged_by(launch: Launch) -> Hashable:
    """Return what a judgement of an attempt's text may depend on besides it; None for attempts of no request."""
    request = launch.request
    if not isinstance(request, Request):
        return None
    prompt: Any = request.prompt
    return request.spec.constraint, prompt.text
