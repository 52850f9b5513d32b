"""Conclusions of a training: claims with verdicts from the figures' intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping

from guardwrap.metrics.intervals import combine, times_fewer
from guardwrap.outcomes import Estimate
from guardwrap.report.blocks import minus_log
from guardwrap.report.claims import Answer, Claim, above, cheaper
from guardwrap.training.training_settings import TrainingSettings

_UNKNOWN = Estimate(math.nan, -math.inf, math.inf)


def claims_of_training(name: str, figures: Mapping[str, Estimate], settings: TrainingSettings) -> list[Claim]:
    """Return two claims about a trained proposal: it costs less than the model, and it is closer to g."""
    prompts = len(settings.prompts)
    before, after, kl = (figures.get(key) for key in ("acceptance_before", "acceptance_after", "kl_gold_proposal"))
    # Ẑ from the proposal's own draws is too low if they miss part of g, which exaggerates the saving.
    drawn = settings.gold_attempts > 0
    rule = "above 1" if drawn else "above 1; but without draws of g (gold_attempts) the saving may be overestimated"
    saved = _UNKNOWN if before is None or after is None else times_fewer(before, after)
    every = f", over {prompts} prompts together" if prompts > 1 else ""
    cost = cheaper(name, saved, _believed(above(saved, 1), drawn), every, rule)

    # KL(g‖a) = -log Z. Both figures come from the same attempts, so the interval of their difference is conservative.
    gap = _UNKNOWN if before is None or before.value == 0 or kl is None else combine((1, minus_log(before)), (-1, kl))
    near = _believed(above(gap, 0), drawn and on_draws_of_g(figures))
    rule = "KL(g‖a) - KL(g‖a') is above 0"
    if above(gap, 0) == Answer.HOLDS != near:
        rule += "; but without enough draws of g (gold_attempts) the attempts may miss part of it"
    if prompts > 1:
        # By Jensen's inequality the mean of -log Z is at least -log of the mean of Z, so the figure is a lower bound.
        near = Answer.UNDECIDED if near == Answer.FAILS else near
        rule += "; of several prompts the figure is a lower bound"
    mean = f", as a mean over {prompts} prompts" if prompts > 1 else ""
    return [cost, Claim(f"{name} is closer to g than the model{mean}", near, gap, rule)]


def on_draws_of_g(figures: Mapping[str, Estimate]) -> bool:
    """Return whether KL was measured on draws of g; if those are too few, figures from weights replace it."""
    kl = figures.get("kl_gold_proposal")
    return kl is not None and kl != figures.get("weighted_kl_gold_proposal")


def _believed(answer: Answer, believed: bool) -> Answer:
    return answer if believed or answer != Answer.HOLDS else Answer.UNDECIDED
