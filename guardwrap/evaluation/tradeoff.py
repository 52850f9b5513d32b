"""Cost and distance to g for each setting of each sampler, run over recorded attempts (paper, App. G).

Samplers are pure, so one recording serves all settings. IMH takes many accepted attempts per text. If the recorded
ones are too few, they are drawn again with replacement: a bootstrap of the proposal's distribution. ``reach``
interpolates costs at given distances, next to the paper's figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardwrap.metrics import (
    acceptance_rate,
    effective_sample_size,
    log_beta_for_acceptance,
    projected_kl,
    qrs_acceptance,
    self_bleu,
)
from guardwrap.metrics.intervals import clip, inverse
from guardwrap.outcomes import Estimate
from guardwrap.outcomes.blocks import Strict
from guardwrap.samplers import Attempt, Sampler, imh, qrs, rejection, sampler_named

CURVES = ("rejection", "qrs", "imh")
"""Names of samplers in points, except the settings' own sampler."""

COSTS = (1.1, 1.2, 1.36, 1.7, 2.2, 3.0, 4.5, 7.0, 10.0, 15.0, 22.0, 33.0, 50.0)
"""Costs of QRS relative to rejection, for which β is chosen by default."""

BLEU_TEXTS = 100
_LEAST = 100  # fewest texts for which a β is chosen
_MOST = 10_000  # most texts of IMH


@dataclass(frozen=True)
class Bins:
    """Bins of positions, for texts of g and others."""

    of: Callable[[str], int]  # function from a text to its bin
    count: int  # number of bins
    gold: NDArray[np.int64]  # bins of the texts of g, shape ``[texts]``


@dataclass(frozen=True)
class Point(Strict):
    """One setting of a sampler."""

    # ``"rejection"`` and None, ``"qrs"`` and β, ``"imh"`` and its steps; for the settings' own sampler, its name with
    # options, and None
    sampler: str
    setting: float | None
    texts: int  # number of accepted texts
    resampled: bool  # whether recorded attempts were drawn again with replacement
    cost: Estimate  # attempts per text
    relative_cost: float  # the cost divided by that of rejection from this proposal
    projected_kl: Estimate | None = None  # projected KL to g over the bins of positions, in nats
    figures: Mapping[str, Estimate | float | None] = field(default_factory=dict)  # the sampler's own figures by name
    self_bleu: Mapping[str, Estimate] = field(default_factory=dict)  # Self-BLEU by n


