"""Updates of the policy from weighted samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from guardwrap.backends.sequence_scores import of_tokens, scored
from guardwrap.errors import ModelError
from guardwrap.training import shards
from guardwrap.training.objective import cross_entropy_by_token
from guardwrap.training.policy import Policy
from guardwrap.training.samples import Floats, Sample, systematic
from guardwrap.training.task import Task


@torch.enable_grad()  # the caller may have disabled gradients
def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    task: Task,
    samples: Sequence[Sample],
    weights: Sequence[float] | Floats,
    *,
    exact_ends: bool = True,
    clip: float | None = None,
) -> float:
    """Take one gradient descent step on -Σ_i w_i log π(y_i), and return that sum in nats.

    Parameters
    ----------
    policy, optimizer, task
        The policy to update, its optimizer, and model, constraint and prompts.
    samples, weights
        y_i and w_i, ``[samples]``; no gradient flows through the weights.
    exact_ends
        Whether tokens after the constraint is decided contribute their expectation (see ``objective``) instead of the
        drawn token. DPG uses the drawn tokens.
    clip
        Largest norm of the gradient, to which longer gradients are scaled; None for no clipping.
    """
    optimizer.zero_grad(set_to_none=False)
    pairs = shards.mine(_joined(samples, weights))
    parts: dict[bool, list[tuple[Sample, float]]] = {True: [], False: []}
    for sample, weight in pairs:
        parts[exact_ends and sample.decided < len(sample.token_ids)].append((sample, weight))
    total = sum(_backward(policy, task, part, exact_ends=early) for early, part in parts.items())
    loss = torch.tensor(total, device=task.model.device, dtype=torch.float32)  # on the device of the gradients
    for parameter in policy.parameters.values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    shards.summed([loss, *(parameter.grad for parameter in policy.parameters.values() if parameter.grad is not None)])
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(policy.parameters.values(), clip)
    optimizer.step()
    return float(loss)


def _joined(samples: Sequence[Sample], weights: Sequence[float] | Floats) -> list[tuple[Sample, float]]:
    """Merge equal samples and add their weights, so that each text is computed once; few texts may carry most of g."""
    joined: dict[Sample, float] = {}
    for sample, weight in zip(samples, weights, strict=True):
        joined[sample] = joined.get(sample, 0.0) + float(weight)
    return list(joined.items())


def _backward(policy: Policy, task: Task, pairs: Sequence[tuple[Sample, float]], *, exact_ends: bool) -> float:
    """Accumulate the gradient of a part of the sum; the model itself is run only with ``exact_ends``."""
    total = 0.0
    texts = task.texts([sample for sample, _ in pairs])
    reference = scored(task.model, texts)
    for batch in scored(policy.model, texts):
        with torch.no_grad():
            base = dict(next(reference)) if exact_ends else {}
        terms = []
        for i, scores in batch:
            sample, weight = pairs[i]
            if exact_ends:
                by_token = cross_entropy_by_token(scores, base[i], sample.token_ids, sample.decided)
            else:
                by_token = -of_tokens(scores, sample.token_ids)
            terms.append(weight * by_token.sum())
        loss = torch.stack(terms).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def require_number(loss: float) -> None:
    """Raise ModelError if a loss is infinite or NaN: the update made the policy's probabilities invalid."""
    if not math.isfinite(loss):
        raise ModelError("the training has diverged: the policy has no valid probabilities; lower learning_rate")


def chosen(shares: Floats, size: int, *words: int) -> list[int]:
    """Draw indexes with replacement by their shares; the same words give the same indexes."""
    return [int(i) for i in np.random.default_rng(words).choice(len(shares), size, p=shares)]


def spread(shares: Floats, size: int) -> dict[int, int]:
    """Choose indexes deterministically in proportion to their shares; return the count of each."""
    indexes, counts = np.unique(systematic(shares, size, 0.5), return_counts=True)
    return dict(zip(indexes.tolist(), counts.tolist(), strict=True))


def adam(policy: Policy, rate: float) -> Any:
    """Return the Adam optimizer for a policy."""
    return torch.optim.Adam(policy.parameters.values(), lr=rate)
