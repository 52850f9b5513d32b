"""Branches of the model's attempts, compared with an enumerated world."""

import collections
from typing import Any

import numpy as np
import pytest

from guardwrap import GuardedGenerator, Regex
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world
from guardwrap.training import branches as module
from guardwrap.training.branches import branches, pivots
from guardwrap.training.samples import Sample
from guardwrap.training.task import Task

WORLDS = {"table": lambda: table_world(letters="abc"), "llama": lambda: llama_world(letters="abc", temperature=0.8)}
PIVOT = 3  # the letter c
CONSTRAINT = Regex("c.|b$")  # a pivot is neither sufficient nor necessary


def task_of(world: World) -> Task:
    return Task(GuardedGenerator(world.pipeline(), CONSTRAINT, batch_size=64), [world.prompt], world.settings)


def drawn(world: World, count: int, seed: int) -> tuple[list[tuple[int, ...]], float, list[tuple[int, ...]]]:
    """Return the branches' texts, the number of attempts they are worth, and the accepted texts."""
    task = task_of(world)
    (attempts,) = task.draw(count, seed)
    (begun,) = branches(task, [[attempt.draw.token_ids for attempt in attempts]], [PIVOT], 400, seed)
    found = task.continued([(i, 0, ids) for i, ids in enumerate(begun.token_ids)], seed)
    return begun.token_ids, begun.attempts, [sample.token_ids for sample, _ in found if sample is not None]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORLDS)
def test_branches_are_draws_of_g_among_the_texts_with_a_pivot(kind: str) -> None:
    world = WORLDS[kind]()
    gold = {ids: p for ids, p in world.gold(CONSTRAINT).items() if PIVOT in ids}
    law = {ids: p / sum(gold.values()) for ids, p in gold.items()}
    texts, rates = [], []
    for seed in range(12):
        begun, attempts, satisfied = drawn(world, 400, seed)
        assert all(ids.index(PIVOT) == len(ids) - 1 for ids in begun)
        texts += satisfied
        rates.append(len(satisfied) / attempts)
    # Draws of one call share attempts, so only a quarter is compared with the distribution.
    rng = np.random.default_rng(0)
    some = [texts[i] for i in rng.choice(len(texts), len(texts) // 4, replace=False)]
    assert goodness_of_fit(some, law) > 1e-3
    z = sum(p for ids, p in world.law().items() if PIVOT in ids and ids in world.gold(CONSTRAINT))
    assert abs(np.mean(rates) - z) < 4 * np.std(rates) / len(rates) ** 0.5


def test_negative_control_a_step_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    world = WORLDS["table"]()
    whole = module._chances

    def every(task: Task, samples: Any, tokens: Any) -> Any:
        return [np.vstack([each, each[-1:]]) for each in whole(task, samples, tokens)]

    monkeypatch.setattr(module, "_chances", every)
    rates = []
    for seed in range(6):
        _, attempts, satisfied = drawn(world, 400, seed)
        rates.append(len(satisfied) / attempts)
    z = sum(p for ids, p in world.law().items() if PIVOT in ids and ids in world.gold(CONSTRAINT))
    assert abs(np.mean(rates) - z) > 4 * np.std(rates) / len(rates) ** 0.5


def test_pivots_are_tokens_that_decide() -> None:
    gold = [Sample(0, (1, 2, 7), 3), Sample(0, (1, 7, 0), 3), Sample(0, (2, 8, 1), 3)]
    shares = np.array([0.6, 0.3, 0.1])
    everywhere = collections.Counter({(1, 2, 3): 900, (2, 3, 0): 95, (1, 2, 7): 5})
    texts = [ids for ids, count in everywhere.items() for _ in range(count)]
    assert pivots(gold, shares, 0.006, texts, frozenset({0})) == [7, 8]
    assert pivots(gold, np.array([0.68, 0.3, 0.02]), 0.006, texts, frozenset({0})) == [7], "8 is hardly in g"
    assert pivots(gold, shares, 0.0006, texts, frozenset({0})) == [8], "7 stands elsewhere nine times in ten"
