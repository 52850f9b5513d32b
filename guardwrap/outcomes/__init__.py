"""Attempts, outcomes and reports of prompts: plain frozen data, and the words for it.

Begin with ``outcome``, which defines ``Draw``, ``Report`` and ``Outcome``. ``estimates`` has figures with their
intervals, ``obstacle`` the settings that leave no text, ``remedies`` what helps, and ``report_words`` the words.
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
from guardwrap.outcomes.remedies import Remedy
from guardwrap.outcomes.report_words import (
    APPROXIMATE,
    EXACT,
    MANY_CUT_OFF,
    NO_CALL,
    OTHER,
    SAMPLER,
    report_blame,
    withheld,
)

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
    "Remedy",
    "Report",
    "Usage",
    "bounded",
    "estimate_of",
    "exactly",
    "heavy_tail",
    "plain",
    "report_blame",
    "tail_and_limit",
    "withheld",
    "without_end",
]
