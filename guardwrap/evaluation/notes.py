"""Warnings about the figures of a proposal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec

from guardwrap.formatting import tail_in_words
from guardwrap.outcomes import FEW, Estimate, heavy_tail

ENOUGH = 100
"""Number of texts of g, or effective sample size, from which figures are credible."""


def sees_all_of_g(figures: Mapping[str, Estimate]) -> bool:
    """Return whether a small distance is credible: enough effective draws, and no sign that they miss part of g."""
    ratio = figures.get("log_partition_over_base_rate")
    worth = figures.get("effective_sample_size")
    return ratio is not None and ratio.low <= 0 <= ratio.high and worth is not None and worth.value >= ENOUGH


def heavy_in(figures: Mapping[str, Estimate]) -> float | None:
    """Return the Pareto k of a proposal's weights as ``heavy_tail`` does; None if there are too few for a k."""
    k, limit = figures.get("pareto_k"), figures.get("pareto_k_limit")
    if k is None or limit is None or math.isnan(k.value):
        return None
    return heavy_tail({"pareto_k": k, "pareto_k_limit": limit.value})


def notes_on(figures: Mapping[str, Estimate], gold: int, place: bool, halved: bool, without: bool) -> tuple[str, ...]:
    """Return warnings about the figures of a proposal."""
    notes = []
    if (worth := figures["effective_sample_size"].value) < ENOUGH:
        notes.append(
            f"the attempts are worth {worth:.3g} draws of g, too few to estimate distances: they may be far off, "
            "most often too low"
        )
    if (k := heavy_in(figures)) is not None:
        notes.append(f"{tail_in_words(k)}, so the distances have no upper end: they may be far larger than estimated")
    ratio = figures.get("log_partition_over_base_rate")
    if ratio is None:
        notes.append(
            "no attempt of the model itself satisfies the constraint, so its acceptance rate cannot serve as a check"
        )
    elif ratio.high < 0 or ratio.low > 0:
        notes.append(
            "Z from the weights differs from the model's AR: the proposal hardly ever gives a part of g, so distances "
            "are estimated too low, or log-probabilities are wrong"
        )
    if place and gold < ENOUGH:
        notes.append(
            f"only {gold} texts of g, from the model itself: "
            + ("too few for a projected KL" if gold < FEW else "the projected KL is rough")
        )
    if place and gold >= ENOUGH and not halved:
        notes.append(
            "the match shows no difference in position between texts of g' and of g: the interval of the projected KL "
            "includes 0 already, so no sampler can lower it"
        )
    if without:
        notes.append("the sampler of the settings accepted none of these attempts")
    if find_spec("sacrebleu") is None:
        notes.append("no Self-BLEU, because sacrebleu is not installed (pip install 'guardwrap[metrics]')")
    return tuple(notes)
