"""The result of an evaluation: figures of all prompts, their methods, and conversion to plain JSON types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from guardwrap.evaluation.evaluation_settings import BASE, EvaluationSettings
from guardwrap.evaluation.figures import BINS, PromptFigures
from guardwrap.evaluation.tradeoff import BLEU_TEXTS
from guardwrap.metrics.intervals import mean_of
from guardwrap.outcomes import Estimate, plain

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
class Evaluation:
    """Settings and figures of an evaluation."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

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
