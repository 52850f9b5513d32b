"""Rejection sampling: Algorithm 1 of the paper."""

from __future__ import annotations

from collections.abc import Mapping

from guardwrap.outcomes import EXACT, Draw, Estimate
from guardwrap.samplers.protocol import Attempt, Sampler


def _init() -> None:
    return None


def _step(state: None, attempt: Attempt) -> tuple[None, Draw | None]:
    return state, attempt.draw if attempt.satisfied else None


def _report(state: None) -> tuple[str, Mapping[str, Estimate | float]]:
    return EXACT, {}


rejection = Sampler("rejection", _init, _step, _report, skips=True, takes_all=True, options=())
"""The sampler that accepts every attempt with b(y) = 1. It samples g' ∝ a' b, which is g if a' = a (paper, Section 3
and App. B.3)."""
