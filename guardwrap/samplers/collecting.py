"""All attempts, judged, for estimates and training: the sampler that accepts nothing."""

from __future__ import annotations

from collections.abc import Callable

from guardwrap.samplers.protocol import Attempt, Sampler

__all__ = ["collecting"]


def collecting(weigh: bool, on_attempt: Callable[[], None] | None = None) -> tuple[Sampler, list[list[Attempt]]]:
    """Return a sampler that keeps the attempts of each prompt, and the lists that it puts them in.

    Parameters
    ----------
    weigh
        Whether attempts that satisfy the constraint get log-weights.
    on_attempt
        Called for each attempt.

    Returns
    -------
    Sampler
        For one call.
    list of list of Attempt
        Filled while the call runs: for each prompt its attempts in launch order. Prompts are taken in turn, so the
        lists are theirs in order.
    """
    found: list[list[Attempt]] = []

    def init() -> list[Attempt]:
        found.append([])
        return found[-1]

    def step(state: list[Attempt], attempt: Attempt) -> tuple[list[Attempt], None]:
        state.append(attempt)
        if on_attempt is not None:
            on_attempt()
        return state, None

    return Sampler("attempts", init, step, lambda state: ("all attempts, judged", {}), weigh), found
