"""Satisfying samples of several laws, and what each is worth as a draw of g."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Buffer", "Sample", "systematic"]

Floats = NDArray[np.float64]

_HELD_OUT = 5  # one sample in so many only measures


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample that satisfies the constraint.

    Parameters
    ----------
    prompt
        Number of its prompt, from 0.
    token_ids
        Its new tokens; shape ``[length]``.
    decided
        After how many of them nothing could violate the constraint any more; ``length`` where that was never so.
    """

    prompt: int
    token_ids: tuple[int, ...]
    decided: int


@dataclass
class Buffer:
    """Every satisfying sample drawn so far, from whichever law.

    A law is what attempts were drawn from: the model, a constraint-aware prompt, the policy at some step. Together the
    draws are a stratified sample of the laws' mixture q_p(y) = Σ_k (N_kp / N_p) a'_k(y), so P(y) / q_p(y) weighs them
    whichever law each came from: the balance heuristic (Veach and Guibas 1995; as "multiple importance sampling" in
    Owen, *Monte Carlo theory*, chapter 9). With the model among the laws no weight exceeds N_p / N_base,p.

    Parameters
    ----------
    prompts
        How many there are.
    samples
        In the order in which they came.
    log_base
        log a(y) of each, in nats; ``[samples]``.
    origin
        The law that each was drawn from; ``[samples]``.
    places
        A number of each that says whether it is held out; ``[samples]``. Not its text: where few texts carry g, both
        sides must have them. It never changes: what was learned from must not become what measures.
    log_laws
        log a'_k(y) of each; ``[laws][samples]``.
    drawn
        N_kp, attempts drawn; ``[laws][prompts]``. A number of attempts that stand behind branches need not be whole.
    """

    prompts: int
    samples: list[Sample] = field(default_factory=list)
    log_base: list[float] = field(default_factory=list)
    origin: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    log_laws: list[list[float]] = field(default_factory=list)
    drawn: list[list[float]] = field(default_factory=list)

    def extend(
        self,
        samples: Sequence[Sample],
        origin: int,
        log_base: Sequence[float],
        log_laws: Sequence[Sequence[float]],
        places: Sequence[int] | None = None,
    ) -> None:
        """Add samples of one law, with what each law says of them.

        Samples that depend on each other have the same of ``places``; None is for independent ones.
        """
        begin = self.origin.count(origin)
        self.places += range(begin, begin + len(samples)) if places is None else places
        self.samples += samples
        self.origin += [origin] * len(samples)
        self.log_base += log_base
        for known, more in zip(self.log_laws, log_laws, strict=True):
            known += more

    def forget(self, law: int) -> None:
        """Drop a law and what was drawn from it. What is left is a sample of the other laws' mixture."""
        kept = [i for i, origin in enumerate(self.origin) if origin != law]
        self.samples = [self.samples[i] for i in kept]
        self.log_base = [self.log_base[i] for i in kept]
        self.places = [self.places[i] for i in kept]
        self.origin = [self.origin[i] - (self.origin[i] > law) for i in kept]
        del self.log_laws[law], self.drawn[law]
        self.log_laws = [[known[i] for i in kept] for known in self.log_laws]

    def log_weights(self) -> Floats:
        """Return log P(y) / q(y), ``[samples]``, in nats."""
        which = [sample.prompt for sample in self.samples]
        drawn = np.array(self.drawn, float)
        with np.errstate(divide="ignore"):
            share = np.log(drawn / drawn.sum(axis=0))[:, which]
        mixture = np.logaddexp.reduce(share + np.array(self.log_laws), axis=0)
        return np.asarray(np.array(self.log_base) - mixture)

    def partition(self) -> Floats:
        """Estimate Z_p = E_q[P / q] for each prompt, ``[prompts]``; unbiased."""
        total = np.bincount([s.prompt for s in self.samples], np.exp(self.log_weights()), self.prompts)
        return np.asarray(total / np.array(self.drawn, float).sum(axis=0))

    def shares(self, *, held_out: bool) -> Floats:
        """Return what share of g each sample stands for: weights that sum to 1, the same sum for each prompt.

        Parameters
        ----------
        held_out
            Of the samples that only measure; of the others if False. The rest gets 0.

        Returns
        -------
        numpy.ndarray
            ``[samples]``; all 0 where there is none on this side.
        """
        weights = self.log_weights()
        chosen = (np.array(self.places, int) % _HELD_OUT == 0) == held_out
        shares = np.zeros(len(weights))
        for prompt in range(self.prompts):
            rows = chosen & np.array([sample.prompt == prompt for sample in self.samples], bool)
            if rows.any():
                inside = np.exp(weights[rows] - weights[rows].max())
                shares[rows] = inside / inside.sum()
        return shares / shares.sum() if shares.any() else shares


def systematic(weights: Floats, count: int, offset: float) -> NDArray[np.int64]:
    """Choose indexes in proportion to weights, evenly spread (systematic resampling; Kitagawa 1996).

    Parameters
    ----------
    weights
        At least 0, not all of them 0.
    count
        How many indexes.
    offset
        From 0 to 1. Drawn uniformly, each index is chosen in expectation as often as its share says.
    """
    points = (np.arange(count) + offset) / count
    return np.searchsorted(np.cumsum(weights) / weights.sum(), points).clip(max=len(weights) - 1)
