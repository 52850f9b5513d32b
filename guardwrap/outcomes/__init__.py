"""Attempts, outcomes and reports of prompts: plain frozen data, and the words for it.

Begin with ``outcome``, which defines ``Draw``, ``Report`` and ``Outcome``. ``estimates`` has figures with their
intervals, ``obstacle`` the settings that leave no text, and ``report_words`` the words of reports.
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
from guardwrap.outcomes.outcome import Draw, Outcome, Report, Usage
from guardwrap.outcomes.report_words import APPROXIMATE, EXACT, MANY_CUT_OFF, NO_CALL, OTHER, SAMPLER, withheld

__all__ = [
    "APPROXIMATE",
    "EXACT",
    "FEW",
    "MANY_CUT_OFF",
    "NO_CALL",
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
    "withheld",
    "without_end",
]
