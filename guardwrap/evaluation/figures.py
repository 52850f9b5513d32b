"""Figures of proposals and samplers from recorded attempts, their methods, and warnings about them.

Pure functions and plain data, without generation and without I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Regex
from guardwrap.evaluation.evaluation_settings import BASE, EvaluationSettings
from guardwrap.evaluation.tradeoff import BLEU_TEXTS, CURVES, Bins, Point, Reach, diversity, reach, tradeoff
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
from guardwrap.metrics.intervals import combine, jackknife, log_estimate, mean_of
from guardwrap.metrics.weights import scaled
from guardwrap.outcomes import FEW, Estimate, exactly, heavy_tail, plain
from guardwrap.outcomes.blocks import Strict
from guardwrap.samplers import Attempt
from guardwrap.support.formatting import tail_in_words

ENOUGH = 100
"""Number of texts of g, or effective sample size, from which figures are credible."""


def sees_all_of_g(figures: Mapping[str, Estimate]) -> bool:
    """Return whether a small distance is credible: enough effective draws, and no sign that they miss part of g."""
    ratio = figures.get("log_partition_over_base_rate")
    worth = figures.get("effective_sample_size")
    return ratio is not None and ratio.low <= 0 <= ratio.high and worth is not None and worth.value >= ENOUGH


def heavy_in(figures: Mapping[str, Estimate]) -> float | None:
    """Return the Pareto k of a proposal's weights as ``heavy_tail`` does; None if there are too few for a k."""
    k, limit = figures.get("pareto_k"), figures.get("pareto_k_limit")
    if k is None or limit is None or math.isnan(k.value):
        return None
    return heavy_tail({"pareto_k": k, "pareto_k_limit": limit.value})


def notes_on(figures: Mapping[str, Estimate], gold: int, place: bool, halved: bool, without: bool) -> tuple[str, ...]:
    """Return warnings about the figures of a proposal."""
    notes = []
    if (worth := figures["effective_sample_size"].value) < ENOUGH:
        notes.append(
            f"the attempts are worth {worth:.3g} draws of g, too few to estimate distances: they may be far off, "
            "most often too low"
        )
    if (k := heavy_in(figures)) is not None:
        notes.append(f"{tail_in_words(k)}, so the distances have no upper end: they may be far larger than estimated")
    ratio = figures.get("log_partition_over_base_rate")
    if ratio is None:
        notes.append(
            "no attempt of the model itself satisfies the constraint, so its acceptance rate cannot serve as a check"
        )
    elif ratio.high < 0 or ratio.low > 0:
        notes.append(
            "Z from the weights differs from the model's AR: the proposal hardly ever gives a part of g, so distances "
            "are estimated too low, or log-probabilities are wrong"
        )
    if place and gold < ENOUGH:
        notes.append(
            f"only {gold} texts of g, from the model itself: "
            + ("too few for a projected KL" if gold < FEW else "the projected KL is rough")
        )
    if place and gold >= ENOUGH and not halved:
        notes.append(
            "the match shows no difference in position between texts of g' and of g: the interval of the projected KL "
            "includes 0 already, so no sampler can lower it"
        )
    if without:
        notes.append("the sampler of the settings accepted none of these attempts")
    if find_spec("sacrebleu") is None:
        notes.append("no Self-BLEU, because sacrebleu is not installed (pip install 'guardwrap[metrics]')")
    return tuple(notes)


BINS = 10
_SAMPLES = 5


@dataclass(frozen=True)
class BaseFigures(Strict):
    """Figures of the model itself, whose attempts that satisfy the constraint are draws of g."""

    attempts: int  # number of attempts, and of those that satisfy the constraint
    accepted: int
    figures: Mapping[str, Estimate]  # estimates by name
    # share of texts of g per bin of the relative position; None if no position is compared
    histogram: Sequence[Estimate] | None
    self_bleu: Mapping[str, Estimate]  # Self-BLEU of texts of g by n
    samples: Sequence[str]  # a few texts of g, in launch order
    spans: Sequence[Sequence[tuple[int, int]]] = ()  # for each sample the matches: begin and end in characters


@dataclass(frozen=True)
class ProposalFigures(Strict):
    """Figures of one proposal."""

    attempts: int  # number of attempts, and of those that satisfy the constraint
    accepted: int
    figures: Mapping[str, Estimate]  # estimates by name; only the acceptance rate if no attempt has a weight above 0
    # share of texts of g' per bin of the relative position; None if no position is compared
    histogram: Sequence[Estimate] | None = None
    samplers: Sequence[Point] = ()  # figures of every setting of every sampler; rejection first
    reach: Sequence[Reach] = ()  # costs of samplers at given distances
    notes: Sequence[str] = ()  # warnings to the reader


@dataclass(frozen=True)
class PromptFigures(Strict):
    """All figures of one prompt."""

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


