"""The samplers that exist: ours and those that other packages register."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from guardwrap.errors import UnknownName, UsageError
from guardwrap.samplers.base import Sampler
from guardwrap.samplers.imh import imh
from guardwrap.samplers.qrs import qrs
from guardwrap.samplers.rejection import rejection

__all__ = ["sampler_named", "sampler_names"]


@cache
def _samplers() -> dict[str, Sampler]:
    found = {sampler.name: sampler for sampler in (rejection, qrs(), imh())}
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
