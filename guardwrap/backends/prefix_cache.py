"""What is known of a request's texts: the laws of next tokens that were computed, and prefixes that are over.

An attempt's uniforms are its own. Where the law of the next token is known already, the token follows from the next
uniform without the model; where it leads to a prefix that is over (its verdict was VIOLATED, or the text has ended),
the attempt is over too. So texts, attempt numbers and rates are those of drawing everything anew, and only the cost is
another one.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from guardwrap.backends.generation_law import GenerationLaw
from guardwrap.backends.tokens import BLOCK
from guardwrap.scheduling.backend import AttemptState, JudgementCache, Launch

__all__ = ["Node", "PrefixTree", "TokenLaw", "learn", "next_token", "step", "token_laws"]

LIKELY = 128
"""Prefixes of at least this probability, 1 in 128, are kept from a request's second attempt on; after more attempts
than that, those that one attempt in as many would come by."""

CANDIDATES = 64
"""Tokens of a law over the whole vocabulary that are kept: the likeliest."""

PLACES = 20_000
"""Prefixes that are kept of all prompts together: those used last. One takes 1 KB with the law of what follows, and as
much with a text that was judged; so 40 MB in the worst case."""

OFTEN = 256
"""Attempts after which their number is looked at."""


class TokenLaw:
    """The law of one next token, as far as it is kept.

    Parameters
    ----------
    tokens
        Candidates.
    log_probabilities
        Theirs, in nats.
    bounds
        Of the candidates' shares of the unit interval: candidate i has ``bounds[i]`` to ``bounds[i + 1]`` where
        ``gaps`` is false; else ``bounds[2 i]`` to ``bounds[2 i + 1]``.
    total
        What a uniform is multiplied with.
    gaps
        Whether there are tokens between the candidates.

    Attributes
    ----------
    log_left : float
        log Z in nats, where a mask has left a share of Z.
    """

    __slots__ = ("_bounds", "_gaps", "_last", "_total", "log_left", "log_probabilities", "tokens")

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
        self.log_left = 0.0

    def drawn(self, uniform: float) -> int | None:
        """Return which candidate a uniform draws, or None where it is a token that is not kept."""
        target = uniform * self._total
        if not self._gaps:
            return bisect_right(self._bounds, min(target, self._last))
        place = bisect_right(self._bounds, target)
        return place // 2 if place % 2 else None


class Node:
    """A prefix of a prompt's texts.

    Attributes
    ----------
    law : TokenLaw or None
        Of the next token, once it was computed.
    children : dict of int to Place
        By the next token.
    end : tuple or None
        Status and blame of an attempt that came here, where that ended it.
    memo : Memo or None
        For whoever judges texts, where attempts end here.
    used : int
        When an attempt came by last; never later than at what it stands on.
    """

    __slots__ = ("children", "end", "law", "memo", "used")

    def __init__(self, used: int = 0, end: tuple[str, str | None] | None = None) -> None:
        self.used = used
        self.end = end
        self.law: TokenLaw | None = None
        self.children: dict[int, Node] = {}
        self.memo = None if end is None else JudgementCache()


class PrefixTree:
    """The places of all prompts of a backend; those that were used last are kept.

    Parameters
    ----------
    most
        How many are kept.
    """

    def __init__(self, most: int = PLACES) -> None:
        self._roots: WeakKeyDictionary[GenerationLaw, dict[Any, Node]] = WeakKeyDictionary()
        self._most = most
        self._begun = 0

    def root(self, launch: Launch) -> Node | None:
        """Return where an attempt begins; None where nothing is to be known of it.

        The first attempt of a request that wants one text is mostly the last one too. What the user's own processors
        and stopping criteria do may be another thing each time, and so may a limit of the clock.
        """
        law: GenerationLaw = launch.law
        if (launch.attempt == 0 and law.count == 1) or not law.is_stateless:
            return None
        self._begun += 1
        if self._begun % OFTEN == 0:
            self._forget()
        # Requests of equal prompts share the law. What is over for one is over for others under the same constraint,
        # unless it is judged with the prompt's text: a tokenizer may read two texts as the same tokens.
        constraint = getattr(launch.request, "constraint", None)
        # A mask may have given up for one request alone.
        masked = None if launch.mask is None else ref(launch.request)
        rule = constraint, _text_of(launch), launch.watch is None, masked
        root = self._roots.setdefault(law, {}).setdefault(rule, Node())
        root.used = self._begun
        return root

    def _forget(self) -> None:
        """Drop what was used longest ago, where there is too much."""
        roots = [root for each in self._roots.values() for root in each.values()]
        places = list(roots)
        for place in places:  # grows
            places += place.children.values()
        if len(places) > self._most:
            before = sorted(place.used for place in places)[-self._most // 2]
            for place in places:
                place.children = {token: child for token, child in place.children.items() if child.used >= before}


def _text_of(launch: Launch) -> str | None:
    """Return the prompt's text, where the launch has a prompt."""
    return getattr(getattr(launch.request, "prompt", None), "text", None)


