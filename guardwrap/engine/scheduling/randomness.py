"""Random numbers of attempts, which do not depend on what else is in the batch."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal

import numpy as np

_BLOCK = 64

_SMALL = math.log(1e-18)


class uniforms:  # noqa: N801  # an iterator that reads as a function
    """The uniform random numbers of one attempt: its i-th token uses the i-th.

    ``seed, prompt, attempt``: seed of the call, number of the prompt in the call and number of the attempt: integers
    of at least 0.

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
        """Return the most recent number, so that it is the next one again."""
        self._block.append(uniform)


def decision(seed: int, prompt: int, attempt: int) -> float:
    """Return a uniform random number of an attempt that none of its tokens uses, for samplers that accept at random."""
    return float(_generator(seed, prompt, attempt, 1).random())


def skipped(seed: int, prompt: int, attempt: int, log_live: float) -> int:
    """Draw the number n of attempts before this one that need not be drawn, as they are known to be rejected.

    Parameters
    ----------
    seed, prompt, attempt
        Seed of the call, number of the prompt and number of the attempt.
    log_live
        log L in nats, finite, where L is the probability that an attempt is not known to be rejected. So n has the
        geometric distribution P(n) = (1 - L)^n L.
    """
    if log_live >= 0.0:
        return 0
    uniform = float(_generator(seed, prompt, attempt, 2).random())
    if log_live > _SMALL:
        return int(math.log1p(-uniform) / math.log1p(-math.exp(log_live)))
    # For such a small L, log(1 - L) = -L to all digits of a float. n may exceed every float, so it is computed as a
    # decimal of 28 digits.
    return int(Decimal(-math.log1p(-uniform)) * Decimal(-log_live).exp())


def seed_of(seed: int, prompt: int, attempt: int) -> int:
    """Return the seed of one attempt, for a server: below 2^53, as every JSON parser reads such integers exactly."""
    return int(_generator(seed, prompt, attempt, 3).integers(2**53))


def seed_for(seed: int, purpose: object) -> int:
    """Return another seed that belongs to a seed, for attempts that must differ from those of the seed itself."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=7).digest(), "big")


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))
