"""What a sampler is: a pure pair of functions, ``init`` and ``step``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from guardwrap.draws import Draw
from guardwrap.errors import UnknownName, UsageError

__all__ = ["Attempt", "Sampler", "sampler_named", "sampler_names"]


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


@cache
def _samplers() -> dict[str, Sampler]:
    from guardwrap.samplers.rejection import rejection

    found = {rejection.name: rejection}
    for entry in entry_points(group="guardwrap.samplers"):
        sampler = entry.load()
        if entry.name in found or not isinstance(sampler, Sampler):
            raise UsageError(f"plug-in {entry.value!r} is no new Sampler of its own name")
        found[entry.name] = sampler
    return found


def sampler_names() -> list[str]:
    """Return the names of the samplers that exist: ours and those of the entry point group ``guardwrap.samplers``."""
    return sorted(_samplers())


def sampler_named(name: str | Sampler) -> Sampler:
    """Look a sampler up.

    Raises
    ------
    UnknownName
        If there is none of this name; names the nearest one.
    """
    if isinstance(name, Sampler):
        return name
    if name not in _samplers():
        raise UnknownName("sampler", name, sampler_names())
    return _samplers()[name]
