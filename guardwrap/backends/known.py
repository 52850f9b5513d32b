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
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from guardwrap.backends.law import GenerationLaw
from guardwrap.backends.tokens import BLOCK
from guardwrap.scheduling.backend import Decoded, Launch

__all__ = ["Place", "TokenLaw", "Tree", "learn", "next_token", "step", "token_laws"]

LIKELY = 128
"""Prefixes of at least this probability, 1 in 128, are kept from a request's second attempt on; after more attempts
than that, those that one attempt in as many would come by."""

CANDIDATES = 64
"""Tokens of a law over the whole vocabulary that are kept: the likeliest."""

PLACES = 4096
"""Prefixes with a law that are kept, at most: those used last. One takes about 1 KB, and 0.3 KB for each token after
which a text was over; 80 MB in the worst case."""


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
    """

    __slots__ = ("_bounds", "_gaps", "_last", "_total", "log_probabilities", "tokens")

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

    def drawn(self, uniform: float) -> int | None:
        """Return which candidate a uniform draws, or None where it is a token that is not kept."""
        target = uniform * self._total
        if not self._gaps:
            return bisect_right(self._bounds, min(target, self._last))
        place = bisect_right(self._bounds, target)
        return place // 2 if place % 2 else None


class Place:
    """A prefix of a request's texts.

    Attributes
    ----------
    law : TokenLaw or None
        Of the next token, once it was computed.
    children : dict of int to Place
        By the next token.
    end : tuple or None
        Status and blame of an attempt that came here, where that ended it.
    memo : dict
        For whoever judges texts: attempts that end here have the same text.
    """

    __slots__ = ("__weakref__", "children", "end", "law", "memo", "parent", "token")

    def __init__(self, parent: Place | None = None, token: int = -1, end: tuple[str, str | None] | None = None) -> None:
        self.parent = parent
        self.token = token
        self.end = end
        self.law: TokenLaw | None = None
        self.children: dict[int, Place] = {}
        self.memo: dict[str, Any] = {}


class Tree:
    """The places of all requests of a backend; those that were used last are kept.

    Parameters
    ----------
    places
        How many with a law are kept.
    """

    def __init__(self, places: int = PLACES) -> None:
        self._roots: WeakKeyDictionary[Any, Place] = WeakKeyDictionary()
        self._recent: OrderedDict[Place, None] = OrderedDict()
        self._most = places

    def root(self, launch: Launch) -> Place | None:
        """Return where an attempt begins; None where nothing is to be known of it.

        The first attempt of a request that wants one text is mostly the last one too. What the user's own processors
        and stopping criteria do may be another thing each time, and so may a limit of the clock.
        """
        law: GenerationLaw = launch.law
        if launch.request is None or (launch.attempt == 0 and law.count == 1) or not law.repeats:
            return None
        if (found := self._roots.get(launch.request)) is None:
            found = self._roots[launch.request] = Place()
        return found

    def touch(self, place: Place | None) -> None:
        """Note that an attempt has come here: leaves first, so that they go before what they stand on."""
        while place is not None:
            if place.law is not None:
                self._recent[place] = None
                self._recent.move_to_end(place)
            place = place.parent
        while len(self._recent) > self._most:
            oldest, _ = self._recent.popitem(last=False)
            oldest.law = None
            oldest.children = {}


def step(attempt: Decoded) -> bool:
    """Go to the place of the newest token; say whether what becomes of the attempt there is known, and note it."""
    child = None if attempt.place is None else attempt.place.children.get(attempt.token_ids[-1])
    if child is None:
        return False
    attempt.place = child
    if child.end is not None:
        attempt.status, attempt.blame = child.end
        attempt.memo = child.memo
    return True


def learn(attempt: Decoded) -> None:
    """Keep what became of an attempt with its newest token, where others are likely to come here."""
    place: Place | None = attempt.place
    attempt.place = None
    if place is None or attempt.status not in ("running", "finished", "cut", "aborted"):
        return
    token = attempt.token_ids[-1]
    if token in place.children:  # another one has come here with this very step
        attempt.place = place.children[token]
        attempt.memo = attempt.place.memo
    elif attempt.status != "running":
        child = place.children[token] = Place(place, token, (attempt.status, attempt.blame))
        attempt.memo = child.memo
    elif attempt.log_probability >= -math.log(max(LIKELY, attempt.launch.attempt + 1)):
        attempt.place = place.children[token] = Place(place, token)


def next_token(attempt: Decoded) -> bool:
    """Draw the next token where its law is known; say whether it was."""
    law: TokenLaw | None = None if attempt.place is None else attempt.place.law
    if law is None:
        return False
    uniform = next(attempt.stream)
    column = law.drawn(uniform)
    if column is None:
        attempt.stream.give_back(uniform)
        return False
    attempt.token_ids.append(law.tokens[column])
    attempt.log_probability += law.log_probabilities[column]
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
