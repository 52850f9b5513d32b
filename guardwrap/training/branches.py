"""Branches of the model's attempts: more draws of g if a single word decides the constraint.

A keyword that the model rarely writes begins with a token, the pivot, that is rarely drawn but has a probability at
every step. So an attempt y of the model contains more information than whether it satisfies the constraint. For each t
up to its first pivot, W_t = Σ_v a(v | y_<t), over pivots v, is the probability that a pivot comes next. The text with a
pivot at t, continued by the model, is a draw from a among the texts whose first pivot is at t. With (attempt, t) chosen
in proportion to W_t, the result is a draw from a among all texts with a pivot, and each branch is worth
1 / mean(Σ_t W_t) attempts (conditional Monte Carlo; Owen, *Monte Carlo theory*, chapter 8).

On the story model and "dragon", 6 000 attempts with 1 000 branches gave 188 effective draws; without branches 8. 57
branches, the effective sample size of Σ_t W_t, were too few: its largest values are before "dragons", which does not
satisfy the constraint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from guardwrap.backends.sequence_scores import scored
from guardwrap.training import shards
from guardwrap.training.samples import Floats, Sample, systematic
from guardwrap.training.task import Task

_LEAST_SHARE = 0.05
"""Least share of g with a pivot in the text."""

_LEAST_RATE = 0.3
"""Least share of the texts with a pivot that satisfy the constraint."""


def pivots(
    samples: Sequence[Sample], shares: Floats, partition: float, texts: Sequence[Sequence[int]], ends: frozenset[int]
) -> list[int]:
    """Find tokens that are frequent in texts of g and rare elsewhere."""
    inside: dict[int, float] = {}
    for sample, share in zip(samples, shares, strict=True):
        for token in {*sample.token_ids} - ends:
            inside[token] = inside.get(token, 0.0) + float(share)
    everywhere: dict[int, int] = {}
    for ids in texts:
        for token in set(ids):
            everywhere[token] = everywhere.get(token, 0) + 1
    return sorted(
        token
        for token, share in inside.items()
        if share >= _LEAST_SHARE and share * partition >= _LEAST_RATE * everywhere.get(token, 0) / len(texts)
    )


def reserved(attempts: int) -> int:
    """Return how many of the planned attempts of the model are reserved for branches."""
    return attempts // 7


@dataclass(frozen=True)
class Begun:
    """Prefixes for the branches of one prompt; the last token of each is a pivot."""

    token_ids: list[tuple[int, ...]]  # new tokens of each prefix; ``[branches][length]``
    parents: list[int]  # index of the attempt that each branches from; ``[branches]``
    attempts: float  # number of attempts of the model that all branches together are worth


def branches(
    task: Task, texts: Sequence[Sequence[Sequence[int]]], tokens: Sequence[int], count: int, *words: int
) -> list[Begun]:
    """Choose branches of attempts of the model.

    Parameters
    ----------
    task
        Model, constraint and prompts.
    texts
        New tokens of all attempts of the model itself; ``[prompts][attempts][length]``.
    tokens
        The pivots.
    count
        Number of branches per prompt.
    words
        Seed words for the random generator.
    """
    found = []
    for prompt, ids in enumerate(texts):
        samples = [Sample(prompt, tuple(each), len(each)) for each in ids]
        chances = shards.mapped(lambda part: _chances(task, part, tokens), samples)
        found.append(_chosen(ids, chances, tokens, count, np.random.default_rng([*words, prompt])))
    return found


@torch.no_grad()
def _chances(task: Task, samples: Sequence[Sample], tokens: Sequence[int]) -> list[Floats]:
    """Return a(v | y_<t) for each attempt, ``[steps, pivots]``, at the steps up to its first pivot."""
    steps = [
        next((t for t, token in enumerate(sample.token_ids) if token in tokens), len(sample.token_ids) - 1) + 1
        for sample in samples
    ]
    # One allocation for all: small arrays allocated between large ones fragmented the heap by 19 GB.
    found = np.zeros((len(samples), max(steps, default=0), len(tokens)))
    for batch in scored(task.model, task.texts(samples)):
        for i, scores in batch:
            until = scores[: steps[i]]
            law = until[:, list(tokens)].double() - until.logsumexp(-1, keepdim=True).double()
            found[i, : steps[i]] = law.exp().cpu().numpy()
    return [each[:count] for each, count in zip(found, steps, strict=True)]


def _chosen(
    ids: Sequence[Sequence[int]],
    chances: Sequence[Floats],
    tokens: Sequence[int],
    count: int,
    rng: np.random.Generator,
) -> Begun:
    total = np.array([each.sum() for each in chances])
    if not total.sum() or not count:
        return Begun([], [], 0.0)
    places = [(i, t, v) for i, each in enumerate(chances) for t in range(len(each)) for v in range(len(tokens))]
    weights = np.concatenate([each.flatten() for each in chances])
    rows = systematic(weights, count, rng.random())
    begun = [(*ids[places[row][0]][: places[row][1]], tokens[places[row][2]]) for row in rows]
    return Begun(begun, [places[row][0] for row in rows], count / float(total.mean()))
