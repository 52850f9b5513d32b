"""What a sampler is: a pure pair of functions, ``init`` and ``step``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from guardwrap.draws import Draw

__all__ = ["Attempt", "Sampler"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A decided attempt, as a sampler sees it.

    Parameters
    ----------
    draw
        The draw from the proposal a'.
    satisfied
        b(y): whether it satisfies the constraint.
    """

    draw: Draw
    satisfied: bool


class Sampler(NamedTuple):
    """Decides which attempts become texts. It sees the attempts of one prompt, each once, in launch order.

    Parameters
    ----------
    name
        Its name.
    init
        Returns the state before the first attempt.
    step
        Takes a state and an attempt; returns the next state, and the draw to return to the user or None.
    law
        In words, what the returned draws are distributed as when the proposal is the model itself.
    """

    name: str
    init: Callable[[], Any]
    step: Callable[[Any, Attempt], tuple[Any, Draw | None]]
    law: str
