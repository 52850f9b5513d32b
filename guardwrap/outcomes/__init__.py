"""Attempts, outcomes and reports of prompts: plain frozen data, and the words for it.

Begin with ``outcome``, which defines ``Draw``, ``Report`` and ``Outcome``. ``estimates`` has figures with their
intervals, ``origins`` where texts come from, ``remedies`` what helps, and ``report_words`` the words.
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
from guardwrap.outcomes.origins import EXACT, ITSELF, Closeness, Distribution, Origin, Shape
from guardwrap.outcomes.outcome import Draw, Outcome, Report, Usage
from guardwrap.outcomes.remedies import Obstacle, Remedy
from guardwrap.outcomes.report_words import (
    MANY_CUT_OFF,
    NO_CALL,
    SAMPLER,
    report_blame,
    withheld,
)

__all__ = [
    "EXACT",
    "FEW",
    "ITSELF",
    "MANY_CUT_OFF",
    "NO_CALL",
    "SAMPLER",
    "Closeness",
    "Distribution",
    "Draw",
    "Estimate",
    "Obstacle",
    "Origin",
    "Outcome",
    "Remedy",
    "Report",
    "Shape",
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
