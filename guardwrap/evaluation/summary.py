"""An evaluation as a whole: figures over prompts, how they were made, and all of it as plain JSON types."""

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

__all__ = ["HOW", "LABELS", "Evaluation", "mean_over_prompts"]

LABELS = {
    "acceptance_rate": "acceptance rate AR",
    "kl_gold_base": "KL(g‖a) = -log AR of the model [nats]",
    "partition": "Z = AR of the model, from weights",
    "log_partition_over_base_rate": "log Z - log AR of the model (0 if all is right) [nats]",
    "kl_gold_proposal": "KL(g‖a') [nats]",
    "kl_gold_guarded": "KL(g‖g') [nats]",
    "tvd_gold_guarded": "TVD(g, g')",
    "effective_sample_size": "effective sample size [attempts]",
    "theorem2_residual": "Theorem 2's residual (0 if all is right) [nats]",
}
"""What figures are called in words."""

HOW = {
    "notation": "a: the model under the generation settings; b: the constraint; g = a b / Z: what texts should be from"
    "; a': a proposal; g' = a' b / Z': what rejection from it gives.",
    "intervals": "Of 95 %. In JSON null is unknown, or without bound.",
    "distances": "KL(g‖a'), KL(g‖g'), TVD and Z are importance-sampling estimates from the attempts of the proposal.",
    "theorem2_residual": "KL(g‖a') - KL(g‖g') + log AR_a'. Its terms come from a quarter of the attempts each, and "
    "Z in them from the model's own attempts.",
    "samplers": "Every setting runs over the same recorded attempts, so points of a curve are not independent. Cost is "
    "attempts for a text; for IMH, whose move is one accepted attempt, steps + 1 times that of rejection.",
    "sampler": "The sampler of the settings, over all recorded attempts: its cost is their number over that of its "
    "texts, a pilot's attempts included; that interval takes texts to be independent.",
    "beta": "In units of P/a', where P = a b. Where none was given, it was chosen on the same attempts by its cost.",
    "resampled": "Where the recorded attempts are too few for IMH, those that satisfy the constraint are drawn again "
    "with replacement, by the seed: a bootstrap of the proposal's law. For the error of what was recorded, worth m = "
    "effective sample size draws of g, (bins - 1) / 2m is taken off the projected KL, but not off its upper end, and "
    "its interval widened by the root of 1 + texts / m. There is no Self-BLEU of such texts.",
    "projected_kl": f"KL from g to the sampler between the laws of {BINS} bins of the relative position. A text "
    "without the place has a bin of its own. It bounds the KL between the laws of texts from below (paper, App. G).",
    "reach": "Cost over rejection at which a share of rejection's projected KL is left: log-log between the curve's "
    "points. Low and high are read off the curves of the intervals' ends. Null where a curve does not come so far.",
    "self_bleu": f"Of {BLEU_TEXTS} texts, by n (sacrebleu, tokenizer 13a, smoothing exp). High is alike.",
    "mean": "Over the prompts as given, each with the same weight.",
}
"""How figures were made, in words."""


@dataclass(frozen=True)
class Evaluation:
    """Everything that an evaluation found.

    Parameters
    ----------
    settings
        What it was told.
    constraint, digest
        The constraint in words, and its digest.
    place
        What texts are compared by, in words, or None.
    prompts
        Figures of each prompt.
    versions
        Of the packages that made the figures.
    recorded_with
        By proposal, of those that made the attempts.
    how
        How figures were made, in words.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    settings: EvaluationSettings
    constraint: str
    digest: str
    place: str | None
    prompts: Sequence[PromptFigures]
    versions: Mapping[str, str]
    recorded_with: Mapping[str, Mapping[str, str]]
    how: Mapping[str, str] = field(default_factory=lambda: HOW)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON types."""
        data: dict[str, Any] = plain(self) | {"settings": self.settings.model_dump()}
        return data | {"mean": plain(mean_over_prompts(self.prompts))}


def mean_over_prompts(prompts: Sequence[PromptFigures]) -> dict[str, dict[str, Estimate]]:
    """Average the figures of the model and of each proposal over prompts.

    Parameters
    ----------
    prompts
        Their figures.

    Returns
    -------
    dict
        By proposal, the model itself first, and figure. The prompts are taken as given, not as a sample, and their
        attempts are independent (MOVER). A figure that is unknown or infinite for one of the prompts is left out.
    """
    rows = [
        {BASE: prompt.base.figures} | {name: proposal.figures for name, proposal in prompt.proposals.items()}
        for prompt in prompts
    ]
    means: dict[str, dict[str, Estimate]] = {}
    for name in rows[0]:
        known = [row[name] for row in rows]
        for figure in known[0]:
            values = [figures[figure] for figures in known if figure in figures]
            if len(values) == len(rows) and all(math.isfinite(x.value) for x in values):
                means.setdefault(name, {})[figure] = mean_of(values)
    return means
