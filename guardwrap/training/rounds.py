"""The plan of a training: rounds of drawing and learning, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from guardwrap.training.training_settings import TrainingSettings

BASE, BRANCHES, POLICY = "base", "branches", "policy"

_GROWTH = 1.5
"""Growth of the number of draws from one round of ``replay`` to the next: later draws are worth more."""

_DEFENSIVE = 0.1
"""Share of the model itself in the draws of ``replay`` after the warm start. It bounds the weights by 10. A larger
share would waste attempts: 1 000 gave 12 effective draws of g where the first policy gave 270 ("dragon")."""


Draws = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Round:
    """Attempts to draw, and the method to learn from them."""

    # Pairs of a law (distribution) and the number of attempts per prompt. Laws are ``"base"``, ``"policy"``, or the
    # template of a constraint-aware prompt.
    draws: Draws
    learn: Literal["replay", "dpg", "sft"]  # the method of learning


def rounds(settings: TrainingSettings, *, begun: bool = False) -> list[Round]:
    """Divide the samples among rounds. All prompts get the same number, so a few samples may remain unused."""
    left, method = settings.samples // len(settings.prompts), settings.method
    if method == "sft":
        planned = [Round(_warm(size, settings), "sft") for size in _split(left, [1.0] * settings.rounds)]
    else:
        # Algorithm 2 has a warm start only with hints: it fine-tunes on their samples before DPG begins.
        warm = 0 if begun or (method == "dpg" and not settings.hints) else settings.warm // len(settings.prompts)
        planned = [Round(_warm(warm, settings), "replay" if method == "replay" else "sft")]
        planned += _replay(left - warm, settings) if method == "replay" else _dpg(left - warm, settings)
    planned = [replace(part, draws=tuple(draw for draw in part.draws if draw[1])) for part in planned]
    return [part for part in planned if part.draws]


def _warm(size: int, settings: TrainingSettings) -> Draws:
    """Divide attempts among the hints and, for ``replay``, the model itself, which gets all if there is no hint."""
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
    """Return the new plan of a training whose number of samples was changed after it had begun.

    ``begun``: rounds that have drawn, which are kept. The remaining samples are divided into rounds without a warm
    start.
    """
    left = settings.samples - len(settings.prompts) * sum(count for part in begun for _, count in part.draws)
    if left < len(settings.prompts):
        return list(begun)
    return [*begun, *rounds(settings.model_copy(update={"samples": left}), begun=True)]


def _split(total: int, sizes: list[float]) -> list[int]:
    """Divide an integer in given proportions into integers that sum to it."""
    ends = [round(total * sum(sizes[: k + 1]) / sum(sizes)) for k in range(len(sizes))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
