"""Attempts of the model that go another way at one token: draws of g where a word decides.

A keyword that the model rarely says comes with a token, the pivot, that it rarely draws but gives a probability at
every step. So an attempt y of the model tells more than whether it satisfies the constraint. For each t up to its first
pivot, W_t = Σ_v a(v | y_<t), over pivots v, is the probability of going on with one, and the text that does, continued
by the model, is a draw of a among the texts whose first pivot stands at t. Choosing (attempt, t) in proportion to W_t
draws from a among all texts that have a pivot, as if 1 / mean(Σ_t W_t) attempts had been made for each (conditional
Monte Carlo; Owen, *Monte Carlo theory*, chapter 8). On the story model and "dragon" 6 000 attempts with 1 000 branches
gave 188 effective draws, and waiting 8. With as many branches as Σ_t W_t has effective attempts, 57, much was left
unused: its largest values stand before "dragons", which does not satisfy the constraint.
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

__all__ = ["Begun", "branches", "pivots", "reserved"]

_LEAST_SHARE = 0.05
"""Of g, that a token must stand in."""

_LEAST_RATE = 0.3
"""Of the texts with a token, that must satisfy the constraint."""


def pivots(
    samples: Sequence[Sample], shares: Floats, partition: float, texts: Sequence[Sequence[int]], ends: frozenset[int]
) -> list[int]:
    """Find tokens that stand in much of g and hardly elsewhere.

    Parameters
    ----------
    samples, shares
        Satisfying samples and the share of g that each stands for.
    partition
        Z.
    texts
        New tokens of attempts of the model itself, satisfied or not.
    ends
        End-of-sequence tokens, which are none.
    """
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
    """Return how many of a number of attempts of the model are left for branches."""
    return attempts // 7


@dataclass(frozen=True)
class Begun:
    """Beginnings of texts with a pivot as their last token, of one prompt.

    Parameters
    ----------
    token_ids
        One a branch; ``[branches][length]``.
    parents
        Number of the attempt that each branches from; ``[branches]``.
    attempts
        How many attempts of the model they stand for.
    """

    token_ids: list[tuple[int, ...]]
    parents: list[int]
    attempts: float


def branches(
    task: Task, texts: Sequence[Sequence[Sequence[int]]], tokens: Sequence[int], count: int, *words: int
) -> list[Begun]:
    """Choose branches of attempts of the model.

    Parameters
    ----------
    task
        For what.
    texts
        New tokens of attempts of the model itself, satisfied or not; ``[prompts][attempts][length]``.
    tokens
        The pivots.
    count
        Branches of each prompt.
    words
        What the randomness belongs to.
    """
    found = []
    for prompt, ids in enumerate(texts):
        samples = [Sample(prompt, tuple(each), len(each)) for each in ids]
        chances = shards.mapped(lambda part: _chances(task, part, tokens), samples)
        found.append(_chosen(ids, chances, tokens, count, np.random.default_rng([*words, prompt])))
    return found


@torch.no_grad()
def _chances(task: Task, samples: Sequence[Sample], tokens: Sequence[int]) -> list[Floats]:
    """For each attempt a(v | y_<t), ``[steps, pivots]``, at the steps up to its first pivot."""
    steps = [
        next((t for t, token in enumerate(sample.token_ids) if token in tokens), len(sample.token_ids) - 1) + 1
        for sample in samples
    ]
    # Room for all is made at once: small arrays, each made between two large ones, left holes of 19 GB in the heap.
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
