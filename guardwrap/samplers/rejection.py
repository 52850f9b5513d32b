"""Samplers without weights: rejection, Algorithm 1 of the paper, and one that only records attempts."""

from __future__ import annotations

from collections.abc import Callable

from guardwrap.outcomes import EXACT, Draw
from guardwrap.samplers.protocol import Attempt, Sampler


def _step(state: None, attempt: Attempt) -> tuple[None, Draw | None]:
    return state, attempt.draw if attempt.satisfied else None


rejection = Sampler("rejection", lambda: None, _step, lambda state: (EXACT, {}), skips=True, takes_all=True, options=())
"""The sampler that accepts every attempt with b(y) = 1. It samples g' ∝ a' b, which is g if a' = a (paper, Section 3
and App. B.3)."""


def collecting(weigh: bool, on_attempt: Callable[[], None] | None = None) -> tuple[Sampler, list[list[Attempt]]]:
    """Return a sampler that records the attempts of each prompt, and the lists that it records them in.

    Parameters
    ----------
    weigh
        Whether attempts that satisfy the constraint get log-weights.
    on_attempt
        Called for each attempt.

    Returns
    -------
    Sampler
        A sampler to use in one call only.
    list of list of Attempt
        One list per prompt, in the order of the prompts, filled while the call runs with the prompt's attempts in
        launch order.
    """
    attempts: list[list[Attempt]] = []

    def init() -> list[Attempt]:
        attempts.append([])
        return attempts[-1]

    def step(state: list[Attempt], attempt: Attempt) -> tuple[list[Attempt], None]:
        state.append(attempt)
        if on_attempt is not None:
            on_attempt()
        return state, None

    return Sampler("attempts", init, step, lambda state: ("all attempts, judged", {}), weigh, records=True), attempts
