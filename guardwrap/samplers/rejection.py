"""Rejection sampling: Algorithm 1 of the paper."""

from __future__ import annotations

from guardwrap.draws import Draw
from guardwrap.samplers.base import Attempt, Sampler

__all__ = ["rejection"]


def _init() -> None:
    return None


def _step(state: None, attempt: Attempt) -> tuple[None, Draw | None]:
    return state, attempt.draw if attempt.satisfied else None


rejection = Sampler("rejection", _init, _step, law="exactly g")
"""Draw from a' until b(y) = 1. Samples g' ∝ a' b, which is g when a' = a (paper, Section 3 and App. B.3)."""
