"""Accepted samples of several distributions, and their weights as draws of g."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_HELD_OUT = 5  # one of this many samples is held out


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample that satisfies the constraint."""

    prompt: int  # index of its prompt
    token_ids: tuple[int, ...]  # its new tokens; shape ``[length]``
    decided: int  # number of tokens after which no continuation can violate the constraint; ``length`` if there is none


@dataclass
class Buffer:
    """All accepted samples so far, from several laws.

    A law is a distribution that attempts were drawn from: the model, a constraint-aware prompt, or the policy at some
    step. Together the draws are a stratified sample of the mixture q_p(y) = Σ_k (N_kp / N_p) a'_k(y), so the weight of
    each is P(y) / q_p(y), whichever law it came from: the balance heuristic (Veach and Guibas 1995; "multiple
    importance sampling" in Owen, *Monte Carlo theory*, chapter 9). With the model among the laws no weight exceeds
    N_p / N_base,p.
    """

    prompts: int  # number of prompts
    samples: list[Sample] = field(default_factory=list)  # the samples in the order in which they were added
    log_base: list[float] = field(default_factory=list)  # log a(y) in nats; ``[samples]``
    origin: list[int] = field(default_factory=list)  # index of the law that each sample was drawn from; ``[samples]``
    # Numbers that decide which samples are held out; ``[samples]``. They do not depend on the text: if few texts carry
    # g, both sides must have them. They never change, so that no sample moves from training to held-out.
    places: list[int] = field(default_factory=list)
    log_laws: list[list[float]] = field(default_factory=list)  # log a'_k(y) in nats; ``[laws][samples]``
    # Numbers of attempts N_kp; ``[laws][prompts]``. The number that branches are worth may be fractional.
    drawn: list[list[float]] = field(default_factory=list)

    def extend(
        self,
        samples: Sequence[Sample],
        origin: int,
        log_base: Sequence[float],
        log_laws: Sequence[Sequence[float]],
        places: Sequence[int] | None = None,
    ) -> None:
        """Add samples of one law, with their log-probabilities under every law.

        Dependent samples have equal ``places``; None is for independent samples.
        """
        begin = self.origin.count(origin)
        self.places += range(begin, begin + len(samples)) if places is None else places
        self.samples += samples
        self.origin += [origin] * len(samples)
        self.log_base += log_base
        for known, more in zip(self.log_laws, log_laws, strict=True):
            known += more

    def forget(self, law: int) -> None:
        """Remove a law and its samples. The others are a sample of the remaining laws' mixture."""
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
        """Return the share of g that each sample represents: weights that sum to 1, with equal sums for all prompts.

        Parameters
        ----------
        held_out
            Whether to return the shares of held-out samples, or of those for training. All others get 0.

        Returns
        -------
        numpy.ndarray
            ``[samples]``; all 0 if there are no such samples.
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
    """Choose indexes in proportion to weights by systematic resampling (Kitagawa 1996).

    ``offset``: number from 0 to 1. If it is drawn uniformly, the expected count of each index is ``count`` times its
    share.
    """
    points = (np.arange(count) + offset) / count
    return np.searchsorted(np.cumsum(weights) / weights.sum(), points).clip(max=len(weights) - 1)
