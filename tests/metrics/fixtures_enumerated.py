"""A finite world in which g, g', p_β, their KLs, TVDs and acceptance rates are computed by summation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from guardwrap.metrics.intervals import Floats
from guardwrap.outcomes import Estimate

REPETITIONS = 500
ATTEMPTS = 2_000


@dataclass(frozen=True)
class World:
    """Texts of up to five letters under two Markov chains.

    Parameters
    ----------
    log_a, log_proposal
        log a(y) and log a'(y) of every text, the end included; ``[texts]``, nats.
    end_a, end_proposal
        What of these the end-of-sequence token contributes.
    b
        Whether the constraint holds; ``[texts]``.
    """

    log_a: Floats
    log_proposal: Floats
    end_a: Floats
    end_proposal: Floats
    b: np.ndarray

    @property
    def a(self) -> Floats:
        return np.exp(self.log_a)

    @property
    def proposal(self) -> Floats:
        return np.exp(self.log_proposal)

    @property
    def log_weights(self) -> Floats:
        return np.where(self.b, self.log_a - self.log_proposal, -math.inf)

    @property
    def weights(self) -> Floats:
        return np.exp(self.log_weights)

    @property
    def z(self) -> float:
        return float(self.a[self.b].sum())

    @property
    def acceptance(self) -> float:
        return float(self.proposal[self.b].sum())

    @property
    def gold(self) -> Floats:
        return self.a * self.b / self.z

    @property
    def guarded(self) -> Floats:
        return self.proposal * self.b / self.acceptance

    def qrs(self, beta: float) -> tuple[Floats, float]:
        """Return p_β and the acceptance rate."""
        kept = self.proposal * np.minimum(1, self.weights / beta)
        return kept / kept.sum(), float(kept.sum())

    def draw(self, law: Floats, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return the indices of iid texts."""
        return np.searchsorted(np.cumsum(law)[:-1], rng.random(size), side="right")


def kl(p: Floats, q: Floats) -> float:
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def tvd(p: Floats, q: Floats) -> float:
    return float(np.abs(p - q).sum() / 2)


def make_world(seed: int, distance: float, letters: int = 4, longest: int = 5) -> World:
    """Enumerate a world whose a' differs from a by normal logits of the given standard deviation."""
    rng = np.random.default_rng(seed)
    logits_a = rng.normal(size=(letters + 1, letters + 1))  # from the last letter, or the start, to a letter or the end
    logits_proposal = logits_a + distance * rng.normal(size=logits_a.shape)
    steps = [logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) for logits in (logits_a, logits_proposal)]
    rows: list[tuple[float, float, float, float, bool]] = []

    def grow(text: tuple[int, ...], so_far: Floats) -> None:
        last = text[-1] if text else letters
        holds = 0 in text and 1 in text
        end = np.zeros(2) if len(text) == longest else np.array([step[last, letters] for step in steps])
        rows.append((*(so_far + end), *end, holds))
        if len(text) < longest:
            for letter in range(letters):
                grow((*text, letter), so_far + [step[last, letter] for step in steps])

    grow((), np.zeros(2))
    log_a, log_proposal, end_a, end_proposal, b = (np.array(column) for column in zip(*rows, strict=True))
    return World(log_a, log_proposal, end_a, end_proposal, b)


def covered(estimates: list[Estimate], truth: float) -> float:
    """Return the share of the intervals that contain the true value."""
    return float(np.mean([estimate.low <= truth <= estimate.high for estimate in estimates]))


def repeat(estimate: Callable[[np.random.Generator], Estimate], seed: int = 0) -> list[Estimate]:
    """Return estimates of all repetitions."""
    return [estimate(rng) for rng in generators(seed)]


def generators(seed: int = 0) -> list[np.random.Generator]:
    """Return a random number generator for each repetition."""
    return np.random.default_rng(seed).spawn(REPETITIONS)
