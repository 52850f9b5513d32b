"""Figures of proposals and samplers from recorded attempts: pure functions, without generation and without I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Regex
from guardwrap.evaluation.notes import notes_on
from guardwrap.evaluation.reach import Reach, reach
from guardwrap.evaluation.tradeoff import CURVES, Bins, Point, diversity, tradeoff
from guardwrap.metrics import (
    acceptance_rate,
    effective_sample_size,
    kl_gold_base,
    kl_gold_guarded,
    kl_gold_proposal,
    pareto_k,
    pareto_k_limit,
    partition,
    position_bins,
    position_histogram,
    relative_position,
    spans,
    theorem2_residual,
    tvd_gold_guarded,
)
from guardwrap.metrics.intervals import combine, jackknife, log_estimate
from guardwrap.metrics.weights import scaled
from guardwrap.outcomes import FEW, Estimate, exactly
from guardwrap.samplers import Attempt

BINS = 10
_SAMPLES = 5


@dataclass(frozen=True)
class BaseFigures:
    """Figures of the model itself, whose attempts that satisfy the constraint are draws of g."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    attempts: int  # number of attempts, and of those that satisfy the constraint
    accepted: int
    figures: Mapping[str, Estimate]  # estimates by name
    # share of texts of g per bin of the relative position; None if no position is compared
    histogram: Sequence[Estimate] | None
    self_bleu: Mapping[str, Estimate]  # Self-BLEU of texts of g by n
    samples: Sequence[str]  # a few texts of g, in launch order
    spans: Sequence[Sequence[tuple[int, int]]] = ()  # for each sample the matches: begin and end in characters


@dataclass(frozen=True)
class ProposalFigures:
    """Figures of one proposal."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    attempts: int  # number of attempts, and of those that satisfy the constraint
    accepted: int
    figures: Mapping[str, Estimate]  # estimates by name; only the acceptance rate if no attempt has a weight above 0
    # share of texts of g' per bin of the relative position; None if no position is compared
    histogram: Sequence[Estimate] | None = None
    samplers: Sequence[Point] = ()  # figures of every setting of every sampler; rejection first
    reach: Sequence[Reach] = ()  # costs of samplers at given distances
    notes: Sequence[str] = ()  # warnings to the reader


@dataclass(frozen=True)
class PromptFigures:
    """All figures of one prompt."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    prompt: str
    base: BaseFigures
    proposals: Mapping[str, ProposalFigures]


def figures_of(
    prompt: str,
    base: Sequence[Attempt],
    proposals: Mapping[str, Sequence[Attempt]],
    *,
    place: str | Keyword | Regex | None = None,
    marks: Sequence[Keyword | Regex] = (),
    betas: Sequence[float] | None = None,
    steps: Sequence[int],
    texts: int = 1000,
    seed: int = 0,
    sampler: str | Mapping[str, Any] | None = None,
    replication: bool = False,
) -> PromptFigures:
    """Compute all figures of one prompt.

    ``place``: a word, keyword or pattern by whose relative position texts are compared; None for no comparison.
    """
    accepted = [attempt.draw.text for attempt in base if attempt.satisfied]
    rate = acceptance_rate(len(accepted), len(base), stopped_on_acceptance=False)
    positions = {} if place is None else _positions([base, *proposals.values()], place)
    bins = _bins(positions, accepted) if positions and len(accepted) >= FEW else None
    of_base = BaseFigures(
        len(base),
        len(accepted),
        {"acceptance_rate": rate, "kl_gold_base": kl_gold_base(len(accepted), len(base))},
        _histogram(positions, accepted),
        diversity(accepted),
        accepted[:_SAMPLES],
        [sorted(span for mark in marks for span in spans(text, mark)) for text in accepted[:_SAMPLES]],
    )

    def of_proposal(attempts: Sequence[Attempt]) -> ProposalFigures:
        satisfied = [attempt.draw.text for attempt in attempts if attempt.satisfied]
        weights = np.array([attempt.log_weight for attempt in attempts], dtype=np.float64)
        if not (weights > -math.inf).any():
            nothing = {"acceptance_rate": acceptance_rate(len(satisfied), len(attempts), stopped_on_acceptance=False)}
            note = "no attempt satisfies the constraint and has a weight above 0, so nothing else can be estimated"
            return ProposalFigures(len(attempts), len(satisfied), nothing, notes=(note,))
        figures = _of_weights(weights, len(satisfied), rate)
        points = tradeoff(attempts, bins, betas=betas, steps=steps, texts=texts, seed=seed, sampler=sampler)
        reached = reach(points, replication=replication)
        none_of = sampler is not None and points[-1].sampler in CURVES
        return ProposalFigures(
            len(attempts),
            len(satisfied),
            figures,
            _histogram(positions, satisfied),
            points,
            reached,
            notes_on(figures, len(accepted), place is not None, bool(reached), none_of),
        )

    return PromptFigures(prompt, of_base, {name: of_proposal(attempts) for name, attempts in proposals.items()})


