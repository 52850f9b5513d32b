"""Who is accepted: samplers as pure functions, without torch and without I/O."""

from guardwrap.samplers.base import Attempt, Sampler, from_row, to_row
from guardwrap.samplers.collecting import collecting
from guardwrap.samplers.imh import imh
from guardwrap.samplers.qrs import qrs
from guardwrap.samplers.registry import sampler_named, sampler_names
from guardwrap.samplers.rejection import rejection

__all__ = [
    "Attempt",
    "Sampler",
    "collecting",
    "from_row",
    "imh",
    "qrs",
    "rejection",
    "sampler_named",
    "sampler_names",
    "to_row",
]
