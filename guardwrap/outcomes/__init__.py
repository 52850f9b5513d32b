"""Attempts, outcomes and reports of prompts: plain frozen data, and how they are written in words.

Begin with ``outcome``, which defines ``Draw``, ``Report`` and ``Outcome``. ``estimates`` has figures with their
intervals, and ``obstacle`` the settings that leave no text.
"""

from guardwrap.outcomes.estimates import (
    FEW,
    Estimate,
    bounded,
    estimate_of,
    exactly,
    heavy_tail,
    plain,
    tail_and_limit,
    without_end,
)
from guardwrap.outcomes.obstacle import Obstacle
from guardwrap.outcomes.outcome import APPROXIMATE, EXACT, MANY_CUT_OFF, OTHER, SAMPLER, Draw, Outcome, Report, Usage

__all__ = [
    "APPROXIMATE",
    "EXACT",
    "FEW",
    "MANY_CUT_OFF",
    "OTHER",
    "SAMPLER",
    "Draw",
    "Estimate",
    "Obstacle",
    "Outcome",
    "Report",
    "Usage",
    "bounded",
    "estimate_of",
    "exactly",
    "heavy_tail",
    "plain",
    "tail_and_limit",
    "without_end",
]
