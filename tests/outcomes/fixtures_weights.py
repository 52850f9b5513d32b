"""Log-weights of attempts with light and heavy tails, and what QRS reports of them."""

import math
import random
from typing import Any

from guardwrap.outcomes import Distribution, Draw
from guardwrap.samplers import Attempt, qrs

_normal = random.Random(1).gauss
LIGHT = [_normal(0, 0.5) for _ in range(400)]
HEAVY = [-0.9 * math.log1p(-(i + 0.5) / 400) for i in range(400)]


def qrs_report(weights: list[float], **options: Any) -> tuple[Distribution, Any]:
    """Return what QRS says of attempts with these log-weights that all satisfy the constraint, and its figures."""
    sampler = qrs(**options)
    state = sampler.init()
    for i, weight in enumerate(weights):
        state, _ = sampler.step(state, Attempt(Draw("", (i,), ""), True, weight, 0.5))
    distribution, figures = sampler.report(state)
    assert isinstance(distribution, Distribution)
    return distribution, figures