def tradeoff(
    attempts: Sequence[Attempt],
    bins: Bins | None,
    *,
    betas: Sequence[float] | None,
    steps: Sequence[int],
    texts: int,
    seed: int,
    sampler: str | Mapping[str, Any] | None = None,
) -> list[Point]:
    """Run every setting over the attempts of one proposal."""
    weights = np.array([attempt.log_weight for attempt in attempts], dtype=np.float64)
    satisfied = [attempt for attempt in attempts if attempt.satisfied]
    rate = acceptance_rate(len(satisfied), len(attempts), stopped_on_acceptance=False)
    points = [_point("rejection", None, *_run(rejection, attempts), bins, inverse(rate), 1.0)]
    for log_beta in _chosen(weights) if betas is None else sorted(map(math.log, betas)):
        cost = inverse(qrs_acceptance(weights, log_beta))
        ran = _run(qrs(math.exp(log_beta)), attempts)
        points.append(_point("qrs", math.exp(log_beta), *ran, bins, cost, cost.value * rate.value))
    # The error of the recorded attempts remains when they are drawn again; it depends on their effective sample size.
    worth = effective_sample_size(weights[[attempt.satisfied for attempt in attempts]]).value
    for number in sorted(set(steps)):
        count = min(max(len(satisfied) // (number + 1), texts), _MOST)
        again = count * (number + 1) > len(satisfied)
        stream = _resampled(satisfied, count * (number + 1), [seed, number]) if again else satisfied
        ran = _run(imh(number), stream[: count * (number + 1)])
        cost = Estimate(*((number + 1) * x for x in inverse(rate)))
        points.append(_point("imh", number, *ran, bins, cost, number + 1.0, worth if again else math.inf))
    if sampler is not None:
        given, figures = _run(sampler_named(sampler), attempts)
        cost = inverse(acceptance_rate(len(given), len(attempts), stopped_on_acceptance=False))
        if given:
            own = f"sampler: {sampler_in_words(sampler)}"
            points.append(_point(own, None, given, figures, bins, cost, cost.value * rate.value))
    return points


def sampler_in_words(sampler: str | Mapping[str, Any]) -> str:
    """Return the name of a sampler with its options."""
    ((name, options),) = ((sampler, None),) if isinstance(sampler, str) else sampler.items()
    return name + "".join(f", {option} = {value}" for option, value in (options or {}).items())


def _run(sampler: Sampler, attempts: Sequence[Attempt]) -> tuple[list[str], Mapping[str, Estimate | float]]:
    state, texts = sampler.init(), []
    for attempt in attempts:
        state, draws = sampler.returned(state, attempt)
        texts += [draw.text for draw in draws]
    return texts, sampler.report(state)[1]


def _point(
    sampler: str,
    setting: float | None,
    texts: list[str],
    figures: Mapping[str, Estimate | float],
    bins: Bins | None,
    cost: Estimate,
    relative: float,
    worth: float = math.inf,
) -> Point:
    """Build a point; ``worth`` is the effective sample size of attempts that were drawn again, in draws of g."""
    projected = None
    if bins is not None and texts:
        found = projected_kl(bins.gold, np.array([bins.of(text) for text in texts]), bins=bins.count)
        # Correct the bias of an estimate from ``worth`` draws of g (Paninski 2003), and add their error to that of the
        # texts. Chains with few moves have less of this bias, so the upper end is not lowered.
        value = found.value - (bins.count - 1) / (2 * worth)
        wider = math.sqrt(1 + len(texts) / worth)
        down, up = wider * (found.value - found.low), wider * (found.high - found.value)
        projected = clip(Estimate(value, value - down, found.value + up))
    resampled = worth < math.inf
    # Attempts drawn again repeat texts, which would distort Self-BLEU.
    bleu = {} if resampled else diversity(texts)
    return Point(sampler, setting, len(texts), resampled, cost, relative, projected, figures, bleu)


def _chosen(weights: NDArray[np.float64]) -> list[float]:
    """Choose log β by cost: for those of ``COSTS`` that leave enough texts, for β = Z and for the largest weight.

    All β above the largest weight accept the same attempts with the same relative probabilities.
    """
    accepted, top = int((weights > -math.inf).sum()), float(weights.max())
    share, log_z = accepted / len(weights), float(np.logaddexp.reduce(weights)) - math.log(len(weights))
    chosen = [log_beta_for_acceptance(weights, share / cost) for cost in COSTS if accepted / cost >= _LEAST]
    chosen += [log_z, *([top] if math.exp(log_z - top) * len(weights) >= _LEAST else [])]
    return sorted({log_beta for log_beta in chosen if -700 < log_beta <= top})


def _resampled(satisfied: Sequence[Attempt], size: int, seed: list[int]) -> list[Attempt]:
    chance = np.random.default_rng(seed)
    picked, uniforms = chance.integers(len(satisfied), size=size).tolist(), chance.random(size).tolist()
    return [
        Attempt(satisfied[i].draw, True, satisfied[i].log_weight, uniform)
        for i, uniform in zip(picked, uniforms, strict=True)
    ]


def diversity(texts: Sequence[str]) -> dict[str, Estimate]:
    """Return Self-BLEU by n, for n from 2 to 5, of ``BLEU_TEXTS`` of the texts."""
    if len(texts) < BLEU_TEXTS or find_spec("sacrebleu") is None:
        return {}
    return {str(n): self_bleu(texts, n, k=BLEU_TEXTS) for n in (2, 3, 4, 5)}


_FLOOR = 0.01  # share of rejection's KL; smaller values, whose logarithm may not exist, are raised to it


@dataclass(frozen=True)
class Reach(Strict):
    """Cost of a sampler, relative to rejection, at which a given share of rejection's projected KL remains."""

    sampler: str  # name of the sampler, and the share that remains
    share: float
    cost: float | None  # Log-log interpolation of the curve; None if the curve does not reach the share
    low: float | None  # the same for the curves of the intervals' lower and upper ends
    high: float | None
    paper: float | None = None  # the paper's figure (App. G), if requested.


_PAPER = (("qrs", 0.5, 1.36), ("imh", 0.5, 10.0), ("qrs", 0.1, 10.0), ("imh", 0.1, 50.0))
"""Sampler, remaining share of the projected KL, cost relative to rejection (App. G; ≈ 10 and 50 for the last two)."""


def reach(points: Sequence[Point], *, replication: bool = False) -> list[Reach]:
    """Return the costs of QRS and IMH at which half, and a tenth, of the projected KL remains."""
    start = points[0].projected_kl
    if start is None or not start.low > 0:
        return []
    found = []
    for sampler, share, paper in _PAPER:
        curve = sorted((p for p in points if p.sampler == sampler and p.projected_kl), key=lambda p: p.relative_cost)
        ends = [
            _crossing(
                [1.0, *(p.relative_cost for p in curve)],
                [start.value, *(p.projected_kl[end] for p in curve if p.projected_kl)],
                share * start.value,
                _FLOOR * start.value,
            )
            for end in range(3)
        ]
        cost, low, high = ends
        found.append(Reach(sampler, share, cost, low, high, paper if replication else None))
    return found


def _crossing(costs: Sequence[float], values: Sequence[float], target: float, floor: float) -> float | None:
    """Return the cost at which a curve first falls to the target, or None."""
    for (cost, value), (next_cost, next_value) in pairwise(zip(costs, values, strict=True)):
        if next_value <= target < value:
            last = max(next_value, floor)  # a KL may be estimated as 0
            part = (math.log(value) - math.log(target)) / (math.log(value) - math.log(last))
            return math.exp(math.log(cost) + part * (math.log(next_cost) - math.log(cost)))
    return None