def step(attempt: AttemptState) -> bool:
    """Go to the place of the newest token; say whether what becomes of the attempt there is known, and note it."""
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
    """Keep what became of an attempt with its newest token, where others are likely to come here."""
    place: Node | None = attempt.place
    attempt.place = None
    if place is None or attempt.status not in ("running", "finished", "cut", "aborted"):
        return
    token = attempt.token_ids[-1]
    if token in place.children:  # another one has come here with this very step
        attempt.place = place
        step(attempt)
    elif attempt.status != "running":
        child = place.children[token] = Node(place.used, (attempt.status, attempt.blame))
        attempt.memo = child.memo
    elif attempt.log_probability >= -math.log(max(LIKELY, attempt.launch.attempt + 1)):
        attempt.place = place.children[token] = Node(place.used)


def next_token(attempt: AttemptState) -> bool:
    """Draw the next token where its law is known; say whether it was."""
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
    attempt.log_left += law.log_left
    return True


def token_laws(scores: torch.Tensor, candidates: torch.Tensor | None) -> list[TokenLaw]:
    """Return the law of each row as ``tokens.inverse_cdf`` draws from it: the same sums, rounded alike.

    Parameters
    ----------
    scores
        ``[rows, columns]``, after all processors and warpers.
    candidates
        Which token each column stands for, ``[rows, columns]``; None where columns are tokens.
    """
    size = scores.shape[1]
    top = scores.amax(-1, keepdim=True)
    weights = torch.nn.functional.pad((scores - top).exp_(), (0, -size % BLOCK)).view(len(scores), -1, BLOCK)
    blocks = weights.sum(-1, dtype=torch.float64).cumsum(-1)
    total = blocks[:, -1:]
    values = scores.double() - top.double() - total.log()
    if blocks.shape[1] == 1:
        bounds = weights.squeeze(1).double().cumsum(-1)[:, :size]
        ids = torch.arange(size).expand(len(scores), -1) if candidates is None else candidates
        ids, values, bounds, some = ids.cpu(), values.cpu(), bounds.cpu(), (scores > -math.inf).cpu()
        return [
            TokenLaw(ids[row, on].tolist(), values[row, on].tolist(), bounds[row, on].tolist(), whole, gaps=False)
            for row, (on, whole) in enumerate(zip(some, total.squeeze(1).tolist(), strict=True))
        ]
    chosen = scores.topk(min(CANDIDATES, size)).indices.sort(-1).values
    block = chosen // BLOCK
    inside = weights.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).double().cumsum(-1)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)), 0.0)
    place = (chosen % BLOCK)[:, :, None]
    upper = before + inside.gather(2, place).squeeze(2)
    lower = before + torch.where(place > 0, inside.gather(2, (place - 1).clamp(min=0)), 0.0).squeeze(2)
    bounds = torch.stack([lower, upper], dim=2).flatten(1)
    ids = chosen if candidates is None else candidates.gather(1, chosen)
    kept = zip(ids.tolist(), values.gather(1, chosen).tolist(), bounds.tolist(), total.squeeze(1).tolist(), strict=True)
    return [TokenLaw(*row, gaps=True) for row in kept]