LABELS = {
    "acceptance_rate": "acceptance rate AR",
    "kl_gold_base": "KL(g‖a) = -log AR of the model [nats]",
    "partition": "Z = AR of the model, from weights",
    "log_partition_over_base_rate": "log Z - log AR of the model (0 if correct) [nats]",
    "kl_gold_proposal": "KL(g‖a') [nats]",
    "kl_gold_guarded": "KL(g‖g') [nats]",
    "tvd_gold_guarded": "TVD(g, g')",
    "effective_sample_size": "effective sample size [attempts]",
    "pareto_k": "Pareto k of the weights",
    "pareto_k_limit": "Pareto k above which distances have no upper end",
    "theorem2_residual": "Theorem 2's residual (0 if correct) [nats]",
}
"""Labels of figures on the page."""

_EACH = ("pareto_k", "pareto_k_limit")
"""Figures of each prompt that have no meaningful mean over prompts."""

HOW = {
    "notation": "a: the model's own distribution under the generation settings; b: the constraint; g = a b / Z: the "
    "target distribution; a': a proposal; g' = a' b / Z': the distribution of rejection sampling from it.",
    "intervals": "95 %. In JSON null means unknown or unbounded.",
    "distances": "KL(g‖a'), KL(g‖g'), TVD and Z are importance-sampling estimates from the attempts of the proposal.",
    "pareto_k": "Tail index of the weights, by the estimator of Zhang and Stephens (2009) with the prior of PSIS "
    "(Vehtari et al. 2024). If it is above min(1 - 1 / log10(number of weights), 0.7), KL and TVD have no upper end.",
    "theorem2_residual": "KL(g‖a') - KL(g‖g') + log AR_a'. Each term is estimated from its own quarter of the "
    "attempts, with Z from the model's own attempts.",
    "samplers": "Every setting runs over the same recorded attempts, so points of a curve are not independent. Cost is "
    "attempts per text. For IMH, whose move is one accepted attempt, it is steps + 1 times that of rejection.",
    "sampler": "The sampler of the settings runs over all recorded attempts. Its cost is their number divided by the "
    "number of its texts, with the pilot's attempts; the interval assumes independent texts.",
    "beta": "In units of P/a', where P = a b. If β was not given, it was chosen by its cost on the same attempts.",
    "resampled": "If the recorded attempts are too few for IMH, those that satisfy the constraint are drawn again "
    "with replacement: a bootstrap of the proposal's distribution. To correct for the error of the recorded attempts, "
    "worth m = effective sample size draws of g, (bins - 1) / 2m is subtracted from the projected KL but not from its "
    "upper end, and its interval is widened by a factor of √(1 + texts / m). Such texts have no Self-BLEU.",
    "projected_kl": f"KL from g to the sampler between the distributions over {BINS} bins of the relative position. "
    "Texts without a match have a separate bin. It is a lower bound of the KL between the distributions of texts "
    "(paper, App. G).",
    "reach": "Cost relative to rejection at which a share of rejection's projected KL remains, by log-log "
    "interpolation of the curve. Low and high come from the curves of the intervals' ends. Null if a curve does not "
    "reach the share.",
    "self_bleu": f"Of {BLEU_TEXTS} texts, by n (sacrebleu, tokenizer 13a, smoothing exp). Higher is more alike.",
    "mean": "Over the prompts as given, with equal weights.",
}
"""Methods by which the figures were computed."""


@dataclass(frozen=True)
class Evaluation(Strict):
    """Settings and figures of an evaluation."""

    settings: EvaluationSettings
    constraint: str  # the constraint in words, and its digest
    digest: str
    place: str | None  # the keyword or pattern by whose position texts are compared, in words, or None
    prompts: Sequence[PromptFigures]  # figures of each prompt
    versions: Mapping[str, str]  # package versions with which the figures were computed
    # for each proposal, package versions with which its attempts were drawn
    recorded_with: Mapping[str, Mapping[str, str]]
    how: Mapping[str, str] = field(default_factory=lambda: HOW)  # methods of the figures by name, in words

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as plain JSON types."""
        data: dict[str, Any] = plain(self) | {"settings": self.settings.model_dump()}
        return data | {"mean": plain(mean_over_prompts(self.prompts))}


def mean_over_prompts(prompts: Sequence[PromptFigures]) -> dict[str, dict[str, Estimate]]:
    """Average the figures of the model and of each proposal over prompts."""
    rows = [
        {BASE: prompt.base.figures} | {name: proposal.figures for name, proposal in prompt.proposals.items()}
        for prompt in prompts
    ]
    means: dict[str, dict[str, Estimate]] = {}
    for name in rows[0]:
        known = [row[name] for row in rows]
        for figure in (name for name in known[0] if name not in _EACH):
            values = [figures[figure] for figures in known if figure in figures]
            if len(values) == len(rows) and all(math.isfinite(x.value) for x in values):
                means.setdefault(name, {})[figure] = mean_of(values)
    return means
