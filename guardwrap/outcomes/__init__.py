"""Attempts, outcomes and reports of prompts: plain frozen data, and the words for it.

Begin with ``outcome``, which defines ``Draw``, ``Report`` and ``Outcome``. ``facts`` has what reports consist of, and
``report_words`` the words.
"""

from guardwrap.outcomes.facts import (
    EXACT,
    FEW,
    ITSELF,
    Closeness,
    Distribution,
    Estimate,
    Obstacle,
    Origin,
    Remedy,
    Shape,
    bounded,
    estimate_of,
    exactly,
    heavy_tail,
    plain,
    tail_and_limit,
    without_end,
)
from guardwrap.outcomes.outcome import Draw, Outcome, Report, Usage
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
