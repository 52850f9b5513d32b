"""Rounds of drawing and learning: what a training will do, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from guardwrap.training.training_settings import TrainingSettings

__all__ = ["BASE", "BRANCHES", "POLICY", "Round", "continued", "rounds"]

BASE, BRANCHES, POLICY = "base", "branches", "policy"

_GROWTH = 1.5
"""Each round of ``replay`` draws so many times as much as the one before: later draws are worth more."""

_DEFENSIVE = 0.1
"""Share of the model itself in the draws of ``replay`` after the warm start. It bounds the weights by 10; for more it
is too poor a source: 12 effective draws of g in 1 000 attempts where the first policy gave 270 ("dragon")."""


Draws = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Round:
    """Attempts to draw, and how to learn from them.

    Parameters
    ----------
    draws
        Pairs of a law and the number of attempts for each prompt. Laws are ``"base"``, ``"policy"``, or the template
        of a constraint-aware prompt.
    learn
        How.
    """

    draws: Draws
    learn: Literal["replay", "dpg", "sft"]


def rounds(settings: TrainingSettings, *, begun: bool = False) -> list[Round]:
    """Divide the samples among rounds. Each prompt gets as many, so that a few of the samples may be left over.

    Parameters
    ----------
    settings
        Of the training.
    begun
        Whether there was a warm start before.
    """
    left, method = settings.samples // len(settings.prompts), settings.method
    if method == "sft":
        planned = [Round(_warm(size, settings), "sft") for size in _split(left, [1.0] * settings.rounds)]
    else:
        # Algorithm 2 has no warm start without hints; with them it fine-tunes on their samples before DPG begins.
        warm = 0 if begun or (method == "dpg" and not settings.hints) else settings.warm // len(settings.prompts)
        planned = [Round(_warm(warm, settings), "replay" if method == "replay" else "sft")]
        planned += _replay(left - warm, settings) if method == "replay" else _dpg(left - warm, settings)
    planned = [replace(part, draws=tuple(draw for draw in part.draws if draw[1])) for part in planned]
    return [part for part in planned if part.draws]


def _warm(size: int, settings: TrainingSettings) -> Draws:
    """Divide attempts among the hints and, for ``replay``, the model itself; all are its own where there is no hint."""
    hints = settings.hints
    share = settings.base_share if settings.method == "replay" else 0.0
    base = round(size * share) if hints else size
    return (*zip(hints, _split(size - base, [1.0] * len(hints)), strict=True), (BASE, base))


def _replay(size: int, settings: TrainingSettings) -> list[Round]:
    sizes = _split(size, [_GROWTH**k for k in range(settings.rounds)])
    bases = [round(_DEFENSIVE * each) for each in sizes]
    return [Round(((POLICY, each - base), (BASE, base)), "replay") for each, base in zip(sizes, bases, strict=True)]


def _dpg(size: int, settings: TrainingSettings) -> list[Round]:
    steps = max(1, round(size * len(settings.prompts) / settings.samples_per_step))
    return [Round(((POLICY, each),), "dpg") for each in _split(size, [1.0] * steps)]


def continued(begun: Sequence[Round], settings: TrainingSettings) -> list[Round]:
    """Plan a training anew whose number of samples was changed when it had begun.

    Parameters
    ----------
    begun
        Rounds that have drawn: they stay. What is left of the samples is divided as at the beginning, without the warm
        start.
    settings
        As they are now.
    """
    left = settings.samples - len(settings.prompts) * sum(count for part in begun for _, count in part.draws)
    if left < len(settings.prompts):
        return list(begun)
    return [*begun, *rounds(settings.model_copy(update={"samples": left}), begun=True)]


def _split(total: int, sizes: list[float]) -> list[int]:
    """Divide a number in given proportions; the parts are whole and sum to it."""
    ends = [round(total * sum(sizes[: k + 1]) / sum(sizes)) for k in range(len(sizes))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
