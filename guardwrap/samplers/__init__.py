"""Samplers, which decide which attempts are returned: pure functions, without torch and without I/O."""

from guardwrap.outcomes import Closeness, Distribution
from guardwrap.samplers.imh import imh
from guardwrap.samplers.protocol import Attempt, Sampler, collecting, from_row, rejection, to_row
from guardwrap.samplers.qrs import qrs
from guardwrap.samplers.sampler_registry import auto, sampler_named, sampler_names

__all__ = [
    "Attempt",
    "Closeness",
    "Distribution",
    "Sampler",
    "auto",
    "collecting",
    "from_row",
    "imh",
    "qrs",
    "rejection",
    "sampler_named",
    "sampler_names",
    "to_row",
]
