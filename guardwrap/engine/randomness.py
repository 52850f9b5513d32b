"""Randomness that belongs to attempts: it does not depend on what else is in the batch."""

from __future__ import annotations

import numpy as np

__all__ = ["uniforms"]

_BLOCK = 64


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
        sequence = np.random.SeedSequence(seed, spawn_key=(prompt, attempt))
        self._generator = np.random.Generator(np.random.Philox(sequence))
        self._block: list[float] = []

    def __iter__(self) -> uniforms:
        return self

    def __next__(self) -> float:
        if not self._block:
            self._block = self._generator.random(_BLOCK)[::-1].tolist()
        return self._block.pop()
