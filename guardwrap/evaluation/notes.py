"""What a reader of figures should beware of."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from guardwrap.outcomes import FEW, Estimate

__all__ = ["ENOUGH", "notes_on", "sees_all_of_g"]

ENOUGH = 100
"""Texts of g, or effective draws, that figures can be believed from."""


def sees_all_of_g(figures: Mapping[str, Estimate]) -> bool:
    """Say whether a small distance can be believed: the attempts are worth enough draws of g, and miss no part of it.

    Parameters
    ----------
    figures
        Of the proposal.
    """
    ratio = figures.get("log_partition_over_base_rate")
    worth = figures.get("effective_sample_size")
    return ratio is not None and ratio.low <= 0 <= ratio.high and worth is not None and worth.value >= ENOUGH


def notes_on(figures: Mapping[str, Estimate], gold: int, place: bool, halved: bool, without: bool) -> tuple[str, ...]:
    """Say in words what the figures of a proposal warn of.

    Parameters
    ----------
    figures
        Of the proposal.
    gold
        Texts of g.
    place
        Whether texts are compared by a place in them.
    halved
        Whether there was a distance by that place that could be halved.
    without
        Whether the evaluation's own sampler gave no text.
    """
    notes = []
    if (worth := figures["effective_sample_size"].value) < ENOUGH:
        notes.append(
            f"the attempts are worth {worth:.3g} draws of g, too few to tell distances: their figures may be far off, "
            "most often too low"
        )
    ratio = figures.get("log_partition_over_base_rate")
    if ratio is None:
        notes.append(
            "no attempt of the model itself satisfies the constraint: nothing can be held against its acceptance rate"
        )
    elif ratio.high < 0 or ratio.low > 0:
        notes.append(
            "Z from the weights is not the model's AR: the proposal hardly ever gives part of what g gives, so that "
            "distances end too low, or log-probabilities are wrong"
        )
    if place and gold < ENOUGH:
        notes.append(
            f"only {gold} texts of g, from the model itself: "
            + ("too few for a projected KL" if gold < FEW else "the projected KL is rough")
        )
    if place and gold >= ENOUGH and not halved:
        notes.append(
            "as far as can be seen, the match stands at the same places in texts of g' as in those of g: the projected "
            "KL is 0 within its interval already, and no sampler can lower it"
        )
    if without:
        notes.append("the sampler of the settings gave no text of these attempts")
    if find_spec("sacrebleu") is None:
        notes.append("no Self-BLEU: it needs sacrebleu (pip install 'guardwrap[metrics]')")
    return tuple(notes)
