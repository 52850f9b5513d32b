"""Rounds of drawing and learning: what a training will do, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from guardwrap.training.settings import Settings

__all__ = ["BASE", "BRANCHES", "POLICY", "Round", "continued", "rounds"]

BASE, BRANCHES, POLICY = "base", "branches", "policy"

_GROWTH = 1.5
"""Each round of ``replay`` draws so many times as much as the one before: later draws are worth more."""


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

    draws: tuple[tuple[str, int], ...]
    learn: Literal["replay", "dpg", "sft"]


def rounds(settings: Settings) -> list[Round]:
    """Divide the samples among rounds. Each prompt gets as many, so that a few of the samples may be left over."""
    prompts = len(settings.prompts)
    planned: list[Round] = []
    left = settings.samples // prompts
    if settings.hints:
        warm = left if settings.method == "sft" else settings.hint_samples // prompts
        # Algorithm 2 fine-tunes on them before DPG begins.
        learn: Literal["replay", "sft"] = "replay" if settings.method == "replay" else "sft"
        parts = settings.rounds if settings.method == "sft" else 1
        for size in _split(warm, [1.0] * parts):
            sizes = _split(size, [1.0] * len(settings.hints))
            planned.append(_with_base(tuple(zip(settings.hints, sizes, strict=True)), learn, settings))
        left -= warm
    if settings.method == "replay":
        sizes = _split(left, [_GROWTH**k for k in range(settings.rounds)])
        planned += [_with_base(((POLICY, size),), "replay", settings) for size in sizes]
    elif settings.method == "dpg":
        steps = max(1, round(left * prompts / settings.samples_per_step))
        planned += [Round(((POLICY, size),), "dpg") for size in _split(left, [1.0] * steps)]
    elif not settings.hints:
        planned += [Round(((BASE, size),), "sft") for size in _split(left, [1.0] * settings.rounds)]
    planned = [replace(part, draws=tuple(draw for draw in part.draws if draw[1])) for part in planned]
    return [part for part in planned if part.draws]


def continued(begun: Sequence[Round], settings: Settings) -> list[Round]:
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
    hints = settings.hints if settings.method == "sft" else []
    return [*begun, *rounds(settings.model_copy(update={"samples": left, "hints": hints}))]


def _with_base(draws: tuple[tuple[str, int], ...], learn: Literal["replay", "sft"], settings: Settings) -> Round:
    """Give a part of a round of ``replay`` to the model itself."""
    if learn != "replay" or not settings.base_share:
        return Round(draws, learn)
    kept = [(law, round(count * (1 - settings.base_share))) for law, count in draws]
    base = sum(count for _, count in draws) - sum(count for _, count in kept)
    return Round((*kept, (BASE, base)), learn)


def _split(total: int, sizes: list[float]) -> list[int]:
    """Divide a number in given proportions; the parts are whole and sum to it."""
    ends = [round(total * sum(sizes[: k + 1]) / sum(sizes)) for k in range(len(sizes))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
