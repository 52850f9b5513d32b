"""Randomness that belongs to attempts: it does not depend on what else is in the batch."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

__all__ = ["decision", "seed_of", "skipped", "uniforms"]

_BLOCK = 64

_SMALL = math.log(1e-18)


class uniforms:  # noqa: N801  # an iterator that reads as a function
    """The uniforms of one attempt: position i of the attempt uses the i-th.

    Parameters
    ----------
    seed, prompt, attempt
        Non-negative whole numbers: the call's seed, the prompt's number in the call, the attempt's number.

    Notes
    -----
    Philox (Salmon et al. 2011), a counter-based generator, keyed through NumPy's SeedSequence.
    """

    def __init__(self, seed: int, prompt: int, attempt: int) -> None:
        self._generator = _generator(seed, prompt, attempt)
        self._block: list[float] = []

    def __iter__(self) -> uniforms:
        return self

    def __next__(self) -> float:
        if not self._block:
            self._block = self._generator.random(_BLOCK)[::-1].tolist()
        return self._block.pop()

    def give_back(self, uniform: float) -> None:
        """Let this one, which was the last, be the next again."""
        self._block.append(uniform)


def decision(seed: int, prompt: int, attempt: int) -> float:
    """Return a uniform of an attempt's that none of its tokens uses: for a sampler that accepts at random."""
    return float(_generator(seed, prompt, attempt, 1).random())


def skipped(seed: int, prompt: int, attempt: int, log_live: float) -> int:
    """Return how many attempts before this one are not drawn, as they are known to be rejected.

    Parameters
    ----------
    seed, prompt, attempt
        As for ``uniforms``.
    log_live
        Logarithm of the share L of the law that is not known to be rejected, finite: n has the law (1 - L)^n L.
    """
    if log_live >= 0.0:
        return 0
    uniform = float(_generator(seed, prompt, attempt, 2).random())
    if log_live > _SMALL:
        return int(math.log1p(-uniform) / math.log1p(-math.exp(log_live)))
    # log(1 - L) is -L to all digits, and n may be more than any float: it is as exact as a decimal of 28 digits.
    return int(Decimal(-math.log1p(-uniform)) * Decimal(-log_live).exp())


def seed_of(seed: int, prompt: int, attempt: int) -> int:
    """Return an attempt's own seed, for a server: below 2^53, as every reader of JSON keeps such numbers exactly."""
    return int(_generator(seed, prompt, attempt, 3).integers(2**53))


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
