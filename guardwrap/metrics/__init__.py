"""Estimates computed from draws, each with an interval and the source of its estimator.

They are functions of plain arrays. ``Estimate`` is a value with its 95 % interval. Importing them does not load torch.
"""

from guardwrap.metrics.chains import autocorrelation, r_hat
from guardwrap.metrics.divergence import (
    kl_gold_base,
    kl_gold_guarded,
    kl_gold_guarded_from_gold,
    kl_gold_proposal,
    kl_gold_proposal_from_gold,
    log_beta_for_acceptance,
    log_beta_for_tvd,
    qrs_acceptance,
    qrs_kl,
    qrs_tvd,
    theorem2_residual,
    tvd_gold_guarded,
)
from guardwrap.metrics.intervals import acceptance_rate
from guardwrap.metrics.texts import (
    position_bins,
    position_histogram,
    positivity_by_sentence,
    projected_kl,
    relative_position,
    self_bleu,
    semantic_similarity,
    spans,
)
from guardwrap.metrics.weights import effective_sample_size, pareto_k, pareto_k_limit, partition

__all__ = [
    "acceptance_rate",
    "autocorrelation",
    "effective_sample_size",
    "kl_gold_base",
    "kl_gold_guarded",
    "kl_gold_guarded_from_gold",
    "kl_gold_proposal",
    "kl_gold_proposal_from_gold",
    "log_beta_for_acceptance",
    "log_beta_for_tvd",
    "pareto_k",
    "pareto_k_limit",
    "partition",
    "position_bins",
    "position_histogram",
    "positivity_by_sentence",
    "projected_kl",
    "qrs_acceptance",
    "qrs_kl",
    "qrs_tvd",
    "r_hat",
    "relative_position",
    "self_bleu",
    "semantic_similarity",
    "spans",
    "theorem2_residual",
    "tvd_gold_guarded",
]