def _of_weights(weights: NDArray[np.float64], satisfied: int, base_rate: Estimate) -> dict[str, Estimate]:
    """Return the figures that follow from log-weights and AR_a."""
    known = {
        "acceptance_rate": acceptance_rate(satisfied, len(weights), stopped_on_acceptance=False),
        "partition": partition(weights),
        "kl_gold_proposal": kl_gold_proposal(weights),
        "kl_gold_guarded": kl_gold_guarded(weights),
        "tvd_gold_guarded": tvd_gold_guarded(weights),
        "effective_sample_size": effective_sample_size(weights),
    }
    if math.isfinite((k := pareto_k(weights)).value):
        known |= {"pareto_k": k, "pareto_k_limit": exactly(pareto_k_limit(int((weights > -math.inf).sum())))}
    if base_rate.value > 0:
        of_base = log_estimate(base_rate)
        known["log_partition_over_base_rate"] = combine((1, log_estimate(known["partition"])), (-1, of_base))
        if residual := _residual(weights, of_base):
            known["theorem2_residual"] = residual
    return known


def _residual(weights: NDArray[np.float64], log_base_rate: Estimate) -> Estimate | None:
    """Estimate Theorem 2's residual from disjoint sets of attempts.

    Each term has its own quarter of the attempts, and KL(g‖g') = E_g log a/a' - log AR_a + log AR_{a'} (App. D) takes Z
    from the model's own attempts. So a constant that is missing from the log-weights, such as an end-of-sequence term,
    becomes visible; from one set of attempts the residual would be 0 by construction.
    """
    quarters = [weights[i::4] for i in range(4)]
    finite = [int((quarter > -math.inf).sum()) for quarter in quarters]
    if min(finite) < 2:
        return None
    rates = [acceptance_rate(n, len(q), stopped_on_acceptance=False) for n, q in zip(finite, quarters, strict=True)]
    guarded = combine((1, _mean_log_weight(quarters[1])), (-1, log_base_rate), (1, log_estimate(rates[2])))
    return theorem2_residual(kl_gold_proposal(quarters[0]), guarded, rates[3])


def _mean_log_weight(weights: NDArray[np.float64]) -> Estimate:
    """Estimate E_g log a/a' by self-normalized importance sampling, with a jackknife interval."""
    w, _ = scaled(weights)
    gain = np.zeros_like(w)
    gain[w > 0] = w[w > 0] * weights[w > 0]
    return jackknife(np.stack([w, gain]), lambda mean: np.asarray(mean[1] / mean[0]), int((w > 0).sum()) - 1)


def _positions(recordings: Sequence[Sequence[Attempt]], place: str | Keyword | Regex) -> dict[str, float]:
    """Return the relative position of the match in each text that satisfies the constraint; NaN without a match."""
    texts = sorted({attempt.draw.text for attempts in recordings for attempt in attempts if attempt.satisfied})
    return dict(zip(texts, relative_position(texts, place).tolist(), strict=True))


def _bins(positions: Mapping[str, float], gold: Sequence[str]) -> Bins:
    """Assign texts to bins of the position; texts without a match have a separate bin."""
    numbers = {
        text: BINS if math.isnan(position) else int(position_bins([position], BINS)[0])
        for text, position in positions.items()
    }
    count = BINS + (BINS in numbers.values())
    return Bins(numbers.__getitem__, count, np.array([numbers[text] for text in gold], dtype=np.int64))


def _histogram(positions: Mapping[str, float], texts: Sequence[str]) -> list[Estimate] | None:
    found = [positions[text] for text in texts if not math.isnan(positions.get(text, math.nan))]
    return position_histogram(found, BINS) if found else None
